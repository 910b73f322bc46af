// SPDX-License-Identifier: Apache-2.0
#include "node/serve.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "node/child_process.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The end of a child, and all lines that it wrote before.
struct Ran {
  std::vector<std::string> lines;
  ChildEnd end;
};

Ran RunToEnd(ChildProcess& child) {
  Ran ran;
  for (int turn = 0; turn < 2000; ++turn) {
    for (std::string& line : child.ReadLines()) ran.lines.push_back(std::move(line));
    if (child.fd() < 0) {
      if (const std::optional<ChildEnd> end = child.TryWait()) {
        ran.end = *end;
        return ran;
      }
    }
    pollfd ready = {child.fd(), POLLIN, 0};
    poll(&ready, 1, 10);
  }
  ADD_FAILURE() << "the child did not end";
  return ran;
}

TEST(ChildProcessTest, GivesLinesTheLogAndTheExitCode) {
  TemporaryFolder folder;
  const std::string log = folder.File("log");
  auto child = ChildProcess::Start(
      {"/bin/sh", "-c", "echo one; echo two >&2; printf 'three\\nfour'; exit 3"}, log);
  ASSERT_TRUE(child.ok()) << child.status();
  const Ran ran = RunToEnd(*child);
  EXPECT_THAT(ran.lines, ElementsAre("one", "three"));
  EXPECT_EQ(ran.end.exit_code, 3);
  EXPECT_EQ(ChildEndWords(ran.end), "ended with exit code 3");
  EXPECT_EQ(LastLines(log, 100), "two");
}

TEST(ChildProcessTest, SaysWhichSignalKilledIt) {
  TemporaryFolder folder;
  auto child = ChildProcess::Start({"/bin/sh", "-c", "kill -9 $$"}, folder.File("log"));
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(ChildEndWords(RunToEnd(*child).end), "was killed by SIGKILL");
}

TEST(ChildProcessTest, AChildHearsSignalsThatTheStarterBlocks) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGINT);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  TemporaryFolder folder;
  auto child = ChildProcess::Start({"/bin/sh", "-c", "echo up; exec sleep 60"}, folder.File("log"));
  sigprocmask(SIG_SETMASK, &before, nullptr);
  ASSERT_TRUE(child.ok());
  while (child->ReadLines().empty()) poll(nullptr, 0, 1);
  child->Signal(SIGINT);
  EXPECT_EQ(RunToEnd(*child).end.signal, SIGINT);
}

TEST(ChildProcessTest, AProgramThatIsNotThereIsAFailure) {
  TemporaryFolder folder;
  EXPECT_EQ(ChildProcess::Start({"/nowhere/program"}, folder.File("log")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(ChildProcess::Start({"/bin/true"}, "/nowhere/log").ok());
}

TEST(LastLinesTest, KeepsWholeLinesAtTheEnd) {
  TemporaryFolder folder;
  std::ofstream(folder.File("log")) << "first line\nsecond\nthird\n";
  EXPECT_EQ(LastLines(folder.File("log"), 1000), "first line\nsecond\nthird");
  EXPECT_EQ(LastLines(folder.File("log"), 15), "second\nthird");
  EXPECT_EQ(LastLines(folder.File("none"), 15), "");
}

TEST(ServeTest, ReadsTheListeningLine) {
  ServedProcess process;
  EXPECT_FALSE(ParseListening("waiting role=router why=data=1", &process));
  ASSERT_TRUE(ParseListening(
      "listening role=router name=router pid=7 data=127.0.0.1:1 http=[::1]:2", &process));
  EXPECT_EQ(process.data, "127.0.0.1:1");
  EXPECT_EQ(process.http, "[::1]:2");
  EXPECT_EQ(process.grpc, "");
  EXPECT_EQ(process.endpoint(), "127.0.0.1:1");
  process.grpc = "127.0.0.1:9";
  EXPECT_EQ(process.endpoint(), "127.0.0.1:9");
}

TEST(ServeTest, ProcessesOfARoleShareTheThreads) {
  EXPECT_EQ(ThreadsOf(8, 1), 8);
  EXPECT_EQ(ThreadsOf(8, 3), 2);
  EXPECT_EQ(ThreadsOf(2, 4), 2);
  EXPECT_EQ(ThreadsOf(1, 4), 1);
}

TEST(ServeTest, AMissingProgramEndsTheWholeAndIsNamed) {
  TemporaryFolder folder;
  ServeOptions options;
  options.program_dir = "/nowhere";
  options.log_dir = folder.path();
  Serve serve(options, {});
  StopSignal stop;
  const absl::Status status = serve.Run(stop);
  EXPECT_THAT(std::string(status.message()), HasSubstr("router"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/moebius-router"));
  EXPECT_EQ(serve.num_stopped(), 0);
}

// A cluster of shell scripts, whose expert ends as soon as it begins.
TEST(ServeTest, AChildThatDoesNotStayUpIsStartedAFewTimesAndThenLeft) {
  TemporaryFolder folder;
  const auto write = [&](const char* name, const char* script) {
    const std::string path = folder.File(name);
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  };
  write("moebius-router",
        "printf 'listening role=router name=router pid=1 data=127.0.0.1:1\\nready role=router\\n'\n"
        "exec sleep 60");
  write("moebius-attention", "exec sleep 60");
  write("moebius-expert", "exit 3");
  ServeOptions options;
  options.program_dir = options.log_dir = folder.path();
  options.restart = true;
  options.restart_options.first_delay = absl::Milliseconds(1);
  options.restart_options.max_delay = absl::Milliseconds(4);
  options.restart_options.max_restarts = 3;
  std::vector<std::string> news;
  StopSignal stop;
  ServeEvents events;
  events.on_ended = [&](const ServedProcess& process, const ChildEnd& end, const std::string&,
                        const std::string& next) {
    EXPECT_EQ(process.name, "expert-0");
    EXPECT_EQ(end.exit_code, 3);
    news.push_back(next);
    if (news.size() == 4) stop.Fail(absl::CancelledError("seen"));
  };
  Serve serve(options, events);
  EXPECT_TRUE(serve.Run(stop).ok());
  ASSERT_EQ(news.size(), 4u);
  EXPECT_THAT(news[0], HasSubstr("again in 1ms (1 of 3"));
  EXPECT_THAT(news[1], HasSubstr("again in 2ms (2 of 3"));
  EXPECT_THAT(news[2], HasSubstr("again in 4ms (3 of 3"));
  EXPECT_THAT(news[3], HasSubstr("started again 3 times in a row and is left"));
  EXPECT_EQ(serve.num_stopped(), 2);
}

TEST(OnThisHostTest, ReachesWhoListensEverywhereHere) {
  EXPECT_EQ(OnThisHost("0.0.0.0:4120"), "127.0.0.1:4120");
  EXPECT_EQ(OnThisHost("[::]:4120"), "[::1]:4120");
  EXPECT_EQ(OnThisHost("10.0.0.7:4120"), "10.0.0.7:4120");
  EXPECT_EQ(OnThisHost("127.0.0.1:4120"), "127.0.0.1:4120");
}

}  // namespace
}  // namespace moebius
