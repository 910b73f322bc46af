// SPDX-License-Identifier: Apache-2.0
#include "moebius/rpc/rpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "moebius/base/clock.h"
#include "moebius/base/status.h"
#include "moebius/transport/grpc/grpc_log.h"
#include "moebius/transport/grpc/grpc_options.h"

namespace moebius {
namespace {

constexpr absl::Duration kConnectionAge = absl::Minutes(10);       // gRPC adds jitter of its own
constexpr absl::Duration kConnectionAgeGrace = absl::Minutes(60);  // longer than any answer
constexpr absl::Duration kConnectionIdle = absl::Minutes(30);
constexpr absl::Duration kHandshakeLimit = absl::Seconds(2);

constexpr uint64_t kPublicShare = 2;  // one half
constexpr uint64_t kAdminShare = 8;   // one eighth

absl::string_view PortName(PortKind kind) { return kind == PortKind::kPublic ? "public" : "admin"; }

AcceptLoopOptions LimitsOf(const RpcServerOptions& options) {
  AcceptLoopOptions limits;
  limits.max_connections = options.max_connections;
  limits.max_connections_per_address = options.max_connections_per_address;
  return limits;
}

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

void Configure(const RpcServerOptions& options, grpc::ServerBuilder& builder) {
  const uint64_t max_message = std::min(options.max_message_bytes, kMaxRpcMessageBytes);
  builder.SetMaxReceiveMessageSize(static_cast<int>(max_message));
  builder.SetMaxSendMessageSize(static_cast<int>(kMaxRpcMessageBytes));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Milliseconds(kHandshakeLimit));
  builder.SetResourceQuota(
      grpc::ResourceQuota("rpc").Resize(std::max(options.max_memory_bytes, 2 * max_message)));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxRpcMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kGrpcClientPing));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kGrpcPingTimeout));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Milliseconds(kGrpcMinPermittedPing));
  if (options.kind == PortKind::kPublic) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(kConnectionAge));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                               Milliseconds(kConnectionAgeGrace));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(kConnectionIdle));
  }
  if (options.meter != nullptr) {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> meters;
    meters.push_back(options.meter->MakeInterceptors());
    builder.experimental().SetInterceptorCreators(std::move(meters));
  }
  if (options.reflection) {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  } else {
    SwitchReflectionOff(builder);
  }
}

}  // namespace

void BoundByDescriptors(uint64_t max_descriptors, RpcServerOptions* options) {
  const uint64_t share = options->kind == PortKind::kPublic ? kPublicShare : kAdminShare;
  const uint64_t affordable =
      std::max<uint64_t>(2, max_descriptors / share / kDescriptorsPerConnection);
  options->max_connections =
      static_cast<uint32_t>(std::min<uint64_t>(options->max_connections, affordable));
  options->max_connections_per_address =
      std::min(options->max_connections_per_address, options->max_connections / 2);
}

// The gRPC server's door, which has no port of its own.
class RpcServer::Taker final : public ConnectionTaker {
 public:
  using Door = grpc::experimental::ExternalConnectionAcceptor;
  Taker(std::unique_ptr<Door> door, const RpcServerOptions& options)
      : door_(std::move(door)),
        kind_(options.kind),
        limits_(LimitsOf(options)),
        on_refusal_(options.on_refusal) {}
  void TakeConnection(OwnedFd socket) override {
    Door::NewConnectionParameters parameters;
    parameters.fd = socket.Release();
    door_->HandleNewConnection(&parameters);
  }
  void OnConnectionRefused(const std::string& host) override {
    if (!on_refusal_) return;
    on_refusal_({host, "connection"}, DescribeRefusal(host, PortName(kind_), limits_));
  }

 private:
  const std::unique_ptr<Door> door_;
  const PortKind kind_;
  const AcceptLoopOptions limits_;
  const std::function<void(const LogSource&, const std::string&)> on_refusal_;
};

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const RpcServerOptions& options, HealthRpc& health,
    const std::vector<grpc::Service*>& services) {
  const Exposure exposure = options.tls.has_value()  ? Exposure::kTls
                            : options.allow_insecure ? Exposure::kInsecureAllowed
                                                     : Exposure::kLoopbackOnly;
  MOEBIUS_RETURN_IF_ERROR(ValidateListenAddress(options.listen, exposure));
  EnsureGrpcLog();
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (options.tls.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(credentials, MakeWatchingServerCredentials(*options.tls));
  }
  grpc::ServerBuilder builder;
  Configure(options, builder);
  builder.RegisterService(&health);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<RpcServer> rpc_server(new RpcServer(options.kind, health));
  rpc_server->taker_ = std::make_unique<Taker>(
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials),
      options);
  MOEBIUS_ASSIGN_OR_RETURN(rpc_server->loop_,
                           AcceptLoop::Listen(LimitsOf(options), options.listen, Clock::Monotonic(),
                                              *rpc_server->taker_));
  rpc_server->server_ = builder.BuildAndStart();
  if (rpc_server->server_ == nullptr) {
    return absl::UnavailableError("gRPC did not start a server");
  }
  rpc_server->loop_->Run();
  return rpc_server;
}

RpcServer::RpcServer(PortKind kind, HealthRpc& health) : kind_(kind), health_(health) {}

RpcServer::~RpcServer() { Shutdown(absl::ZeroDuration()); }

void RpcServer::WriteMetrics(MetricWriter& writer) const {
  const absl::string_view port = PortName(kind_);
  const ConnectionFigures figures = connections();
  writer.WriteGauge(Metric::kRpcConnections, static_cast<double>(figures.open), {port});
  writer.WriteCounter(Metric::kRpcConnectionsRefused,
                      static_cast<double>(figures.refused + figures.refused_for_address), {port});
}

void RpcServer::Shutdown(absl::Duration grace) {
  if (server_ == nullptr) return;
  health_.EndWatches();
  loop_->StopAccepting();
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
  server_ = nullptr;
}

}  // namespace moebius
