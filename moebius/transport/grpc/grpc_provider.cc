// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/grpc_provider.h"

#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"
#include "moebius/transport/grpc/callback_threads.h"
#include "moebius/transport/grpc/channel_keeper.h"
#include "moebius/transport/grpc/grpc_client.h"
#include "moebius/transport/grpc/grpc_log.h"
#include "moebius/transport/grpc/grpc_server.h"

namespace moebius {
namespace {

// What gRPC may take beyond the limit for connecting until it says so.
constexpr absl::Duration kConnectGrace = absl::Seconds(1);

void Add(const ConnectionFigures& from, ConnectionFigures* to) {
  to->accepted += from.accepted;
  to->refused += from.refused;
  to->refused_for_address += from.refused_for_address;
  to->silent_cut += from.silent_cut;
  to->unused += from.unused;
  to->open += from.open;
}

}  // namespace

class GrpcLinkProvider::Core {
 public:
  Core(const GrpcOptions& options, std::unique_ptr<TlsFiles> tls, const Clock& clock)
      : threads_(options.max_polling_threads),
        options_(options),
        tls_(std::move(tls)),
        clock_(clock),
        keeper_(clock, options.connect_timeout + kConnectGrace) {}
  ~Core() {
    {
      MutexLock lock(mutex_);
      servers_.clear();
    }
    count_->WaitForZero();
  }

  Exposure exposure() const {
    if (tls_ != nullptr) return Exposure::kTls;
    return options_.allow_insecure ? Exposure::kInsecureAllowed : Exposure::kLoopbackOnly;
  }

  absl::StatusOr<std::shared_ptr<GrpcServer>> Listen(const Address& address,
                                                     LinkAcceptor& acceptor) {
    MOEBIUS_RETURN_IF_ERROR(ValidateListenAddress(address, exposure()));
    MOEBIUS_ASSIGN_OR_RETURN(
        std::shared_ptr<GrpcServer> server,
        GrpcServer::Start(options_, address, tls_.get(), clock_, acceptor, count_));
    MutexLock lock(mutex_);
    ForgetEnded();
    servers_.push_back(server);
    return server;
  }

  std::unique_ptr<Link> Dial(const Address& address) {
    std::shared_ptr<grpc::ChannelCredentials> credentials =
        tls_ == nullptr ? grpc::InsecureChannelCredentials()
                        : MakeChannelCredentials(tls_->options(), *tls_->Current());
    return MakeClientLink(options_, address, std::move(credentials), count_, keeper_);
  }

  GrpcFigures figures() const {
    GrpcFigures figures;
    figures.num_streams = count_->value();
    figures.num_closing = keeper_.num_kept();
    if (tls_ != nullptr) {
      figures.tls_expires = tls_->Current()->expires;  // first: it may reload
      figures.tls_reloads = tls_->reloads();
      figures.tls_failed_reloads = tls_->failed_reloads();
    }
    MutexLock lock(mutex_);
    figures.connections = ended_;
    for (const auto& server : servers_) Add(server->figures(), &figures.connections);
    return figures;
  }

 private:
  // Servers without listener and streams. Quick: their threads have come to the end.
  void ForgetEnded() MOEBIUS_REQUIRES(mutex_) {
    for (auto it = servers_.begin(); it != servers_.end();) {
      if ((*it)->is_over()) {
        Add((*it)->figures(), &ended_);
        it = servers_.erase(it);
      } else {
        ++it;
      }
    }
  }

  const GrpcCallbackThreads threads_;
  const GrpcOptions options_;
  const std::unique_ptr<TlsFiles> tls_;
  const Clock& clock_;
  ChannelKeeper keeper_;  // outlives the streams, which the destructor waits for
  const std::shared_ptr<StreamCount> count_ = std::make_shared<StreamCount>();
  mutable Mutex mutex_;
  ConnectionFigures ended_ MOEBIUS_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<GrpcServer>> servers_ MOEBIUS_GUARDED_BY(mutex_);
};

namespace {

class Listener final : public LinkListener {
 public:
  explicit Listener(std::shared_ptr<GrpcServer> server) : server_(std::move(server)) {}
  ~Listener() override { server_->StopAccepting(); }
  Address address() const override { return server_->address(); }

 private:
  const std::shared_ptr<GrpcServer> server_;  // the provider keeps it until its last stream
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcLinkProvider>> GrpcLinkProvider::Make(
    const GrpcOptions& options, std::optional<TlsOptions> tls, const Clock& clock) {
  EnsureGrpcLog();
  if (options.max_payload_bytes == 0 || options.max_payload_bytes > kMaxMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("grpc: max_payload_bytes is ",
                                                   options.max_payload_bytes, ", not in [1, ",
                                                   kMaxMessageBytes, "]"));
  }
  MOEBIUS_ASSIGN_OR_RETURN(const GrpcOptions bounded, WithQuota(options));
  std::unique_ptr<TlsFiles> files;
  if (tls.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(files, TlsFiles::Open(*tls, clock));
  }
  return std::unique_ptr<GrpcLinkProvider>(
      new GrpcLinkProvider(std::make_shared<Core>(bounded, std::move(files), clock)));
}

GrpcLinkProvider::~GrpcLinkProvider() = default;

absl::StatusOr<std::unique_ptr<LinkListener>> GrpcLinkProvider::Listen(const Address& address,
                                                                       LinkAcceptor& acceptor) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::shared_ptr<GrpcServer> server,
                           core_->Listen(address, acceptor));
  return std::unique_ptr<LinkListener>(new Listener(server));
}

absl::StatusOr<std::unique_ptr<Link>> GrpcLinkProvider::Dial(const Address& address, Lane) {
  if (address.port == 0 || IsUnspecified(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("grpc: ", FormatAddress(address), " is no address to connect to"));
  }
  return core_->Dial(address);
}

absl::string_view GrpcLinkProvider::exposure() const { return DescribeExposure(core_->exposure()); }

GrpcFigures GrpcLinkProvider::figures() const { return core_->figures(); }

void GrpcLinkProvider::WriteMetrics(MetricWriter& writer) const {
  const GrpcFigures now = figures();
  writer.WriteGauge(Metric::kRpcConnections, static_cast<double>(now.connections.open),
                    {kGrpcDataPort});
  writer.WriteCounter(
      Metric::kRpcConnectionsRefused,
      static_cast<double>(now.connections.refused + now.connections.refused_for_address),
      {kGrpcDataPort});
  writer.WriteCounter(Metric::kTransportErrors, static_cast<double>(now.connections.unused),
                      {name(), "handshake"});
  if (!now.tls_expires.has_value()) return;
  writer.WriteGauge(Metric::kTlsCertificateExpiry,
                    static_cast<double>(absl::ToUnixSeconds(*now.tls_expires)));
  writer.WriteCounter(Metric::kTlsReloads, static_cast<double>(now.tls_reloads), {"used"});
  writer.WriteCounter(Metric::kTlsReloads, static_cast<double>(now.tls_failed_reloads),
                      {"refused"});
}

}  // namespace moebius
