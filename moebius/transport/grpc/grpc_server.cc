// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/grpc_server.h"

#include <fcntl.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/server_callback.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
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

constexpr uint64_t kWakeId = ~uint64_t{0};
constexpr uint64_t kListenerBit = uint64_t{1} << 63;
// Connections taken in one turn, so that a flood of them does not keep silent ones from being cut.
constexpr int kMaxAcceptsPerTurn = 64;
// How long to leave connections waiting when there is no descriptor for them.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

std::string WithoutZone(std::string address) {
  const size_t zone = address.find('%');
  const size_t end = address.find(']');
  if (zone != std::string::npos && end != std::string::npos && zone < end) {
    address.erase(zone, end - zone);
  }
  return address;
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
  void BeginWrite(const grpc::ByteBuffer* buffer) override MOEBIUS_REQUIRES(mutex_) {
    StartWrite(buffer);
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
      server_.table_.OnStreamBegin(WithoutZone(PeerAddress(context->peer())));
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

GrpcCallbackThreads::GrpcCallbackThreads()
    : service_(std::make_unique<pb::Data::WithRawCallbackMethod_Stream<pb::Data::Service>>()) {
  grpc::ServerBuilder builder;
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
}

GrpcCallbackThreads::~GrpcCallbackThreads() = default;

GrpcServer::GrpcServer(const GrpcOptions& options, ListenSockets sockets, TlsFiles* tls,
                       const Clock& clock, LinkAcceptor& acceptor,
                       std::shared_ptr<StreamCount> count)
    : options_(options),
      tls_(tls),
      clock_(clock),
      count_(std::move(count)),
      sockets_(std::move(sockets)),
      table_(options.max_connections, options.max_connections_per_address),
      acceptor_(&acceptor) {}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcOptions& options,
                                                              const Address& address, TlsFiles* tls,
                                                              const Clock& clock,
                                                              LinkAcceptor& acceptor,
                                                              std::shared_ptr<StreamCount> count) {
  MOEBIUS_ASSIGN_OR_RETURN(ListenSockets sockets, OpenListenSockets(address));
  std::unique_ptr<GrpcServer> server(
      new GrpcServer(options, std::move(sockets), tls, clock, acceptor, std::move(count)));
  MOEBIUS_RETURN_IF_ERROR(server->StartLoop());
  return server;
}

absl::Status GrpcServer::StartLoop() {
  epoll_ = OwnedFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = OwnedFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  bool watched = epoll_.fd() >= 0 && wake_.fd() >= 0 && Watch(wake_.fd(), kWakeId, EPOLLIN);
  for (size_t i = 0; watched && i < sockets_.sockets.size(); ++i) {
    watched = Watch(sockets_.sockets[i].fd(), kListenerBit | i, EPOLLIN);
  }
  if (!watched) return absl::ResourceExhaustedError("no descriptor for the accept loop");
  MOEBIUS_RETURN_IF_ERROR(AddGeneration(tls_ == nullptr ? nullptr : tls_->Current()));
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

GrpcServer::~GrpcServer() {
  if (!thread_.joinable()) return;
  StopAccepting();
  thread_.join();
}

void GrpcServer::StopAccepting() {
  {
    MutexLock lock(acceptor_mutex_);
    acceptor_ = nullptr;
  }
  stopping_.store(true);
  Wake();
  MutexLock lock(state_mutex_);
  while (is_listening_) state_changed_.Wait(state_mutex_);
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
  table_.OnStreamEnd(connection, clock_.Now());
  --generation.num_streams;
  Wake();
  // The last touch: the server may go when there are no streams.
  --num_streams_;
}

void GrpcServer::Wake() {
  const uint64_t one = 1;
  // Fails only when it is awake anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.fd(), &one, sizeof(one));
}

bool GrpcServer::Watch(int fd, uint64_t id, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  return epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event) == 0;
}

int GrpcServer::WaitMilliseconds() const {
  // Soon again: the last stream counts down after it has called Wake.
  if (stopping_.load()) return 10;
  const absl::Duration now = clock_.Now();
  absl::Duration next = table_.OldestSilence() + options_.silence_limit;
  if (accept_again_ > now) next = std::min(next, accept_again_);
  if (next == absl::InfiniteDuration()) return -1;
  return static_cast<int>(absl::ToInt64Milliseconds(std::max(next - now, absl::ZeroDuration())) +
                          1);
}

void GrpcServer::Loop() {
  std::array<epoll_event, 64> events;
  while (true) {
    const int count = epoll_wait(epoll_.fd(), events.data(), events.size(), WaitMilliseconds());
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[i].data.u64;
      if (id == kWakeId) {
        uint64_t ignored = 0;
        [[maybe_unused]] const ssize_t size = read(wake_.fd(), &ignored, sizeof(ignored));
      } else if ((id & kListenerBit) != 0) {
        if (!stopping_.load()) Accept(sockets_.sockets[id & ~kListenerBit].fd());
      } else {
        table_.Remove(id);
      }
    }
    if (accept_again_ > absl::ZeroDuration() && clock_.Now() >= accept_again_) {
      accept_again_ = absl::ZeroDuration();
      for (size_t i = 0; i < sockets_.sockets.size(); ++i) {
        Watch(sockets_.sockets[i].fd(), kListenerBit | i, EPOLLIN);
      }
    }
    const bool stopping = stopping_.load();
    table_.CutSilent(stopping ? absl::InfiniteDuration() : clock_.Now() - options_.silence_limit);
    EndOldGenerations();
    if (!stopping) continue;
    sockets_.sockets.clear();
    {
      MutexLock lock(state_mutex_);
      is_listening_ = false;
      state_changed_.SignalAll();
    }
    if (num_streams_.load() == 0) break;
  }
  // What comes in now finds no acceptor, and is over when the servers are.
  generations_.clear();
  is_over_.store(true);
}

void GrpcServer::EndOldGenerations() {
  for (auto it = generations_.begin(); std::next(it) != generations_.end();) {
    const Generation& generation = **it;
    if (generation.num_streams.load() == 0 && table_.num_of_generation(generation.id) == 0) {
      it = generations_.erase(it);
    } else {
      ++it;
    }
  }
}

void GrpcServer::Accept(int listener) {
  for (int i = 0; i < kMaxAcceptsPerTurn; ++i) {
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    OwnedFd socket(accept4(listener, reinterpret_cast<sockaddr*>(&address), &size,
                           SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.fd() >= 0) {
      Adopt(std::move(socket), RemoteAddressOf(address));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // They wait in the kernel; looking again at once would only burn a core.
      accept_again_ = clock_.Now() + kAcceptPause;
      for (const OwnedFd& waiting : sockets_.sockets) {
        epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, waiting.fd(), nullptr);
      }
      return;
    }
    // A connection that was gone before it was taken is no reason to stop.
    if (errno != ECONNABORTED && errno != EINTR && errno != EPROTO) return;
  }
}

void GrpcServer::Adopt(OwnedFd socket, const RemoteAddress& remote) {
  if (!table_.HasRoomFor(remote.host)) return;
  if (tls_ != nullptr) {
    std::shared_ptr<const TlsMaterial> material = tls_->Current();
    if (material->version != generations_.back()->tls_version) {
      // The former server goes on when gRPC does not start another.
      AddGeneration(std::move(material)).IgnoreError();
    }
  }
  const int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  OwnedFd duplicate(fcntl(socket.fd(), F_DUPFD_CLOEXEC, 0));
  if (duplicate.fd() < 0) return;
  Generation& generation = *generations_.back();
  const int watched = duplicate.fd();
  const uint64_t id = table_.Add(remote, std::move(duplicate), generation.id, clock_.Now());
  // Only what is reported without being asked for: the socket was shut down, or reset.
  if (!Watch(watched, id, 0)) return table_.Remove(id);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.fd = socket.Release();
  generation.acceptor->HandleNewConnection(&parameters);
}

}  // namespace moebius
