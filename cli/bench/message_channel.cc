// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/message_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/base/status.h"
#include "moebius/transport/grpc/grpc_provider.h"
#include "moebius/transport/loopback/loopback.h"
#include "moebius/transport/shm/shm_provider.h"
#include "moebius/transport/transport.h"

namespace moebius {
namespace {

constexpr FrameKind kLoadKind{16};
constexpr FrameKind kQuestionKind{17};  // how much CPU time has the other process used?
constexpr FrameKind kAnswerKind{18};
constexpr FrameKind kPingKind{19};
constexpr FrameKind kPongKind{20};

constexpr Lane kLoadLane = Lane::kBulk;
constexpr Lane kPingLane = Lane::kDecode;
// Messages are given over in batches; so many of them wait at most.
constexpr int64_t kBatchBytes = 512 << 10;
constexpr int kMaxBatches = 4;

absl::StatusOr<TransportOptions> BenchTransportOptions(const std::string& name) {
  FrameLimitsConfig config;
  config.max_rows = 4;
  config.max_row_width = kMaxBenchMessageBytes / 4 / 4;
  TransportOptions options;
  options.name = name;
  MOEBIUS_ASSIGN_OR_RETURN(options.limits, BuildFrameLimits(config));
  // Every lane takes two of the largest frames at least.
  options.window_bytes[LaneIndex(Lane::kControl)] = 4 << 20;
  options.max_queued_bytes = uint64_t{512} << 20;
  // A machine that is busy with something else makes a slow benchmark, not a dead peer.
  options.failure.dead_after = absl::Seconds(20);
  return options;
}

Message BuildMessage(FrameKind kind, SharedBytes rows) {
  Message message;
  message.key.kind = kind;
  message.dtype = DType::kI32;
  // Rows of at most 16 MiB, as the limits have it.
  message.num_rows = rows.size() % 16 == 0 ? 4 : 1;
  message.row_width = static_cast<uint32_t>(rows.size() / 4 / message.num_rows);
  message.rows = std::move(rows);
  return message;
}

// A value that is set once by a reaction and awaited by one thread.
template <typename T>
class Promised {
 public:
  void Set(T value) {
    MutexLock lock(mutex_);
    value_ = std::move(value);
    changed_.Signal();
  }
  absl::StatusOr<T> Take() {
    const absl::Duration end = Clock::Monotonic().Now() + kBenchPatience;
    MutexLock lock(mutex_);
    while (!value_.has_value()) {
      const absl::Duration left = end - Clock::Monotonic().Now();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError("the other process does not answer");
      }
      changed_.WaitWithTimeout(mutex_, left);
    }
    return *std::exchange(value_, std::nullopt);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<T> value_ MOEBIUS_GUARDED_BY(mutex_);
};

// Batches that have been given to the transport and have not left it.
class BatchWindow {
 public:
  void Enter() {
    MutexLock lock(mutex_);
    while (count_ == kMaxBatches) changed_.Wait(mutex_);
    ++count_;
  }
  void Leave() {
    MutexLock lock(mutex_);
    --count_;
    changed_.Signal();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int count_ MOEBIUS_GUARDED_BY(mutex_) = 0;
};

// One process's transport with all that it stands on.
class End final : public PeerWatcher {
 public:
  static absl::StatusOr<std::unique_ptr<End>> Make(absl::string_view kind,
                                                   const std::string& name) {
    std::unique_ptr<End> end(new End);
    if (kind == "loopback") {
      end->own_provider_ = std::make_unique<LoopbackProvider>(end->reactor_);
    } else if (kind == "grpc") {
      MOEBIUS_ASSIGN_OR_RETURN(end->own_provider_,
                               GrpcLinkProvider::Make(GrpcOptions(), std::nullopt));
    } else if (kind == "shm") {
      MOEBIUS_ASSIGN_OR_RETURN(end->own_provider_, ShmLinkProvider::Make(ShmOptions()));
    } else {
      return absl::InvalidArgumentError(absl::StrCat("there is no transport '", kind, "'"));
    }
    MOEBIUS_RETURN_IF_ERROR(end->Start(name, *end->own_provider_));
    return end;
  }
  // Beside another end in this process.
  static absl::StatusOr<std::unique_ptr<End>> MakeBeside(End& other, const std::string& name) {
    std::unique_ptr<End> end(new End);
    MOEBIUS_RETURN_IF_ERROR(end->Start(name, *other.own_provider_));
    return end;
  }

  Transport& transport() { return *transport_; }
  absl::Status Expect(FrameKind kind, int64_t max_bytes,
                      std::function<void(const Delivery&)> on_delivery) {
    ReservationSpec spec;
    spec.scope = ReservationScope::kKind;
    spec.key.kind = kind;
    spec.max_message_bytes = static_cast<uint64_t>(max_bytes);
    spec.max_messages = 4;
    spec.on_delivery = [on_delivery = std::move(on_delivery)](const Delivery& delivery) {
      if (delivery.message.ok()) on_delivery(delivery);
    };
    return transport_->Reserve(std::move(spec)).status();
  }
  absl::StatusOr<PeerId> ConnectTo(const Address& address) {
    MOEBIUS_ASSIGN_OR_RETURN(const PeerId peer, transport_->Connect(address));
    const absl::StatusOr<bool> connected = connected_.Take();
    if (!connected.ok()) return connected.status();
    return peer;
  }
  void OnPeerState(const PeerInfo& peer) override {
    if (peer.state == PeerState::kConnected) connected_.Set(true);
  }

 private:
  End() = default;
  absl::Status Start(const std::string& name, LinkProvider& provider) {
    MOEBIUS_ASSIGN_OR_RETURN(const TransportOptions options, BenchTransportOptions(name));
    MOEBIUS_ASSIGN_OR_RETURN(transport_, Transport::Make(options, provider, reactor_, *this));
    return absl::OkStatus();
  }

  Promised<bool> connected_;
  Reactor reactor_{Clock::Monotonic()};
  std::unique_ptr<LinkProvider> own_provider_;
  ReactorThread thread_{reactor_};
  std::unique_ptr<Transport> transport_;
};

class MessageServer final : public BenchServer {
 public:
  static absl::StatusOr<std::unique_ptr<MessageServer>> Start(std::unique_ptr<End> end) {
    std::unique_ptr<MessageServer> server(new MessageServer(std::move(end)));
    Transport& transport = server->end_->transport();
    MOEBIUS_RETURN_IF_ERROR(
        server->end_->Expect(kLoadKind, kMaxBenchMessageBytes, [](const Delivery&) {}));
    MOEBIUS_RETURN_IF_ERROR(
        server->end_->Expect(kQuestionKind, kPingBytes, [&transport](const Delivery& question) {
          const double seconds = ProcessCpuSeconds();
          uint8_t bytes[sizeof(seconds)];
          std::memcpy(bytes, &seconds, sizeof(seconds));
          // The channel waits with a limit of its own.
          transport
              .Send(question.source, kLoadLane,
                    BuildMessage(kAnswerKind, SharedBytes::Copy(absl::MakeConstSpan(bytes))))
              .IgnoreError();
        }));
    MOEBIUS_RETURN_IF_ERROR(
        server->end_->Expect(kPingKind, kPingBytes, [&transport](const Delivery& ping) {
          transport.Send(ping.source, kPingLane, BuildMessage(kPongKind, ping.message->rows))
              .IgnoreError();
        }));
    MOEBIUS_ASSIGN_OR_RETURN(server->address_, transport.Listen({"127.0.0.1", 0}));
    return server;
  }
  std::string address() const override { return FormatAddress(address_); }
  End& end() { return *end_; }

 private:
  explicit MessageServer(std::unique_ptr<End> end) : end_(std::move(end)) {}
  std::unique_ptr<End> end_;
  Address address_;
};

class MessageChannel final : public BenchChannel {
 public:
  // `server` is the other end when it is in this process.
  static absl::StatusOr<std::unique_ptr<MessageChannel>> Open(std::unique_ptr<MessageServer> server,
                                                              std::unique_ptr<End> end,
                                                              const Address& address) {
    std::unique_ptr<MessageChannel> channel(new MessageChannel(std::move(server), std::move(end)));
    MessageChannel* const self = channel.get();
    MOEBIUS_RETURN_IF_ERROR(
        self->end_->Expect(kAnswerKind, kPingBytes, [self](const Delivery& answer) {
          double seconds = 0;
          if (answer.message->rows.size() != sizeof(seconds)) return;
          std::memcpy(&seconds, answer.message->rows.data(), sizeof(seconds));
          self->answer_.Set(seconds);
        }));
    MOEBIUS_RETURN_IF_ERROR(self->end_->Expect(
        kPongKind, kPingBytes, [self](const Delivery& pong) { self->OnPong(pong); }));
    MOEBIUS_ASSIGN_OR_RETURN(self->peer_, self->end_->ConnectTo(address));
    return channel;
  }

  absl::StatusOr<Throughput> MeasureBandwidth(int64_t message_bytes,
                                              absl::Duration duration) override {
    PayloadPool pool(message_bytes);
    MOEBIUS_ASSIGN_OR_RETURN(const double their_cpu_before, AskCpuSeconds());
    const double own_cpu_before = ProcessCpuSeconds();
    const Clock& clock = Clock::Monotonic();
    const absl::Duration start = clock.Now();
    Throughput throughput;
    while (clock.Now() - start < duration) {
      MOEBIUS_RETURN_IF_ERROR(SendBatch(pool, message_bytes, &throughput));
    }
    MOEBIUS_ASSIGN_OR_RETURN(const double their_cpu_after, AskCpuSeconds());
    throughput.seconds = absl::ToDoubleSeconds(clock.Now() - start);
    throughput.cpu_seconds = ProcessCpuSeconds() - own_cpu_before;
    if (server_ == nullptr) throughput.cpu_seconds += their_cpu_after - their_cpu_before;
    return throughput;
  }

  absl::StatusOr<absl::Duration> MeasureRoundTrip(absl::Duration duration) override {
    const absl::Duration start = Clock::Monotonic().Now();
    num_pongs_ = 0;
    ping_until_ = start + duration;
    MOEBIUS_RETURN_IF_ERROR(
        SendPing(SharedBytes::Copy(std::string(static_cast<size_t>(kPingBytes), 'p'))));
    MOEBIUS_ASSIGN_OR_RETURN(const int64_t count, pings_done_.Take());
    return (Clock::Monotonic().Now() - start) / count;
  }

 private:
  MessageChannel(std::unique_ptr<MessageServer> server, std::unique_ptr<End> end)
      : server_(std::move(server)), end_(std::move(end)) {}

  absl::Status SendBatch(PayloadPool& pool, int64_t message_bytes, Throughput* throughput) {
    const int64_t count = std::max<int64_t>(1, kBatchBytes / (message_bytes + kPingBytes));
    window_.Enter();
    for (int64_t i = 0; i < count; ++i) {
      SendOptions options;
      if (i == count - 1) options.done = [this](const absl::Status&) { window_.Leave(); };
      MOEBIUS_RETURN_IF_ERROR(
          end_->transport()
              .Send(peer_, kLoadLane, BuildMessage(kLoadKind, pool.Next()), std::move(options))
              .status());
    }
    throughput->bytes += static_cast<double>(count * message_bytes);
    return absl::OkStatus();
  }

  // Comes back when everything that was sent before has been consumed.
  absl::StatusOr<double> AskCpuSeconds() {
    MOEBIUS_RETURN_IF_ERROR(
        end_->transport()
            .Send(peer_, kLoadLane,
                  BuildMessage(kQuestionKind, SharedBytes::Copy(absl::string_view("cpu?"))))
            .status());
    return answer_.Take();
  }

  absl::Status SendPing(SharedBytes rows) {
    return end_->transport()
        .Send(peer_, kPingLane, BuildMessage(kPingKind, std::move(rows)))
        .status();
  }

  // Pings follow one another on the link's own thread: no thread of the benchmark is waited for.
  void OnPong(const Delivery& pong) {
    ++num_pongs_;
    if (Clock::Monotonic().Now() >= ping_until_ || !SendPing(pong.message->rows).ok()) {
      pings_done_.Set(num_pongs_);
    }
  }

  PeerId peer_;
  Promised<double> answer_;
  Promised<int64_t> pings_done_;
  // Of the measuring thread until the first ping leaves, then of the link's until pings_done_.
  int64_t num_pongs_ = 0;
  absl::Duration ping_until_;
  BatchWindow window_;
  std::unique_ptr<MessageServer> server_;
  std::unique_ptr<End> end_;
};

}  // namespace

std::vector<std::string> MessageKinds() { return {"loopback", "grpc", "shm"}; }

absl::StatusOr<std::unique_ptr<BenchServer>> StartMessageServer(absl::string_view kind) {
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<End> end, End::Make(kind, "bench-server"));
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<BenchServer> server,
                           MessageServer::Start(std::move(end)));
  return server;
}

absl::StatusOr<std::unique_ptr<BenchChannel>> OpenMessageChannel(absl::string_view kind,
                                                                 const std::string& address) {
  MOEBIUS_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<End> end, End::Make(kind, "bench-client"));
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<BenchChannel> channel,
                           MessageChannel::Open(nullptr, std::move(end), parsed));
  return channel;
}

absl::StatusOr<std::unique_ptr<BenchChannel>> OpenLoopbackChannel() {
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<End> far_end, End::Make("loopback", "bench-server"));
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<End> near_end,
                           End::MakeBeside(*far_end, "bench-client"));
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<MessageServer> server,
                           MessageServer::Start(std::move(far_end)));
  MOEBIUS_ASSIGN_OR_RETURN(const Address address, ParseAddress(server->address()));
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<BenchChannel> channel,
                           MessageChannel::Open(std::move(server), std::move(near_end), address));
  return channel;
}

}  // namespace moebius
