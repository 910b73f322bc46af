// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/raw_grpc_channel.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"

namespace moebius {
namespace {

// A message of one byte asks for the receiver's CPU seconds; any other is dropped.
constexpr char kSinkMethod[] = "/bench/Sink";
// Every message comes back.
constexpr char kEchoMethod[] = "/bench/Echo";

grpc::ByteBuffer BufferOf(const grpc::Slice& slice) { return grpc::ByteBuffer(&slice, 1); }

// Memory that outlives the write: no copy, as the transport has none.
grpc::ByteBuffer Borrow(const SharedBytes& bytes) {
  return BufferOf(grpc::Slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE));
}

class Service final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new Reactor(context->method() == kEchoMethod);
  }

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Reactor(bool echoes) : echoes_(echoes) { StartRead(&incoming_); }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);
      if (echoes_) {
        outgoing_.Swap(&incoming_);
        return StartWrite(&outgoing_);
      }
      if (incoming_.Length() == 1) {
        const double seconds = ProcessCpuSeconds();
        outgoing_ = BufferOf(grpc::Slice(&seconds, sizeof(seconds)));
        return StartWrite(&outgoing_);
      }
      incoming_.Clear();
      StartRead(&incoming_);
    }
    void OnWriteDone(bool ok) override {
      if (ok) StartRead(&incoming_);
    }
    void OnDone() override { delete this; }

   private:
    const bool echoes_;
    grpc::ByteBuffer incoming_;
    grpc::ByteBuffer outgoing_;
  };
};

class RawGrpcServer final : public BenchServer {
 public:
  RawGrpcServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~RawGrpcServer() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }
  bool is_running() const { return server_ != nullptr && port_ != 0; }
  std::string address() const override { return absl::StrCat("127.0.0.1:", port_); }

 private:
  Service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// One stream and the task that it is busy with. A task begins with a write and ends in OnReadDone.
class ClientStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  ClientStream(const std::shared_ptr<grpc::Channel>& channel, const char* method) {
    grpc::GenericStub stub(channel);
    stub.PrepareBidiStreamingCall(&context_, method, grpc::StubOptions(), this);
    AddHold();
    StartCall();
  }
  ~ClientStream() override {
    context_.TryCancel();
    RemoveHold();
    MutexLock lock(mutex_);
    while (!is_over_) changed_.Wait(mutex_);
  }

  // Writes the pool's messages until `until`, then the question. Returns their number and the
  // answer.
  struct Load {
    int64_t num_messages = 0;
    double their_cpu_seconds = 0;
  };
  absl::StatusOr<Load> Send(PayloadPool* pool, absl::Duration until) {
    pool_ = pool;
    until_ = until;
    load_ = Load();
    return Run([this] { WriteNext(); });
  }

  // Messages there and back until `until`.
  absl::StatusOr<Load> Echo(const grpc::ByteBuffer& message, absl::Duration until) {
    pool_ = nullptr;
    until_ = until;
    load_ = Load();
    outgoing_ = message;
    return Run([this] { Exchange(); });
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Complete(absl::UnavailableError("the stream has ended"));
    if (exchanging_) return OnHalfDone();
    WriteNext();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return Complete(absl::UnavailableError("the stream has ended"));
    OnHalfDone();
  }
  void OnDone(const grpc::Status& status) override {
    Complete(absl::UnavailableError(status.error_message()));
    MutexLock lock(mutex_);
    is_over_ = true;
    changed_.SignalAll();
  }

 private:
  // A write and the read of its answer; they are done in any order.
  void Exchange() {
    exchanging_ = true;
    halves_done_.store(0);
    StartRead(&incoming_);
    StartWrite(&outgoing_);
  }
  void OnHalfDone() {
    if (halves_done_.fetch_add(1) == 0) return;
    exchanging_ = false;
    if (pool_ != nullptr) return OnAnswer();
    ++load_.num_messages;
    if (Clock::Monotonic().Now() >= until_) return Complete(absl::OkStatus());
    outgoing_.Swap(&incoming_);
    Exchange();
  }
  void WriteNext() {
    if (Clock::Monotonic().Now() < until_) {
      ++load_.num_messages;
      outgoing_ = Borrow(pool_->Next());
      StartWrite(&outgoing_);
    } else {
      outgoing_ = BufferOf(grpc::Slice("?", 1));
      Exchange();
    }
  }
  void OnAnswer() {
    grpc::Slice slice;
    if (!incoming_.DumpToSingleSlice(&slice).ok() ||
        slice.size() != sizeof(load_.their_cpu_seconds)) {
      return Complete(absl::InternalError("no answer to the question"));
    }
    std::memcpy(&load_.their_cpu_seconds, slice.begin(), slice.size());
    Complete(absl::OkStatus());
  }

  template <typename Begin>
  absl::StatusOr<Load> Run(Begin begin) {
    {
      MutexLock lock(mutex_);
      result_.reset();
    }
    begin();
    const absl::Duration end = Clock::Monotonic().Now() + kBenchPatience;
    MutexLock lock(mutex_);
    while (!result_.has_value()) {
      const absl::Duration left = end - Clock::Monotonic().Now();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError("the raw stream does not answer");
      }
      changed_.WaitWithTimeout(mutex_, left);
    }
    if (!result_->ok()) return *result_;
    return load_;
  }
  void Complete(const absl::Status& status) {
    MutexLock lock(mutex_);
    if (!result_.has_value()) result_ = status;
    changed_.SignalAll();
  }

  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  // Of the callbacks from the first write of a task to its end.
  PayloadPool* pool_ = nullptr;
  absl::Duration until_;
  Load load_;
  bool exchanging_ = false;
  std::atomic<int> halves_done_{0};

  Mutex mutex_;
  CondVar changed_;
  std::optional<absl::Status> result_ MOEBIUS_GUARDED_BY(mutex_);
  bool is_over_ MOEBIUS_GUARDED_BY(mutex_) = false;
};

class RawGrpcChannel final : public BenchChannel {
 public:
  explicit RawGrpcChannel(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    sink_ = std::make_unique<ClientStream>(channel_, kSinkMethod);
    echo_ = std::make_unique<ClientStream>(channel_, kEchoMethod);
  }

  absl::StatusOr<Throughput> MeasureBandwidth(int64_t message_bytes,
                                              absl::Duration duration) override {
    const Clock& clock = Clock::Monotonic();
    PayloadPool pool(message_bytes);
    const absl::StatusOr<ClientStream::Load> before = sink_->Send(&pool, clock.Now());
    if (!before.ok()) return before.status();
    const double own_cpu_before = ProcessCpuSeconds();
    const absl::Duration start = clock.Now();
    const absl::StatusOr<ClientStream::Load> load = sink_->Send(&pool, start + duration);
    if (!load.ok()) return load.status();
    Throughput throughput;
    throughput.seconds = absl::ToDoubleSeconds(clock.Now() - start);
    throughput.bytes = static_cast<double>(load->num_messages * message_bytes);
    throughput.cpu_seconds =
        ProcessCpuSeconds() - own_cpu_before + load->their_cpu_seconds - before->their_cpu_seconds;
    return throughput;
  }

  absl::StatusOr<absl::Duration> MeasureRoundTrip(absl::Duration duration) override {
    const Clock& clock = Clock::Monotonic();
    const std::string ping(static_cast<size_t>(kPingBytes), 'p');
    const absl::Duration start = clock.Now();
    const absl::StatusOr<ClientStream::Load> load =
        echo_->Echo(BufferOf(grpc::Slice(ping)), start + duration);
    if (!load.ok()) return load.status();
    return (clock.Now() - start) / load->num_messages;
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<ClientStream> sink_;
  std::unique_ptr<ClientStream> echo_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BenchServer>> StartRawGrpcServer() {
  auto server = std::make_unique<RawGrpcServer>();
  if (!server->is_running()) return absl::UnavailableError("gRPC did not start a server");
  return std::unique_ptr<BenchServer>(std::move(server));
}

absl::StatusOr<std::unique_ptr<BenchChannel>> OpenRawGrpcChannel(const std::string& address) {
  return std::unique_ptr<BenchChannel>(std::make_unique<RawGrpcChannel>(address));
}

}  // namespace moebius
