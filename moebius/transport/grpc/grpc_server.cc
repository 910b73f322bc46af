// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/grpc_server.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/transport/grpc/grpc_client.h"
#include "proto/moebius/api/data/v1/data.grpc.pb.h"

namespace moebius {
namespace {

namespace pb = ::moebius::api::data::v1;

std::string WithoutZone(std::string address) {
  const size_t zone = address.find('%');
  const size_t end = address.find(']');
  if (zone != std::string::npos && end != std::string::npos && zone < end) {
    address.erase(zone, end - zone);
  }
  return address;
}

AcceptLoopOptions LimitsOf(const GrpcOptions& options) {
  AcceptLoopOptions limits;
  limits.max_connections = options.max_connections;
  limits.max_connections_per_address = options.max_connections_per_address;
  limits.silence_limit = options.silence_limit;
  return limits;
}

}  // namespace

// The accepting end of a stream.
class GrpcServer::Stream final
    : public GrpcStream,
      public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(GrpcServer& server, Generation& generation, grpc::CallbackServerContext& context,
         uint64_t connection)
      : GrpcStream({server.options_.max_payload_bytes, server.options_.max_outstanding_bytes},
                   server.count_),
        server_(server),
        generation_(generation),
        connection_(connection),
        context_(&context) {
    SetFacts({PeerAddress(context.peer()), ProvedIdentity(*context.auth_context()), false});
  }

  // gRPC has it from now on, until OnDone.
  void KeepUntilOver() { self_ = shared_from_this(); }
  void Reject(const absl::Status& reason) {
    MutexLock lock(mutex_);
    local_reason_ = reason;
    may_finish_ = true;
    End();
  }

 protected:
  // A stream that ended before this has waited with its OnDone, and so with OnClosed.
  void Open() override {
    MutexLock lock(mutex_);
    may_finish_ = true;
    if (ended_) {
      OnWritesOver();
    } else {
      StartRead(&read_buffer_);
    }
  }
  void BeginRead(grpc::ByteBuffer* buffer) override { StartRead(buffer); }
  void BeginWrite(const grpc::ByteBuffer* buffer, Flush flush) override MOEBIUS_REQUIRES(mutex_) {
    StartWrite(buffer, WriteOptionsOf(flush));
  }
  void EndWriting() override MOEBIUS_REQUIRES(mutex_) { FinishOnce(grpc::Status::OK); }
  void OnWritesOver() override MOEBIUS_REQUIRES(mutex_) {
    if (!may_finish_) return;
    FinishOnce(local_reason_.ok()
                   ? grpc::Status::OK
                   : grpc::Status(static_cast<grpc::StatusCode>(local_reason_.code()),
                                  std::string(local_reason_.message())));
  }
  void Cancel() override {
    MutexLock lock(mutex_);
    if (context_ == nullptr) return;
    if (!is_finished_) local_reason_ = absl::UnavailableError("the peer ended the link");
    context_->TryCancel();
    may_finish_ = true;
    End();
    if (!is_writing_) OnWritesOver();
  }
  void Refuse() override {
    MutexLock lock(mutex_);
    // A write that waits for the other end would keep the reason from it for ever.
    if (is_writing_ && context_ != nullptr) context_->TryCancel();
  }

  void OnReadDone(bool ok) override { OnRead(ok); }
  void OnWriteDone(bool ok) override { OnWritten(ok); }
  void OnCancel() override {
    MutexLock lock(mutex_);
    End();
  }
  void OnDone() override {
    const bool is_lost = context_->IsCancelled();
    OnOver(is_lost ? absl::UnavailableError("the connection or the peer's end of it has gone")
                   : absl::OkStatus());
    std::shared_ptr<GrpcStream> self;  // made before the lock, so it goes after it
    server_.OnStreamOver(generation_, connection_);
    MutexLock lock(mutex_);
    context_ = nullptr;
    self.swap(self_);
  }

 private:
  void FinishOnce(const grpc::Status& status) MOEBIUS_REQUIRES(mutex_) {
    if (!std::exchange(is_finished_, true)) Finish(status);
  }

  GrpcServer& server_;      // lives until OnStreamOver
  Generation& generation_;  // the same
  const uint64_t connection_;
  grpc::CallbackServerContext* context_;  // null when over; set under mutex_
  bool is_finished_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool may_finish_ MOEBIUS_GUARDED_BY(mutex_) = false;  // there is a sink, or will be none
  std::shared_ptr<GrpcStream> self_;
};

class GrpcServer::Service final : public pb::Data::WithRawCallbackMethod_Stream<pb::Data::Service> {
 public:
  Service(GrpcServer& server, Generation& generation) : server_(server), generation_(generation) {}
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Stream(
      grpc::CallbackServerContext* context) override;

 private:
  GrpcServer& server_;
  Generation& generation_;
};

// A gRPC server with the certificate of one time.
struct GrpcServer::Generation {
  uint64_t id = 0;
  uint64_t tls_version = 0;
  std::atomic<uint64_t> num_streams{0};
  std::unique_ptr<Service> service;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<grpc::Server> server;

  ~Generation() {
    if (server != nullptr) server->Shutdown(std::chrono::system_clock::now());
  }
};

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* GrpcServer::Service::Stream(
    grpc::CallbackServerContext* context) {
  ++server_.num_streams_;
  ++generation_.num_streams;
  const uint64_t connection =
      server_.loop_->table().OnStreamBegin(WithoutZone(PeerAddress(context->peer())));
  auto stream = std::make_shared<GrpcServer::Stream>(server_, generation_, *context, connection);
  stream->KeepUntilOver();
  MutexLock lock(server_.acceptor_mutex_);
  if (server_.acceptor_ != nullptr) {
    server_.acceptor_->OnLink(std::make_unique<GrpcLink>(stream));
  } else {
    stream->Reject(absl::UnavailableError("the process does not listen any more"));
  }
  return stream.get();
}

GrpcServer::GrpcServer(const GrpcOptions& options, TlsFiles* tls, const Clock& clock,
                       LinkAcceptor& acceptor, std::shared_ptr<StreamCount> count)
    : options_(options), tls_(tls), clock_(clock), count_(std::move(count)), acceptor_(&acceptor) {}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcOptions& options,
                                                              const Address& address, TlsFiles* tls,
                                                              const Clock& clock,
                                                              LinkAcceptor& acceptor,
                                                              std::shared_ptr<StreamCount> count) {
  std::unique_ptr<GrpcServer> server(
      new GrpcServer(options, tls, clock, acceptor, std::move(count)));
  MOEBIUS_ASSIGN_OR_RETURN(server->loop_,
                           AcceptLoop::Listen(LimitsOf(options), address, clock, *server));
  MOEBIUS_RETURN_IF_ERROR(server->AddGeneration(tls == nullptr ? nullptr : tls->Current()));
  server->loop_->Run();
  return server;
}

GrpcServer::~GrpcServer() {
  if (loop_ == nullptr) return;
  StopAccepting();
  loop_->Finish();  // streams that end meanwhile still use it
}

void GrpcServer::StopAccepting() {
  {
    MutexLock lock(acceptor_mutex_);
    acceptor_ = nullptr;
  }
  loop_->StopAccepting();
}

absl::Status GrpcServer::AddGeneration(const std::shared_ptr<const TlsMaterial>& material) {
  auto generation = std::make_unique<Generation>();
  generation->id = next_generation_++;
  generation->tls_version = material == nullptr ? 0 : material->version;
  generation->service = std::make_unique<Service>(*this, *generation);
  grpc::ServerBuilder builder;
  ConfigureServer(options_, builder);
  generation->acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      material == nullptr ? grpc::InsecureServerCredentials()
                          : MakeServerCredentials(tls_->options(), *material));
  builder.RegisterService(generation->service.get());
  generation->server = builder.BuildAndStart();
  if (generation->server == nullptr) {
    return absl::UnavailableError("gRPC did not start a server");
  }
  generations_.push_back(std::move(generation));
  return absl::OkStatus();
}

void GrpcServer::OnStreamOver(Generation& generation, uint64_t connection) {
  loop_->table().OnStreamEnd(connection, clock_.Now());
  --generation.num_streams;
  loop_->Wake();
  // The last touch: the server may go when there are no streams.
  --num_streams_;
}

uint64_t GrpcServer::PrepareConnection() {
  if (tls_ != nullptr) {
    const std::shared_ptr<const TlsMaterial> material = tls_->Current();
    if (material->version != generations_.back()->tls_version) {
      // The former server goes on when gRPC does not start another.
      AddGeneration(material).IgnoreError();
    }
  }
  return generations_.back()->id;
}

void GrpcServer::TakeConnection(OwnedFd socket) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.fd = socket.Release();
  generations_.back()->acceptor->HandleNewConnection(&parameters);
}

void GrpcServer::OnConnectionRefused(const std::string& host) {
  if (!options_.on_refusal) return;
  options_.on_refusal({host, "data connection"},
                      DescribeRefusal(host, kGrpcDataPort, LimitsOf(options_)));
}

void GrpcServer::OnConnectionUnused(const std::string& host) {
  if (!options_.on_refusal) return;
  options_.on_refusal(
      {host, "handshake"},
      absl::StrCat(
          "a connection of ", host, " to the ", kGrpcDataPort, " port ended before a peer spoke: ",
          tls_ == nullptr ? "it is no peer's, or the peer's has TLS and this has none"
                          : "it has no TLS, a certificate that this process does not take, "
                            "or does not take this process's"));
}

// Former generations end with their last stream and connection.
void GrpcServer::OnTurn() {
  for (auto it = generations_.begin(); std::next(it) != generations_.end();) {
    const Generation& generation = **it;
    if (generation.num_streams.load() == 0 &&
        loop_->table().num_of_generation(generation.id) == 0) {
      it = generations_.erase(it);
    } else {
      ++it;
    }
  }
}

bool GrpcServer::IsOver() const { return num_streams_.load() == 0; }

// What comes in now finds no acceptor, and is over when the servers are.
void GrpcServer::OnEnd() { generations_.clear(); }

}  // namespace moebius
