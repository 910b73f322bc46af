// SPDX-License-Identifier: Apache-2.0
#include "router_service/request_log.h"

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/base/owned_fd.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

GenerateEvent Event(const std::string& id, int64_t completion_tokens) {
  GenerateEvent event;
  event.request_id = id;
  event.token_ids = {1, 2, 3};
  event.completion_tokens = completion_tokens;
  return event;
}

TEST(RequestLogTest, FollowsARequestFromQueueToEnd) {
  FakeClock clock;
  RequestLog log(4, clock);
  log.OnQueued("a");
  EXPECT_EQ(log.Explain("a")->state, RequestState::kQueued);
  clock.Advance(absl::Seconds(2));
  log.OnProgress(Event("a", 5));
  const Explanation running = *log.Explain("a");
  EXPECT_EQ(running.state, RequestState::kRunning);
  EXPECT_EQ(running.age_seconds, 2);
  EXPECT_EQ(running.last.completion_tokens, 5);
  EXPECT_TRUE(running.last.token_ids.empty());
  EXPECT_FALSE(log.HasEnded("a"));
  log.OnEnded("a", absl::OkStatus());
  EXPECT_EQ(log.Explain("a")->state, RequestState::kFinished);
  EXPECT_TRUE(log.HasEnded("a"));
}

TEST(RequestLogTest, KeepsTheReasonOfAFailure) {
  RequestLog log(4);
  log.OnQueued("a");
  log.OnEnded("a", absl::UnavailableError("gone"));
  EXPECT_EQ(log.Explain("a")->state, RequestState::kFailed);
  EXPECT_EQ(log.Explain("a")->failure.message(), "gone");
}

TEST(RequestLogTest, TellsOfEachEndOnce) {
  RequestLog log(1);
  std::vector<std::string> ended;
  log.SetOnEnded([&](const Explanation& explanation) {
    ended.push_back(absl::StrCat(explanation.request_id, " ", explanation.failure.message()));
    EXPECT_TRUE(log.HasEnded(explanation.request_id)) << "called without the lock";
  });
  for (const char* id : {"a", "b"}) log.OnQueued(id);
  log.OnEnded("b", absl::UnavailableError("gone"));
  log.OnEnded("b", absl::OkStatus());
  log.OnEnded("stranger", absl::OkStatus());
  log.OnEnded("a", absl::OkStatus());
  EXPECT_THAT(ended, ElementsAre("b gone", "a "));
}

TEST(RequestLogTest, ForgetsTheOldestThatEndedAndNoneThatRuns) {
  RequestLog log(2);
  log.OnQueued("running");
  for (const char* id : {"a", "b", "c"}) {
    log.OnQueued(id);
    log.OnEnded(id, absl::OkStatus());
  }
  EXPECT_TRUE(absl::IsNotFound(log.Explain("a").status()));
  EXPECT_TRUE(log.Explain("b").ok());
  EXPECT_TRUE(log.Explain("c").ok());
  EXPECT_TRUE(log.Explain("running").ok());
}

TEST(RequestLogTest, TellsAClientOfItsOwnRequestsAlone) {
  RequestLog log(2);
  log.OnQueued("a", "", "team-a");
  log.OnQueued("b", "", "team-b");
  log.OnEnded("b", absl::OkStatus());
  EXPECT_TRUE(log.Explain("a", "team-a").ok());
  EXPECT_TRUE(log.Explain("b", "team-b").ok());
  EXPECT_TRUE(log.Explain("a").ok()) << "an operator";
  // In the words that a request which never was gets.
  for (const auto& [id, asker] : {std::pair("a", "team-b"), std::pair("b", "team-a")}) {
    const absl::Status other = log.Explain(id, asker).status();
    const absl::Status nobody = log.Explain("c", asker).status();
    EXPECT_TRUE(absl::IsNotFound(other));
    EXPECT_EQ(absl::StrReplaceAll(other.message(), {{absl::StrCat("'", id, "'"), "'c'"}}),
              nobody.message());
    EXPECT_EQ(HintOf(other), HintOf(nobody));
  }
}

TEST(RequestLogTest, CountsAnIdThatIsUsedAgainOnce) {
  RequestLog log(2);
  for (int i = 0; i < 5; ++i) {
    log.OnQueued("a");
    log.OnEnded("a", absl::OkStatus());
  }
  log.OnQueued("b");
  log.OnEnded("b", absl::OkStatus());
  EXPECT_TRUE(log.Explain("a").ok());
}

TEST(RequestLogTest, WritesTheTraceOfARequestThatHasOne) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const OwnedFd read_end(ends[0]), write_end(ends[1]);
  LogOptions options;
  options.fd = write_end.fd();
  options.name = "router-0";
  Logger logger(options);
  RequestLog log;
  log.SetOnEnded([&](const Explanation& ended) { WriteLogLine(ended, logger); });
  log.OnQueued("a", "4bf92f3577b34da6a3ce929d0e0e4736", "team-a");
  log.OnQueued("b");
  log.OnEnded("a", absl::OkStatus());
  log.OnEnded("b", absl::UnavailableError("gone"));
  ASSERT_TRUE(logger.Flush(absl::Seconds(20)));
  char text[8192];
  const ssize_t size = read(read_end.fd(), text, sizeof(text));
  ASSERT_GT(size, 0);
  const std::vector<std::string> lines =
      absl::StrSplit(std::string(text, static_cast<size_t>(size)), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], HasSubstr("info router-0: a request was answered request_id=\"a\" "
                                  "trace_id=\"4bf92f3577b34da6a3ce929d0e0e4736\" caller=\"team-a\" "
                                  "prompt_tokens=0 completion_tokens=0 exact=true seconds="));
  EXPECT_THAT(lines[1], HasSubstr("warning router-0: a request failed request_id=\"b\" "
                                  "status=\"UNAVAILABLE: gone\" completion_tokens=0 seconds="));
}

TEST(RequestLogTest, OneCallerBlotsOutNoOthersLines) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const OwnedFd read_end(ends[0]), write_end(ends[1]);
  LogOptions options;
  options.fd = write_end.fd();
  Logger logger(options);
  RequestLog log;
  log.SetOnEnded([&](const Explanation& ended) { WriteLogLine(ended, logger); });
  for (int i = 0; i < 100; ++i) {
    const std::string id = absl::StrCat("noise-", i);
    log.OnQueued(id, "", "10.0.0.9");
    log.OnEnded(id, absl::UnavailableError("gone"));
  }
  log.OnQueued("wanted", "", "team-a");
  log.OnEnded("wanted", absl::UnavailableError("gone"));
  ASSERT_TRUE(logger.Flush(absl::Seconds(20)));
  EXPECT_EQ(logger.figures().suppressed, 90u);
  std::string text(65536, ' ');
  ASSERT_GT(read(read_end.fd(), text.data(), text.size()), 0);
  EXPECT_THAT(text, HasSubstr("request_id=\"wanted\" caller=\"team-a\""));
}

}  // namespace
}  // namespace moebius
