// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/log.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What a test waits for at most, for something that must come.
constexpr absl::Duration kPatience = absl::Seconds(20);

class LoggerTest : public testing::Test {
 protected:
  LoggerTest() {
    EXPECT_EQ(pipe2(pipe_, O_CLOEXEC), 0);
    EXPECT_EQ(fcntl(pipe_[0], F_SETFL, O_NONBLOCK), 0);
    options_.name = "expert-2";
    options_.fd = pipe_[1];
    options_.wall_clock = [] { return absl::UnixEpoch(); };
  }
  ~LoggerTest() override {
    CloseReader();
    close(pipe_[1]);
  }

  void CloseReader() {
    if (pipe_[0] >= 0) close(pipe_[0]);
    pipe_[0] = -1;
  }

  // Until not even one more line goes in.
  void FillPipe() {
    ASSERT_EQ(fcntl(pipe_[1], F_SETFL, O_NONBLOCK), 0);
    const std::string line(kMaxLogLineBytes, 'x');
    while (write(pipe_[1], line.data(), line.size()) > 0) {
    }
    ASSERT_EQ(fcntl(pipe_[1], F_SETFL, 0), 0);
  }

  std::string ReadPipe() {
    std::string text;
    char buffer[65536];
    for (ssize_t count = 1; count > 0;) {
      count = read(pipe_[0], buffer, sizeof(buffer));
      if (count > 0) text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }

  std::vector<std::string> ReadLines() {
    return absl::StrSplit(ReadPipe(), '\n', absl::SkipEmpty());
  }

  int pipe_[2] = {-1, -1};
  LogOptions options_;
};

TEST_F(LoggerTest, WritesWhatIsAtOrAboveItsLevel) {
  Logger logger(options_);
  logger.Debug("not this");
  logger.Info("ready", {{"threads", 2}});
  logger.Error("that failed", {{"status", absl::NotFoundError("no such expert")}});
  EXPECT_TRUE(logger.Flush(kPatience));
  const std::vector<std::string> lines = ReadLines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "1970-01-01T00:00:00.000Z info expert-2: ready threads=2");
  EXPECT_THAT(lines[1],
              HasSubstr("error expert-2: that failed status=\"NOT_FOUND: no such expert\""));
  EXPECT_EQ(logger.figures().written, 2u);
}

TEST_F(LoggerTest, SuppressesRepeatsAndSaysHowMany) {
  options_.max_repeats = 3;
  options_.repeat_window = absl::Milliseconds(50);
  Logger logger(options_);
  const absl::Duration begin = Clock::Monotonic().Now();
  uint64_t said = 0;
  // At least once round the window, in which most of these are too many.
  for (; Clock::Monotonic().Now() - begin < 2 * options_.repeat_window || said < 100; ++said) {
    logger.Warning("garbage came in", {{"attempt", said}});
  }
  logger.Warning("something else");
  EXPECT_TRUE(logger.Flush(kPatience));
  const LogFigures figures = logger.figures();
  EXPECT_GT(figures.suppressed, 0u);
  const std::string text = ReadPipe();
  uint64_t about_others = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    about_others += absl::StrContains(line, "lines of this log were held back") ? 1 : 0;
  }
  EXPECT_EQ(figures.written + figures.suppressed + figures.lost, said + 1 + about_others);
  EXPECT_THAT(text, HasSubstr("something else"));
  EXPECT_THAT(text, HasSubstr(" suppressed_repeats="));
}

TEST_F(LoggerTest, KeepsToTheLimitWithinOneWindow) {
  Logger logger(options_);  // ten a minute
  for (int index = 0; index < 1000; ++index) logger.Warning("garbage came in", {{"n", index}});
  EXPECT_TRUE(logger.Flush(kPatience));
  EXPECT_EQ(logger.figures().written, 10u);
  EXPECT_EQ(logger.figures().suppressed, 990u);
  EXPECT_EQ(ReadLines().size(), 10u);
}

TEST_F(LoggerTest, SaysOnceHowManyLinesWereHeldBackAndWhoHadMost) {
  options_.repeat_window = absl::Milliseconds(50);
  std::string text;
  {
    Logger logger(options_);
    for (int index = 0; index < 100; ++index) {
      logger.LogOf({"10.0.0.9", "refusal"}, LogLevel::kInfo, absl::StrCat("refused ", index), {});
    }
    // Nobody says anything more, and still it is told.
    const absl::Duration end = Clock::Monotonic().Now() + kPatience;
    while (!absl::StrContains(text, "held back") && Clock::Monotonic().Now() < end) {
      absl::SleepFor(absl::Milliseconds(5));
      text += ReadPipe();
    }
  }
  EXPECT_THAT(text, HasSubstr("warning expert-2: lines of this log were held back lines=90 peers=1 "
                              "most_of=\"10.0.0.9\" most_lines=90"));
  EXPECT_THAT(ReadPipe(), testing::Not(HasSubstr("held back"))) << "once";
}

TEST_F(LoggerTest, SaysAtItsEndWhatWasHeldBack) {
  {
    Logger logger(options_);
    for (int index = 0; index < 11; ++index) logger.Info("garbage came in");
  }
  EXPECT_THAT(ReadPipe(), HasSubstr("held back lines=1 peers=0 most_of=\"garbage came in\""));
}

TEST_F(LoggerTest, NeverWaitsForAFullPipe) {
  options_.max_queued_lines = 16;
  options_.max_repeats = 1'000'000;
  FillPipe();
  const absl::Duration begin = Clock::Monotonic().Now();
  {
    Logger logger(options_);
    for (int index = 0; index < 2000; ++index) logger.Info("much to say");
    // The writer holds one line at most, the queue sixteen.
    EXPECT_GE(logger.figures().lost, 2000u - 17u);
    EXPECT_EQ(logger.figures().written, 0u);
    EXPECT_FALSE(logger.Flush(absl::Milliseconds(1)));
  }
  // The end waits for a second at most; on a loaded machine five.
  EXPECT_LE(Clock::Monotonic().Now() - begin, absl::Seconds(5));
}

// A limit of the file's size is a disk that is full within a line, and then has room again.
TEST_F(LoggerTest, ALineThatADiskTookHalfOfDoesNotRunIntoTheNext) {
  const std::string path = absl::StrCat(testing::TempDir(), "log_test_", getpid());
  const int file = open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  options_.fd = file;
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const sighandler_t handler = signal(SIGXFSZ, SIG_IGN);
  {
    Logger logger(options_);
    rlimit full = before;
    full.rlim_cur = 41;  // within the first line
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
    logger.Info("the first");
    logger.Info("the second");
    const bool flushed = logger.Flush(kPatience);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_TRUE(flushed);
    EXPECT_EQ(logger.figures().lost, 2u);
    logger.Info("the third");
    EXPECT_TRUE(logger.Flush(kPatience));
    EXPECT_EQ(logger.figures().written, 1u);
  }
  signal(SIGXFSZ, handler);
  close(file);
  std::ifstream text(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  std::filesystem::remove(path);
  EXPECT_THAT(lines, ElementsAre("1970-01-01T00:00:00.000Z info expert-2: t",
                                 "1970-01-01T00:00:00.000Z info expert-2: the third"));
}

TEST_F(LoggerTest, OutlivesItsReader) {
  Logger logger(options_);
  CloseReader();
  logger.Info("nobody hears this");
  EXPECT_TRUE(logger.Flush(kPatience));
  EXPECT_EQ(logger.figures().lost, 1u);
}

TEST_F(LoggerTest, WritesLinesOfManyThreadsWhole) {
  options_.format = LogFormat::kJson;
  options_.max_repeats = 1000;
  {
    Logger logger(options_);
    std::vector<std::thread> threads;
    for (int index = 0; index < 4; ++index) {
      threads.emplace_back([&logger, index] {
        for (int round = 0; round < 50; ++round) logger.Info("round", {{"thread", index}});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const std::vector<std::string> lines = ReadLines();
  EXPECT_EQ(lines.size(), 200u);
  for (const std::string& line : lines) {
    EXPECT_THAT(line, testing::MatchesRegex("\\{\"time\":.*,\"thread\":[0-3]\\}"));
  }
}

TEST_F(LoggerTest, CountsItsLinesAsMetrics) {
  Logger logger(options_);
  logger.Info("one");
  EXPECT_TRUE(logger.Flush(kPatience));
  Registry registry;
  const auto handle =
      registry.AddCollector([&](MetricWriter& writer) { logger.WriteMetrics(writer); });
  EXPECT_THAT(registry.Scrape(), HasSubstr("moebius_log_lines_total{outcome=\"written\"} 1\n"));
}

}  // namespace
}  // namespace moebius
