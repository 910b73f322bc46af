// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/rpc_port.h"

#include <optional>
#include <string>

#include "moebius/service/exit_status.h"
#include "moebius/service/process.h"

namespace moebius {

HealthSource SourceOf(Health& health) {
  return [&health](const std::string& name) -> std::optional<bool> {
    if (name.empty() || name == "readiness") return health.Readiness().ok();
    if (name == "liveness") return health.Liveness().ok();
    if (name == "startup") return health.Startup().ok();
    return std::nullopt;
  };
}

absl::StatusOr<std::unique_ptr<RpcServer>> StartRpcPort(
    const ServiceConfig& config, RpcServerOptions options, HealthRpc& health,
    const std::vector<grpc::Service*>& services) {
  BoundByDescriptors(MaxDescriptors(), &options);
  options.tls = config.tls;
  options.allow_insecure = config.exposure == Exposure::kInsecureAllowed;
  auto server = RpcServer::Start(options, health, services);
  if (absl::IsUnavailable(server.status())) return WithExitCode(server.status(), kExitBind);
  return server;
}

}  // namespace moebius
