// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"

#include "moebius/telemetry/health.h"
#include "moebius/telemetry/http/http_server.h"
#include "moebius/telemetry/registry.h"
#include "moebius/transport/address.h"

namespace moebius {

/// The HTTP port of a process: /metrics, /livez, /readyz, /startupz and what `add_handlers` adds.
/// Its own figures, the loops of `health` and process_* are among the metrics.
class HttpEndpoint {
 public:
  /// `listen` has passed ValidateListenAddress; `registry` and `health` outlive the endpoint.
  /// UNAVAILABLE naming the port and the process that holds it, INVALID_ARGUMENT for an address
  /// that is not of this host; both with kExitBind.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(
      const Address& listen, Registry& registry, Health& health,
      const std::function<void(HttpServer&)>& add_handlers = nullptr);

  /// Where it listens, with the chosen port.
  const Address& address() const { return address_; }

 private:
  HttpEndpoint() = default;

  Address address_;
  HttpServer server_;
  Registry::Handle metrics_;  // goes first
};

}  // namespace moebius
