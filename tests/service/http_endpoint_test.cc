// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/http_endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/owned_fd.h"
#include "moebius/service/exit_status.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

std::string Get(const Address& address, const std::string& path) {
  const OwnedFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(client.fd(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\n\r\n");
  EXPECT_EQ(send(client.fd(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t count = 1; count > 0;) {
    count = recv(client.fd(), buffer, sizeof(buffer), 0);
    if (count > 0) answer.append(buffer, static_cast<size_t>(count));
  }
  return answer;
}

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
  EXPECT_THAT(Get(address, "/metrics"), HasSubstr("process_resident_memory_bytes"));
  EXPECT_THAT(Get(address, "/metrics"), HasSubstr("moebius_http_requests_total{code=\"200\"} 1\n"));
  EXPECT_THAT(Get(address, "/readyz"), HasSubstr("503"));
  EXPECT_THAT(Get(address, "/"), HasSubstr("<p>here</p>"));
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
    EXPECT_THAT(Get((*endpoint)->address(), "/livez"), HasSubstr("200 OK"));
  }
}

}  // namespace
}  // namespace moebius
