// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/http/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

#include "moebius/base/check.h"
#include "moebius/base/clock.h"
#include "moebius/telemetry/http/http_connection.h"

namespace moebius {
namespace {

// When the process has no descriptors left, a connection is not looked at again before this.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// Connections accepted before those that are there are looked at again.
constexpr int kAcceptsPerRound = 16;

enum class CutReason { kTooMany, kTimeout, kBroken };
constexpr size_t kNumCutReasons = 3;
constexpr absl::string_view kCutReasonNames[kNumCutReasons] = {"too_many", "timeout", "broken"};

constexpr int kCodes[] = {200, 400, 404, 405, 431, 503, 505};

// The address alone: one host has many ports. Empty for what has none.
std::string HostOf(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof(text));
  } else if (address.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text,
              sizeof(text));
  }
  return text;
}

size_t CodeIndex(int code) {
  const auto found = std::find(std::begin(kCodes), std::end(kCodes), code);
  return static_cast<size_t>(found - std::begin(kCodes));
}

}  // namespace

class HttpServer::Loop {
 public:
  explicit Loop(const HttpLimits& limits) : limits_(limits) {}

  ~Loop() {
    stopping_.store(true);
    if (thread_.joinable()) {
      Wake();
      thread_.join();
    }
  }

  void AddHandler(absl::string_view path, Handler handler) {
    MOEBIUS_CHECK(!thread_.joinable());
    handlers_[std::string(path)] = std::move(handler);
  }

  absl::Status Start(std::vector<OwnedFd> sockets) {
    MOEBIUS_CHECK(!thread_.joinable() && sockets_.empty());
    sockets_ = std::move(sockets);
    wake_ = OwnedFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (wake_.fd() < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no descriptor for the HTTP port: ", std::strerror(errno)));
    }
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  void WriteMetrics(MetricWriter& writer) const {
    for (size_t index = 0; index < std::size(kCodes); ++index) {
      writer.WriteCounter(Metric::kHttpRequests, answered_[index], {absl::StrCat(kCodes[index])});
    }
    writer.WriteCounter(Metric::kHttpRequests, answered_[std::size(kCodes)], {"other"});
    for (size_t index = 0; index < kNumCutReasons; ++index) {
      writer.WriteCounter(Metric::kHttpConnectionsCut, cut_[index], {kCutReasonNames[index]});
    }
  }

  size_t num_connections() const { return num_connections_.load(std::memory_order_relaxed); }

 private:
  using Connections = std::list<HttpConnection>;  // the oldest first

  void Run() {
    while (!stopping_.load()) {
      const absl::Duration now = Clock::Monotonic().Now();
      EndOverdue(now);
      Poll(now);
      ServeReady();
      AcceptNew();
      RemoveDone();
      num_connections_.store(connections_.size(), std::memory_order_relaxed);
    }
  }

  void Wake() const {
    const uint64_t one = 1;
    MOEBIUS_CHECK_EQ(write(wake_.fd(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }

  void Poll(absl::Duration now) {
    const bool listens = now >= accept_again_at_;
    absl::Duration until = listens ? absl::InfiniteDuration() : accept_again_at_;
    polled_.clear();
    polled_.push_back({wake_.fd(), POLLIN, 0});
    for (const OwnedFd& socket : sockets_) {
      polled_.push_back({socket.fd(), static_cast<short>(listens ? POLLIN : 0), 0});
    }
    for (const HttpConnection& connection : connections_) {
      polled_.push_back(
          {connection.fd(), static_cast<short>(connection.wants_to_write() ? POLLOUT : POLLIN), 0});
      until = std::min(until, connection.deadline());
    }
    int timeout_ms = -1;
    if (until != absl::InfiniteDuration()) {
      timeout_ms = static_cast<int>(std::max<int64_t>(
          0, absl::ToInt64Milliseconds(absl::Ceil(until - now, absl::Milliseconds(1)))));
    }
    poll(polled_.data(), polled_.size(), timeout_ms);
  }

  void ServeReady() {
    size_t index = 1 + sockets_.size();
    for (HttpConnection& connection : connections_) {
      if (polled_[index++].revents != 0) Advance(connection);
    }
    RemoveDone();
  }

  void Advance(HttpConnection& connection) {
    connection.Advance(Clock::Monotonic().Now());
    if (const HttpRequest* request = connection.pending_request()) {
      LimitPendingAnswers();
      Answer(connection, Respond(*request), request->head_only);
    } else if (connection.rejection().has_value()) {
      Answer(connection, *connection.rejection(), false);
    }
    if (connection.state() == HttpConnection::State::kBroken) Cut(connection, CutReason::kBroken);
  }

  void Answer(HttpConnection& connection, const HttpResponse& response, bool head_only) {
    answered_[CodeIndex(response.code)].Add();
    connection.Answer(FormatHttpResponse(response, head_only, absl::Now()),
                      Clock::Monotonic().Now());
  }

  HttpResponse Respond(const HttpRequest& request) const {
    const auto found = handlers_.find(request.path);
    if (found != handlers_.end()) return found->second(request);
    std::string paths = absl::StrJoin(
        handlers_, " ", [](std::string* out, const auto& handler) { out->append(handler.first); });
    return {404, "text/plain; charset=utf-8", absl::StrCat("there is: ", paths, "\n")};
  }

  // Answers that nobody takes must not pile up.
  void LimitPendingAnswers() {
    size_t pending = 0;
    for (const HttpConnection& connection : connections_) pending += connection.pending_bytes();
    for (HttpConnection& connection : connections_) {
      if (pending <= limits_.max_pending_bytes) return;
      if (connection.pending_bytes() == 0) continue;
      pending -= connection.pending_bytes();
      Cut(connection, CutReason::kTooMany);
    }
  }

  void EndOverdue(absl::Duration now) {
    for (HttpConnection& connection : connections_) {
      if (connection.deadline() > now) continue;
      // Who has been answered and keeps the connection open is no fault.
      if (connection.state() == HttpConnection::State::kClosing) {
        connection.End();
      } else {
        Cut(connection, CutReason::kTimeout);
      }
    }
    RemoveDone();
  }

  void AcceptNew() {
    for (size_t index = 0; index < sockets_.size(); ++index) {
      if (polled_[1 + index].revents == 0) continue;
      for (int count = 0; count < kAcceptsPerRound; ++count) {
        sockaddr_storage peer = {};
        socklen_t peer_size = sizeof(peer);
        OwnedFd accepted(accept4(sockets_[index].fd(), reinterpret_cast<sockaddr*>(&peer),
                                 &peer_size, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (accepted.fd() >= 0) {
          AddConnection(std::move(accepted), HostOf(peer));
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          accept_again_at_ = Clock::Monotonic().Now() + kAcceptPause;
          break;
        } else if (errno != ECONNABORTED && errno != EINTR) {
          break;
        }
      }
    }
  }

  void AddConnection(OwnedFd socket, std::string host) {
    const absl::Duration now = Clock::Monotonic().Now();
    if (connections_.size() >= limits_.max_connections) {
      Cut(MostDispensable(), CutReason::kTooMany);
      RemoveDone();
    }
    // Most requests have arrived with their connection.
    Advance(connections_.emplace_back(std::move(socket), std::move(host), limits_, now));
  }

  // Of the host that has most: it crowds out itself, and nobody else.
  HttpConnection& MostDispensable() {
    std::map<absl::string_view, size_t> counts;
    size_t most = 0;
    for (const HttpConnection& connection : connections_) {
      most = std::max(most, ++counts[connection.host()]);
    }
    HttpConnection* oldest = nullptr;
    for (HttpConnection& connection : connections_) {
      if (counts[connection.host()] < most) continue;
      if (connection.state() == HttpConnection::State::kReading) return connection;
      if (oldest == nullptr) oldest = &connection;
    }
    return *oldest;
  }

  // The connection leaves the list with the next RemoveDone.
  void Cut(HttpConnection& connection, CutReason reason) {
    cut_[static_cast<size_t>(reason)].Add();
    connection.End();
  }

  void RemoveDone() {
    connections_.remove_if([](const HttpConnection& connection) {
      return connection.state() == HttpConnection::State::kDone;
    });
  }

  const HttpLimits limits_;
  std::map<std::string, Handler> handlers_;
  std::vector<OwnedFd> sockets_;
  OwnedFd wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<size_t> num_connections_{0};
  std::array<Counter, std::size(kCodes) + 1> answered_;
  std::array<Counter, kNumCutReasons> cut_;

  // The thread's own.
  Connections connections_;
  std::vector<pollfd> polled_;  // wake_, sockets_, connections_
  absl::Duration accept_again_at_;
  std::thread thread_;
};

HttpServer::HttpServer(const HttpLimits& limits) : loop_(std::make_unique<Loop>(limits)) {}
HttpServer::~HttpServer() = default;
void HttpServer::AddHandler(absl::string_view path, Handler handler) {
  loop_->AddHandler(path, std::move(handler));
}
absl::Status HttpServer::Start(std::vector<OwnedFd> sockets) {
  return loop_->Start(std::move(sockets));
}
void HttpServer::WriteMetrics(MetricWriter& writer) const { loop_->WriteMetrics(writer); }
size_t HttpServer::num_connections() const { return loop_->num_connections(); }

void AddTelemetryHandlers(Registry& registry, Health& health, HttpServer& server) {
  server.AddHandler("/metrics", [&registry](const HttpRequest&) {
    return HttpResponse{200, "text/plain; version=0.0.4; charset=utf-8", registry.Scrape()};
  });
  const auto add_probe = [&server](absl::string_view path, std::function<Verdict()> probe) {
    server.AddHandler(path, [probe = std::move(probe)](const HttpRequest&) {
      const Verdict verdict = probe();
      HttpResponse response;
      response.code = verdict.ok() ? 200 : 503;
      response.body =
          verdict.ok() ? "ok\n" : absl::StrCat(absl::StrJoin(verdict.reasons, "\n"), "\n");
      return response;
    });
  };
  add_probe("/startupz", [&health] { return health.Startup(); });
  add_probe("/livez", [&health] { return health.Liveness(); });
  add_probe("/readyz", [&health] { return health.Readiness(); });
}

}  // namespace moebius
