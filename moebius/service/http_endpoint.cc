// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/http_endpoint.h"

#include <utility>

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/service/exit_status.h"
#include "moebius/telemetry/process_metrics.h"
#include "moebius/transport/grpc/listen_socket.h"

namespace moebius {

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(
    const Address& listen, Registry& registry, Health& health,
    const std::function<void(HttpServer&)>& add_handlers) {
  absl::StatusOr<ListenSockets> sockets = OpenListenSockets(listen);
  if (!sockets.ok()) {
    return WithExitCode(WithContext(sockets.status(), "the HTTP port"), kExitBind);
  }
  std::unique_ptr<HttpEndpoint> endpoint(new HttpEndpoint);
  endpoint->address_ = sockets->address;
  AddTelemetryHandlers(registry, health, endpoint->server_);
  if (add_handlers != nullptr) add_handlers(endpoint->server_);
  MOEBIUS_RETURN_IF_ERROR(endpoint->server_.Start(std::move(sockets->sockets)));
  endpoint->metrics_ =
      registry.AddCollector([&server = endpoint->server_, &health](MetricWriter& writer) {
        server.WriteMetrics(writer);
        health.WriteMetrics(writer);
        WriteProcessMetrics(writer);
      });
  return endpoint;
}

}  // namespace moebius
