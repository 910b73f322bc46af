// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/rpc/call_meter.h"
#include "moebius/rpc/health_rpc.h"
#include "moebius/rpc/rpc_server.h"
#include "moebius/service/flags.h"
#include "moebius/telemetry/health.h"
#include "moebius/telemetry/registry.h"
#include "router_service/front.h"
#include "router_service/rpc/router_rpc.h"

namespace moebius {

/// The gRPC ports of a router process: the public one and, where the configuration has an address
/// for it, the operators', which has the service RouterAdmin too. Thread-safe.
class RpcPorts {
 public:
  struct Options {
    ServiceConfig config;
    std::string public_listen;     // "127.0.0.1:7701"
    bool reflection = false;       // at the public port; the operators' always has it
    int64_t max_forward_rows = 0;  // decides the largest message, with the model
    ClientGate* gate = nullptr;    // of the public port; null: anybody may call
    /// Connections that were closed at once, as RpcServerOptions::on_refusal; may be null.
    std::function<void(const LogSource&, const std::string&)> on_refusal;
  };

  /// Of an address and a configuration, whether keys that are asked for travel in clear text beyond
  /// this host: the sentence, with what to do. Pure.
  static std::vector<std::string> WarningsOf(const ServiceConfig& config, const Address& listen,
                                             bool asks_for_keys);

  /// Borrows `front`, `health` and the gate, which outlive the ports. Errors: those of
  /// StartRpcPort, and INVALID_ARGUMENT for an address that is none.
  static absl::StatusOr<std::unique_ptr<RpcPorts>> Start(const Options& options, RouterFront& front,
                                                         Health& health);

  std::string public_address() const { return FormatAddress(public_server_->address()); }
  /// Empty where there is no such port.
  std::string admin_address() const;
  /// What had better be otherwise, a sentence each, with what to do.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Of both ports, of the calls on them, and of who may call.
  void WriteMetrics(MetricWriter& writer) const;

  /// Of the public port: refuses new calls, waits up to `grace` for those under way.
  void ShutdownPublic(absl::Duration grace) { public_server_->Shutdown(grace); }

 private:
  RpcPorts(const RouterRpcOptions& options, const RouterRpcOptions& operators, RouterFront& front,
           Health& health);

  const ClientGate* gate_ = nullptr;  // null: anybody may call
  std::vector<std::string> warnings_;
  CallMeter calls_{"router", RouterApi()};
  RouterRpc rpc_, operators_rpc_;
  RouterAdminRpc admin_rpc_;
  HealthRpc health_rpc_, admin_health_rpc_;
  std::unique_ptr<RpcServer> public_server_, admin_server_;
};

}  // namespace moebius
