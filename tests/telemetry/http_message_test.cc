// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/http/http_message.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kMaxBytes = 1024;

// 0 while more is needed, 200 for a request, else the code of the rejection.
int CodeOf(absl::string_view bytes) {
  const HttpParse parse = ParseHttpRequest(bytes, kMaxBytes);
  if (parse.needs_more()) return 0;
  return parse.request.has_value() ? 200 : parse.rejected->code;
}

TEST(HttpMessageTest, ReadsMethodPathAndQuery) {
  const HttpParse parse =
      ParseHttpRequest("HEAD /status?layer=3&x=a?b HTTP/1.1\r\nHost: here:1\r\n\r\n", kMaxBytes);
  ASSERT_TRUE(parse.request.has_value());
  EXPECT_TRUE(parse.request->head_only);
  EXPECT_EQ(parse.request->path, "/status");
  EXPECT_EQ(parse.request->query, "layer=3&x=a?b");
}

TEST(HttpMessageTest, ReadsTheFormThatProxiesGet) {
  const HttpParse parse =
      ParseHttpRequest("GET http://10.0.0.1:9000/metrics HTTP/1.1\r\n\r\n", kMaxBytes);
  ASSERT_TRUE(parse.request.has_value());
  EXPECT_EQ(parse.request->path, "/metrics");
  EXPECT_EQ(ParseHttpRequest("GET http://host HTTP/1.0\r\n\r\n", kMaxBytes).request->path, "/");
}

TEST(HttpMessageTest, WaitsForTheEndAtEveryByte) {
  const std::string whole = "GET /livez HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(CodeOf(absl::string_view(whole).substr(0, size)), 0) << size;
  }
  EXPECT_EQ(CodeOf(whole), 200);
  // What follows belongs to nobody.
  EXPECT_EQ(CodeOf(whole + "GET /metrics HTTP/1.1\r\n\r\n"), 200);
}

TEST(HttpMessageTest, AnswersEveryOtherRequestWithItsCode) {
  EXPECT_EQ(CodeOf("POST /metrics HTTP/1.1\r\n\r\n"), 405);
  EXPECT_EQ(CodeOf("OPTIONS * HTTP/1.1\r\n\r\n"), 405);
  EXPECT_EQ(CodeOf("GET /metrics HTTP/2.0\r\n\r\n"), 505);
  EXPECT_EQ(CodeOf("GET /metrics\r\n\r\n"), 400);
  EXPECT_EQ(CodeOf("GET /a b HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(CodeOf("GET metrics HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(CodeOf("GET /a\tb HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(CodeOf("GET / HTTP/1.1\r\nno colon\r\n\r\n"), 400);
  EXPECT_EQ(CodeOf("GET / HTTP/1.1\r\n folded: yes\r\n\r\n"), 400);
  EXPECT_EQ(CodeOf(absl::string_view("GET / HTTP/1.1\r\na: \0\r\n\r\n", 24)), 400);
}

TEST(HttpMessageTest, KnowsOtherProtocolsByTheirFirstBytes) {
  EXPECT_EQ(CodeOf("\x16\x03\x01\x02"), 400);                  // a TLS hello
  EXPECT_EQ(CodeOf(std::string(3, '\0')), 400);                // a binary frame
  EXPECT_EQ(CodeOf("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);  // HTTP/2 without TLS
  EXPECT_EQ(CodeOf(" GET / HTTP/1.1"), 400);
  EXPECT_EQ(CodeOf("AAAAAAAAAAAAAAAA"), 400);
}

TEST(HttpMessageTest, RefusesTooMuchBeforeItIsAllThere) {
  const std::string begin = "GET / HTTP/1.1\r\na: ";
  EXPECT_EQ(CodeOf(begin + std::string(kMaxBytes - begin.size() - 1, 'x')), 0);
  EXPECT_EQ(CodeOf(begin + std::string(kMaxBytes - begin.size(), 'x')), 431);
  EXPECT_EQ(CodeOf(begin + std::string(kMaxBytes, 'x') + "\r\n\r\n"), 431);
}

TEST(HttpMessageTest, SurvivesAnybodysBytes) {
  const uint64_t seed = SeedFromSystem();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  Random random(seed);
  const std::string whole = "GET /metrics?a=b HTTP/1.1\r\nHost: a\r\n\r\n";
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = whole.substr(0, random.Below(whole.size() + 1));
    const uint64_t changes = random.Below(4);
    for (uint64_t change = 0; change < changes && !bytes.empty(); ++change) {
      bytes[random.Below(bytes.size())] = static_cast<char>(random.Below(256));
    }
    const HttpParse parse = ParseHttpRequest(bytes, kMaxBytes);
    EXPECT_FALSE(parse.request.has_value() && parse.rejected.has_value());
    if (parse.request.has_value()) {
      EXPECT_THAT(parse.request->path, StartsWith("/"));
    }
  }
}

TEST(HttpMessageTest, LeavesTheBodyOutForHead) {
  const HttpResponse response = {503, "text/plain; charset=utf-8", "not yet\n"};
  const absl::Time now = absl::FromUnixSeconds(784'111'777);
  const std::string with_body = FormatHttpResponse(response, false, now);
  EXPECT_THAT(with_body, StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_THAT(with_body, HasSubstr("\r\nContent-Length: 8\r\n"));
  EXPECT_THAT(with_body, HasSubstr("\r\nConnection: close\r\n\r\nnot yet\n"));
  EXPECT_THAT(with_body, HasSubstr("\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"));
  EXPECT_THAT(with_body, HasSubstr("\r\nContent-Security-Policy: default-src 'none'; "));
  const std::string without = FormatHttpResponse(response, true, now);
  EXPECT_EQ(with_body, without + "not yet\n");
}

TEST(HttpMessageTest, ReadsBackTheDatesThatItWrites) {
  // The example of RFC 9110, 5.6.7.
  EXPECT_EQ(FormatHttpDate(absl::FromUnixSeconds(784'111'777)), "Sun, 06 Nov 1994 08:49:37 GMT");
  for (const int64_t seconds : {int64_t{0}, int64_t{951'782'400}, int64_t{1'800'000'001}}) {
    const absl::Time time = absl::FromUnixSeconds(seconds);
    EXPECT_EQ(ParseHttpDate(FormatHttpDate(time)), time);
  }
  for (const char* text : {"", "now", "Mon, 06 Nov 1994 08:49:37 GMT",
                           "Sun, 06 Nov 1994 08:49:61 GMT", "Sun, 06 Nov 1994 08:49:37 CET",
                           "Sun Nov  6 08:49:37 1994", "Sun, 36 Nov 1994 08:49:37 GMT"}) {
    EXPECT_FALSE(ParseHttpDate(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace moebius
