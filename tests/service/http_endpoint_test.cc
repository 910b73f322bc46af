// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/http_endpoint.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/service/exit_status.h"
#include "tests/support/http_get.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

class HttpEndpointTest : public testing::Test {
 protected:
  FakeClock clock_;
  Health health_{clock_};
  Registry registry_;
};

TEST_F(HttpEndpointTest, ServesMetricsProbesAndWhatIsAdded) {
  auto endpoint = HttpEndpoint::Start({"127.0.0.1", 0}, registry_, health_, [](HttpServer& server) {
    server.AddHandler("/", [](const HttpRequest&) {
      return HttpResponse{200, "text/html; charset=utf-8", "<p>here</p>"};
    });
  });
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const Address address = (*endpoint)->address();
  EXPECT_NE(address.port, 0);
  EXPECT_THAT(HttpGet(address, "/metrics"), HasSubstr("process_resident_memory_bytes"));
  EXPECT_THAT(HttpGet(address, "/metrics"),
              HasSubstr("moebius_http_requests_total{code=\"200\"} 1\n"));
  EXPECT_THAT(HttpGet(address, "/readyz"), HasSubstr("503"));
  EXPECT_THAT(HttpGet(address, "/"), HasSubstr("<p>here</p>"));
}

TEST_F(HttpEndpointTest, SaysWhichPortIsBusyAndWhoHasIt) {
  const auto first = HttpEndpoint::Start({"127.0.0.1", 0}, registry_, health_);
  ASSERT_TRUE(first.ok());
  Registry other;
  const absl::Status busy = HttpEndpoint::Start((*first)->address(), other, health_).status();
  EXPECT_EQ(busy.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ExitCodeOf(busy), kExitBind);
  EXPECT_THAT(std::string(busy.message()),
              HasSubstr(absl::StrCat("127.0.0.1:", (*first)->address().port)));
  EXPECT_THAT(std::string(busy.message()), HasSubstr(absl::StrCat("pid ", getpid())));
}

TEST_F(HttpEndpointTest, StartsThreeTimesOnOnePort) {
  uint16_t port = 0;
  for (int life = 0; life < 3; ++life) {
    const auto endpoint = HttpEndpoint::Start({"127.0.0.1", port}, registry_, health_);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    port = (*endpoint)->address().port;
    EXPECT_THAT(HttpGet((*endpoint)->address(), "/livez"), HasSubstr("200 OK"));
  }
}

}  // namespace
}  // namespace moebius
