// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "moebius/rpc/health_rpc.h"
#include "moebius/rpc/rpc_server.h"
#include "moebius/service/flags.h"
#include "moebius/telemetry/health.h"

namespace moebius {

/// The names of probes over a process's health: "" and "readiness", "liveness", "startup". `health`
/// outlives the source.
HealthSource SourceOf(Health& health);

/// A gRPC port with the TLS and the exposure of the configuration, bounded by what descriptors the
/// process may have (BoundByDescriptors); `options` has the rest.
/// RpcServer::Start has the refusals; a port that is taken carries kExitBind.
absl::StatusOr<std::unique_ptr<RpcServer>> StartRpcPort(
    const ServiceConfig& config, RpcServerOptions options, HealthRpc& health,
    const std::vector<grpc::Service*>& services);

}  // namespace moebius
