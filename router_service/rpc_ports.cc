// SPDX-License-Identifier: Apache-2.0
#include "router_service/rpc_ports.h"

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"
#include "moebius/service/process.h"
#include "moebius/service/rpc_port.h"

namespace moebius {

namespace {

// Operators are few, and say who they are to the port itself.
constexpr int kOperatorsThreads = 1;

}  // namespace

RpcPorts::RpcPorts(const RouterRpcOptions& options, const RouterRpcOptions& operators,
                   RouterFront& front, Health& health)
    : rpc_(front, options),
      operators_rpc_(front, operators),
      admin_rpc_(front),
      health_rpc_(SourceOf(health)),
      admin_health_rpc_(SourceOf(health)) {}

absl::StatusOr<std::unique_ptr<RpcPorts>> RpcPorts::Start(const Options& options,
                                                          RouterFront& front, Health& health) {
  RpcServerOptions server;
  MOEBIUS_ASSIGN_OR_RETURN(server.listen, ParseAddress(options.public_listen));
  server.reflection = options.reflection;
  server.on_refusal = options.on_refusal;
  const uint64_t max_descriptors = MaxDescriptors();
  const uint32_t wanted = server.max_connections;
  BoundByDescriptors(max_descriptors, &server);
  server.max_message_bytes = MaxRouterRequestBytes(front.model_info(), options.max_forward_rows);
  RouterRpcOptions rpc;
  rpc.server = server;
  rpc.warnings = WarningsOf(options.config, server.listen, options.gate != nullptr);
  if (server.max_connections < wanted) {
    rpc.warnings.push_back(absl::StrCat(
        "the public port takes ", server.max_connections, " connections instead of ", wanted,
        ", for the process may have only ", max_descriptors,
        " file descriptors; raise the hard limit (ulimit -Hn, LimitNOFILE of the unit)"));
  }
  RouterRpcOptions operators = rpc;
  rpc.gate = options.gate;
  operators.blocking_threads = kOperatorsThreads;
  std::unique_ptr<RpcPorts> ports(new RpcPorts(rpc, operators, front, health));
  ports->gate_ = options.gate;
  ports->warnings_ = rpc.warnings;
  server.meter = &ports->calls_;
  MOEBIUS_ASSIGN_OR_RETURN(ports->public_server_, StartRpcPort(options.config, server,
                                                               ports->health_rpc_, {&ports->rpc_}));
  if (!options.config.admin_listen.has_value()) return ports;
  server.listen = *options.config.admin_listen;
  server.kind = PortKind::kAdmin;
  server.reflection = true;
  MOEBIUS_ASSIGN_OR_RETURN(ports->admin_server_,
                           StartRpcPort(options.config, server, ports->admin_health_rpc_,
                                        {&ports->operators_rpc_, &ports->admin_rpc_}));
  return ports;
}

std::vector<std::string> RpcPorts::WarningsOf(const ServiceConfig& config, const Address& listen,
                                              bool asks_for_keys) {
  if (!asks_for_keys || config.tls.has_value() || IsLoopback(listen)) return {};
  return {absl::StrCat("API keys come in clear text to ", FormatAddress(listen),
                       ": whoever listens on the way has them; give --tls-ca, --tls-cert and "
                       "--tls-key instead of --insecure (docs/tls.md)")};
}

std::string RpcPorts::admin_address() const {
  return admin_server_ == nullptr ? "" : FormatAddress(admin_server_->address());
}

void RpcPorts::WriteMetrics(MetricWriter& writer) const {
  calls_.WriteMetrics(writer);
  if (gate_ != nullptr) {
    gate_->WriteMetrics(writer);
  } else {
    writer.WriteCounter(Metric::kUnauthenticatedRequests, 0);  // nobody is asked for a key
  }
  public_server_->WriteMetrics(writer);
  if (admin_server_ != nullptr) admin_server_->WriteMetrics(writer);
}

}  // namespace moebius
