// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/http/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// What a test waits for at most, for something that must come.
constexpr int kPatienceMs = 20'000;

sockaddr_in LoopbackAddress(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A client that says what it is told, byte for byte.
class Client {
 public:
  /// From 127.0.0.`host`.
  explicit Client(uint16_t port, int receive_buffer = 0, uint32_t host = 1)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer != 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    sockaddr_in own = LoopbackAddress(0);
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + host);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
    const sockaddr_in address = LoopbackAddress(port);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { close(fd_); }
  Client(const Client&) = delete;

  // False when the other side has gone.
  bool Say(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }

  // Everything until the other side ends; "reset" when it does so rudely.
  std::string HearAll() {
    std::string heard;
    char buffer[4096];
    while (true) {
      pollfd polled = {fd_, POLLIN, 0};
      if (poll(&polled, 1, kPatienceMs) <= 0) return absl::StrCat("nothing came after: ", heard);
      const ssize_t count = recv(fd_, buffer, sizeof(buffer), 0);
      if (count == 0) return heard;
      if (count < 0) return absl::StrCat(heard, "reset");
      heard.append(buffer, static_cast<size_t>(count));
    }
  }

  std::string Ask(absl::string_view request) {
    Say(request);
    return HearAll();
  }

 private:
  const int fd_;
};

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    limits_.max_connections = 8;
    limits_.request_timeout = absl::Milliseconds(300);
    limits_.answer_timeout = absl::Seconds(5);
    limits_.close_timeout = absl::Milliseconds(300);
  }

  void Start() {
    server_ = std::make_unique<HttpServer>(limits_);
    AddTelemetryHandlers(registry_, health_, *server_);
    server_->AddHandler("/large", [](const HttpRequest&) {
      return HttpResponse{200, "text/plain", std::string(4 << 20, 'x')};
    });
    std::vector<OwnedFd> sockets;
    sockets.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int listener = sockets.front().fd();
    sockaddr_in address = LoopbackAddress(0);
    ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(listener, 1024), 0);
    socklen_t size = sizeof(address);
    ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    ASSERT_TRUE(server_->Start(std::move(sockets)).ok());
    handle_ = registry_.AddCollector([this](MetricWriter& writer) {
      writer.WriteCounter(Metric::kSteps, steps_);
      server_->WriteMetrics(writer);
    });
  }

  std::string Get(absl::string_view path) {
    return Client(port_).Ask(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: a\r\n\r\n"));
  }

  void ExpectServes() {
    const absl::Duration begin = Clock::Monotonic().Now();
    EXPECT_THAT(Get("/metrics"), HasSubstr("moebius_steps_total 0\n"));
    // The promise is a second; on a loaded machine five.
    EXPECT_LE(Clock::Monotonic().Now() - begin, absl::Seconds(5));
  }

  HttpLimits limits_;
  Counter steps_;
  FakeClock clock_;
  Health health_{clock_};
  Registry registry_;
  std::unique_ptr<HttpServer> server_;
  Registry::Handle handle_;  // goes before what its collector reads
  uint16_t port_ = 0;
};

TEST_F(HttpServerTest, ShowsMetricsAndProbesWithReasons) {
  Start();
  steps_.Add(12);
  const std::string metrics = Get("/metrics");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(metrics, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(metrics, HasSubstr("moebius_steps_total 12\n"));
  EXPECT_THAT(Get("/livez"), HasSubstr("200 OK"));
  health_.SetStarting("loading weights");
  EXPECT_THAT(Get("/startupz"), HasSubstr("503 Service Unavailable"));
  EXPECT_THAT(Get("/readyz?verbose"), HasSubstr("\r\n\r\nloading weights\n"));
  health_.SetStarted();
  EXPECT_THAT(Get("/startupz"), HasSubstr("\r\n\r\nok\n"));
  EXPECT_THAT(Get("/readyz"), HasSubstr("200 OK"));
  EXPECT_THAT(Get("/nothing"), HasSubstr("there is: /large /livez /metrics /readyz /startupz\n"));
  EXPECT_THAT(Get("/metrics"), HasSubstr("moebius_http_requests_total{code=\"503\"} 2\n"));
}

TEST_F(HttpServerTest, AnswersTheFirstOfManyRequestsAndEndsWithoutAReset) {
  Start();
  std::string pipelined;
  for (int index = 0; index < 100; ++index) pipelined += "GET /livez HTTP/1.1\r\n\r\n";
  const std::string answer = Client(port_).Ask(pipelined);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK"));
  EXPECT_EQ(answer.find("HTTP/1.1", 1), std::string::npos);
  EXPECT_THAT(answer, testing::EndsWith("ok\n"));
}

TEST_F(HttpServerTest, RefusesHugeHeadersWhileTheyCome) {
  Start();
  Client client(port_);
  client.Say("GET / HTTP/1.1\r\n");
  // 64 MiB, or as much as is taken before the end.
  const std::string header = absl::StrCat("a: ", std::string(65530, 'x'), "\r\n");
  for (int index = 0; index < 1024 && client.Say(header); ++index) {
  }
  ExpectServes();
  EXPECT_THAT(Get("/metrics"), HasSubstr("moebius_http_requests_total{code=\"431\"} 1\n"));
}

TEST_F(HttpServerTest, CutsWhoSendsByteAfterByte) {
  Start();
  Client client(port_);
  const std::string request = "GET /metrics HTTP/1.1\r\n";
  size_t sent = 0;
  // Each byte comes in time; the request as a whole does not.
  while (client.Say(request.substr(sent % request.size(), 1))) {
    ++sent;
    ASSERT_LT(sent, 2000u);
    pollfd none = {-1, 0, 0};
    poll(&none, 1, 10);
  }
  EXPECT_GT(sent, 1u);
  EXPECT_THAT(Get("/metrics"),
              HasSubstr("moebius_http_connections_cut_total{reason=\"timeout\"} 1"));
}

TEST_F(HttpServerTest, ServesAmongAThousandSilentConnections) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 8192);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  limits_.request_timeout = absl::Minutes(5);
  Start();
  std::vector<std::unique_ptr<Client>> silent;
  for (int index = 0; index < 1000; ++index) {
    silent.push_back(std::make_unique<Client>(port_));
    if (index % 250 == 0) ExpectServes();
  }
  ExpectServes();
  EXPECT_LE(server_->num_connections(), limits_.max_connections);
}

TEST_F(HttpServerTest, AHostWithManyConnectionsCrowdsOutNobodyElse) {
  limits_.request_timeout = absl::Seconds(20);
  Start();
  // Its request takes longer than the others need to come.
  Client slow(port_, 0, /*host=*/2);
  ASSERT_TRUE(slow.Say("GET /livez HT"));
  std::vector<std::unique_ptr<Client>> many;
  for (int index = 0; index < 100; ++index) many.push_back(std::make_unique<Client>(port_));
  EXPECT_THAT(Client(port_, 0, /*host=*/3).Ask("GET /livez HTTP/1.1\r\n\r\n"),
              StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(slow.Ask("TP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ServesAmongReadersThatNeverRead) {
  limits_.max_pending_bytes = 6 << 20;
  Start();
  std::vector<std::unique_ptr<Client>> stuck;
  for (int index = 0; index < 6; ++index) {
    stuck.push_back(std::make_unique<Client>(port_, 4096));
    stuck.back()->Say("GET /large HTTP/1.1\r\n\r\n");
  }
  ExpectServes();
  // Of six answers of 4 MiB at most two are kept.
  EXPECT_THAT(Get("/metrics"),
              testing::ContainsRegex("connections_cut_total.reason=\"too_many\". [1-9]"));
}

TEST_F(HttpServerTest, ThrowsGarbageAway) {
  Start();
  for (int index = 0; index < 300; ++index) {
    Client client(port_);
    if (index % 3 == 0) {
      EXPECT_THAT(client.Ask("\x16\x03\x01\x02 hello"), HasSubstr("400 Bad Request"));
    }
    if (index % 3 == 1) client.Say("GET /met");  // and is gone
  }
  ExpectServes();
}

TEST_F(HttpServerTest, EndsWithConnectionsInEveryState) {
  for (int life = 0; life < 3; ++life) {
    Start();
    Client silent(port_);
    Client half(port_);
    half.Say("GET /metr");
    Client stuck(port_, 4096);
    stuck.Say("GET /large HTTP/1.1\r\n\r\n");
    ExpectServes();
    handle_ = Registry::Handle();
    server_.reset();
    EXPECT_THAT(silent.HearAll(), testing::AnyOf("", "reset"));
  }
}

TEST_F(HttpServerTest, AnswersManyScrapersAtOnce) {
  limits_.max_connections = 64;
  Start();
  std::vector<std::thread> scrapers;
  for (int index = 0; index < 10; ++index) {
    scrapers.emplace_back([this] {
      for (int round = 0; round < 20; ++round) {
        EXPECT_THAT(Get("/metrics"), HasSubstr("moebius_steps_total"));
      }
    });
  }
  for (std::thread& scraper : scrapers) scraper.join();
}

}  // namespace
}  // namespace moebius
