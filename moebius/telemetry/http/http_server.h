// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/base/owned_fd.h"
#include "moebius/telemetry/health.h"
#include "moebius/telemetry/http/http_message.h"
#include "moebius/telemetry/registry.h"

namespace moebius {

struct HttpLimits {
  /// One more, and one is cut: of the host that has most of them, the oldest without an answer.
  size_t max_connections = 64;
  size_t max_request_bytes = 8192;      // request line and headers
  size_t max_pending_bytes = 16 << 20;  // answers that nobody reads; beyond, the oldest is cut
  absl::Duration request_timeout = absl::Seconds(5);  // from accept to the whole request
  absl::Duration answer_timeout = absl::Seconds(10);  // until the answer has been taken
  absl::Duration close_timeout = absl::Seconds(1);    // for the other side to see it
};

/// Answers GET and HEAD from memory on one thread, for probes, scrapers and a status page. One slow
/// or silent connection, or a thousand, do not delay the others: nothing waits for any of them.
///
/// Invariants: 1. memory is bounded by the limits; 2. one request per connection, and what follows
/// it is thrown away; 3. every connection ends by its timeouts.
///
/// AddHandler before Start; the rest is thread-safe. Destruction ends all connections.
class HttpServer {
 public:
  /// On the server's thread: must not block.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  explicit HttpServer(const HttpLimits& limits = {});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// `path` in full: "/metrics".
  void AddHandler(absl::string_view path, Handler handler);

  /// Serves what arrives at `sockets`: bound, listening, non-blocking. Once.
  absl::Status Start(std::vector<OwnedFd> sockets);

  /// Writes moebius_http_*.
  void WriteMetrics(MetricWriter& writer) const;
  size_t num_connections() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

/// /metrics, /livez, /readyz and /startupz. A probe that fails is 503 with a reason on each line.
/// Borrows both.
void AddTelemetryHandlers(Registry& registry, Health& health, HttpServer& server);

}  // namespace moebius
