// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/trace/http_client.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"
#include "moebius/base/error.h"
#include "tests/telemetry/fake_collector.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

PostDeadline Within(absl::Duration limit) {
  const absl::Duration end = Clock::Monotonic().Now() + limit;
  return [end] { return end; };
}

HttpTarget TargetOf(const std::string& url) { return *ParseHttpTarget(url, "/v1/traces"); }

TEST(HttpClientTest, ReadsAddresses) {
  const HttpTarget full = TargetOf("http://collector.monitoring:4318/a/b?c=d");
  EXPECT_EQ(full.host, "collector.monitoring");
  EXPECT_EQ(full.port, 4318);
  EXPECT_EQ(full.path, "/a/b?c=d");
  EXPECT_EQ(TargetOf("http://10.0.0.1:1").path, "/v1/traces") << "the default";
  EXPECT_EQ(TargetOf("http://[::1]:65535/").host, "::1");
  EXPECT_EQ(TargetOf("http://[fe80::1%eth0]:1/").host, "fe80::1%eth0");
}

TEST(HttpClientTest, RefusesEverythingElseAndSaysWhatToDoAboutHttps) {
  for (const char* url : {"",
                          "collector:4318",
                          "https://collector:4318/v1/traces",
                          "http://",
                          "http://collector",
                          "http://collector/v1/traces",
                          "http://:4318/",
                          "http://a:0/",
                          "http://a:65536/",
                          "http://a:/",
                          "http://a:+1/",
                          "http://a b:1/",
                          "http://user@a:1/",
                          "http://::1:1/",
                          "http://[::1]/",
                          "http://a:1/b c",
                          "http://a:1/b\r\nX: y",
                          "http://a\r\nX:1/",
                          "HTTP://a:1/",
                          "http://[a:1/",
                          "http://a]:1/"}) {
    const auto target = ParseHttpTarget(url, "/v1/traces");
    ASSERT_FALSE(target.ok()) << url;
    EXPECT_TRUE(absl::IsInvalidArgument(target.status()));
    EXPECT_THAT(HintOf(target.status()), HasSubstr("https is not spoken")) << url;
  }
}

TEST(HttpClientTest, PostsOneBodyAndReadsTheCode) {
  FakeCollector collector;
  const std::string body(1 << 20, 'x');
  collector.AnswerWith(204);
  const auto code =
      PostHttp(TargetOf(collector.url()), "application/json", body, Within(absl::Seconds(20)));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 204);
  EXPECT_THAT(collector.bodies(), ElementsAre(body));
  EXPECT_EQ(collector.heads().at(0),
            absl::StrCat("POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1:", collector.port(),
                         "\r\nContent-Type: application/json\r\nContent-Length: 1048576\r\n",
                         "Connection: close\r\n\r\n"));
}

TEST(HttpClientTest, GetsAnAnswerAndItsHeaders) {
  FakeCollector collector;
  collector.AnswerWith(503);
  const auto answer =
      GetHttp(TargetOf(collector.url()), /*max_bytes=*/1 << 20, Within(absl::Seconds(20)));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->code, 503);
  EXPECT_EQ(answer->Header("content-LENGTH"), "2");
  EXPECT_EQ(answer->Header("Date"), "");
  EXPECT_EQ(answer->body, "{}");
  EXPECT_TRUE(absl::IsResourceExhausted(
      GetHttp(TargetOf(collector.url()), /*max_bytes=*/8, Within(absl::Seconds(20))).status()));
  collector.AnswerWith(0);
  EXPECT_TRUE(absl::IsDataLoss(
      GetHttp(TargetOf(collector.url()), /*max_bytes=*/1 << 20, Within(absl::Seconds(20)))
          .status()));
}

TEST(HttpClientTest, SaysWhatWentWrong) {
  HttpTarget target;
  {
    FakeCollector collector;
    target = TargetOf(collector.url());
    collector.AnswerWith(0);
    EXPECT_TRUE(
        absl::IsDataLoss(PostHttp(target, "text/plain", "x", Within(absl::Seconds(20))).status()));
    collector.WaitBefore(absl::Seconds(20));
    EXPECT_TRUE(absl::IsDeadlineExceeded(
        PostHttp(target, "text/plain", "x", Within(absl::Milliseconds(50))).status()));
  }
  EXPECT_TRUE(
      absl::IsUnavailable(PostHttp(target, "text/plain", "x", Within(absl::Seconds(20))).status()));
}

TEST(HttpClientTest, EndsEarlierWhenTheDeadlineComesNearer) {
  FakeCollector collector;
  collector.WaitBefore(absl::Seconds(20));
  const absl::Duration begin = Clock::Monotonic().Now();
  int looks = 0;
  const auto code = PostHttp(TargetOf(collector.url()), "text/plain", "x", [&] {
    return begin + (++looks < 3 ? absl::Seconds(20) : absl::Milliseconds(60));
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(code.status())) << code.status();
  EXPECT_LT(Clock::Monotonic().Now() - begin, absl::Seconds(10));
}

}  // namespace
}  // namespace moebius
