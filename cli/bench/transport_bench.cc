// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/transport_bench.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/bench/ceilings.h"
#include "cli/bench/channel.h"
#include "cli/bench/message_channel.h"
#include "cli/bench/peer_process.h"
#include "cli/bench/raw_grpc_channel.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

// Sides of a measurement that are no transport of ours.
constexpr char kRawGrpc[] = "plain gRPC stream";
constexpr char kMemoryCopy[] = "cold memcpy";
constexpr char kFutex[] = "futex ping-pong";
// What the far ends are asked to be.
constexpr char kServeRawGrpc[] = "raw-grpc";
constexpr char kServeFutex[] = "futex";

// What a transport promises, and against what.
constexpr double kGrpcBandwidthTarget = 0.9;
constexpr double kShmBandwidthTarget = 0.5;
constexpr int64_t kMinShmTargetBytes = 64 << 10;
// A round trip of at most 1.5 of the baseline's.
constexpr double kShmRoundTripTarget = 0.667;

// One repetition of every figure: name of the side ▸ values.
using Series = std::map<std::string, std::vector<double>>;

struct SizeSeries {
  Series bytes_per_second;
  Series cpu_per_gigabyte;
};

class TransportBench {
 public:
  TransportBench(const TransportBenchOptions& options, const BenchProgress& progress)
      : options_(options), progress_(progress) {}

  absl::Status Open();
  absl::Status Run();
  std::vector<BenchResult> Results() const;

 private:
  bool Has(const std::string& transport) const {
    return std::find(options_.transports.begin(), options_.transports.end(), transport) !=
           options_.transports.end();
  }
  absl::Status OpenRemote(const std::string& side, const std::string& serve);
  absl::Status RunRepetition(bool reversed, absl::Duration duration);
  absl::Status MeasureBandwidth(const std::string& side, int64_t bytes, absl::Duration duration);
  absl::Status MeasureRoundTrip(const std::string& side, absl::Duration duration);
  void Announce(const std::string& what);
  void AddBandwidth(const std::string& transport, int64_t bytes,
                    std::vector<BenchResult>* results) const;
  void AddRoundTrip(const std::string& transport, std::vector<BenchResult>* results) const;

  const TransportBenchOptions& options_;
  const BenchProgress& progress_;
  // Channels go before the processes at their other ends.
  std::vector<std::unique_ptr<PeerProcess>> processes_;
  std::map<std::string, std::unique_ptr<BenchChannel>> channels_;
  std::unique_ptr<FutexPing> futex_;
  std::unique_ptr<MemoryCopy> memory_copy_;
  std::vector<std::string> bandwidth_sides_;
  std::vector<std::string> round_trip_sides_;

  std::map<int64_t, SizeSeries> sizes_;
  Series round_trips_;
  int done_ = 0;
  int total_ = 0;
};

absl::Status TransportBench::OpenRemote(const std::string& side, const std::string& serve) {
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<PeerProcess> process,
                           PeerProcess::Start({"bench", "transport", "--serve", serve}));
  absl::StatusOr<std::unique_ptr<BenchChannel>> channel =
      serve == kServeRawGrpc ? OpenRawGrpcChannel(process->line())
                             : OpenMessageChannel(serve, process->line());
  if (!channel.ok()) return WithContext(channel.status(), side);
  channels_[side] = *std::move(channel);
  processes_.push_back(std::move(process));
  bandwidth_sides_.push_back(side);
  round_trip_sides_.push_back(side);
  return absl::OkStatus();
}

absl::Status TransportBench::Open() {
  if (Has("loopback")) {
    MOEBIUS_ASSIGN_OR_RETURN(channels_["loopback"], OpenLoopbackChannel());
    bandwidth_sides_.push_back("loopback");
    round_trip_sides_.push_back("loopback");
  }
  if (Has("grpc")) {
    MOEBIUS_RETURN_IF_ERROR(OpenRemote("grpc", "grpc"));
    MOEBIUS_RETURN_IF_ERROR(OpenRemote(kRawGrpc, kServeRawGrpc));
  }
  if (Has("shm")) {
    MOEBIUS_RETURN_IF_ERROR(OpenRemote("shm", "shm"));
    memory_copy_ = std::make_unique<MemoryCopy>();
    bandwidth_sides_.push_back(kMemoryCopy);
    MOEBIUS_ASSIGN_OR_RETURN(futex_, FutexPing::Make());
    MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<PeerProcess> process,
                             PeerProcess::Start({"bench", "transport", "--serve", kServeFutex},
                                                {.inherited = futex_->descriptor()}));
    processes_.push_back(std::move(process));
    round_trip_sides_.push_back(kFutex);
  }
  return absl::OkStatus();
}

void TransportBench::Announce(const std::string& what) {
  if (progress_ != nullptr) progress_(done_, total_, what);
  ++done_;
}

absl::Status TransportBench::MeasureBandwidth(const std::string& side, int64_t bytes,
                                              absl::Duration duration) {
  Announce(absl::StrCat(side, ", ", bytes, " bytes"));
  Throughput throughput;
  if (side == kMemoryCopy) {
    throughput = memory_copy_->Measure(bytes, duration);
  } else {
    MOEBIUS_ASSIGN_OR_RETURN(throughput, channels_[side]->MeasureBandwidth(bytes, duration));
  }
  sizes_[bytes].bytes_per_second[side].push_back(throughput.bytes_per_second());
  sizes_[bytes].cpu_per_gigabyte[side].push_back(throughput.cpu_seconds_per_gigabyte());
  return absl::OkStatus();
}

absl::Status TransportBench::MeasureRoundTrip(const std::string& side, absl::Duration duration) {
  Announce(absl::StrCat(side, ", round trip"));
  absl::Duration round_trip;
  if (side == kFutex) {
    MOEBIUS_ASSIGN_OR_RETURN(round_trip, futex_->Measure(duration));
  } else {
    MOEBIUS_ASSIGN_OR_RETURN(round_trip, channels_[side]->MeasureRoundTrip(duration));
  }
  round_trips_[side].push_back(absl::ToDoubleSeconds(round_trip));
  return absl::OkStatus();
}

absl::Status TransportBench::RunRepetition(bool reversed, absl::Duration duration) {
  const auto in_order = [reversed](std::vector<std::string> sides) {
    if (reversed) std::reverse(sides.begin(), sides.end());
    return sides;
  };
  for (const int64_t bytes : options_.message_bytes) {
    for (const std::string& side : in_order(bandwidth_sides_)) {
      MOEBIUS_RETURN_IF_ERROR(WithContext(MeasureBandwidth(side, bytes, duration), side));
    }
  }
  for (const std::string& side : in_order(round_trip_sides_)) {
    MOEBIUS_RETURN_IF_ERROR(WithContext(MeasureRoundTrip(side, duration), side));
  }
  return absl::OkStatus();
}

absl::Status TransportBench::Run() {
  const int per_repetition = static_cast<int>(
      bandwidth_sides_.size() * options_.message_bytes.size() + round_trip_sides_.size());
  total_ = per_repetition * (options_.repetitions + 1);
  // Connections grow their windows and memory its pages before anything counts.
  MOEBIUS_RETURN_IF_ERROR(RunRepetition(false, options_.duration / 8));
  sizes_.clear();
  round_trips_.clear();
  for (int repetition = 0; repetition < options_.repetitions; ++repetition) {
    MOEBIUS_RETURN_IF_ERROR(RunRepetition(repetition % 2 == 1, options_.duration));
  }
  return absl::OkStatus();
}

void TransportBench::AddBandwidth(const std::string& transport, int64_t bytes,
                                  std::vector<BenchResult>* results) const {
  const SizeSeries& series = sizes_.at(bytes);
  const std::string name = absl::StrCat("transport.", transport, ".", bytes);
  const std::vector<double>& rates = series.bytes_per_second.at(transport);
  const std::vector<double>& cpu = series.cpu_per_gigabyte.at(transport);
  BenchResult bandwidth = Summarize(name + ".bandwidth", "B/s", BenchSense::kRate, rates);
  BenchResult cost = Summarize(name + ".cpu", "s/GB", BenchSense::kTime, cpu);
  std::string baseline;
  std::optional<double> target;
  if (transport == "grpc") {
    baseline = kRawGrpc;
    target = kGrpcBandwidthTarget;
  } else if (transport == "shm") {
    baseline = kMemoryCopy;
    if (bytes >= kMinShmTargetBytes) target = kShmBandwidthTarget;
  }
  if (!baseline.empty()) {
    CompareWith(baseline, rates, series.bytes_per_second.at(baseline), target, &bandwidth);
    CompareWith(baseline, cpu, series.cpu_per_gigabyte.at(baseline), std::nullopt, &cost);
  }
  results->push_back(std::move(bandwidth));
  results->push_back(std::move(cost));
}

void TransportBench::AddRoundTrip(const std::string& transport,
                                  std::vector<BenchResult>* results) const {
  const std::vector<double>& times = round_trips_.at(transport);
  BenchResult result = Summarize(absl::StrCat("transport.", transport, ".round_trip"), "s",
                                 BenchSense::kTime, times);
  if (transport == "grpc") {
    CompareWith(kRawGrpc, times, round_trips_.at(kRawGrpc), std::nullopt, &result);
  } else if (transport == "shm") {
    CompareWith(kFutex, times, round_trips_.at(kFutex), kShmRoundTripTarget, &result);
  }
  results->push_back(std::move(result));
}

std::vector<BenchResult> TransportBench::Results() const {
  std::vector<BenchResult> results;
  for (const std::string& transport : TransportBenchKinds()) {
    if (!Has(transport)) continue;
    for (const int64_t bytes : options_.message_bytes) AddBandwidth(transport, bytes, &results);
    AddRoundTrip(transport, &results);
  }
  return results;
}

}  // namespace

std::vector<std::string> TransportBenchKinds() { return MessageKinds(); }

absl::Status ValidateOptions(const TransportBenchOptions& options) {
  const std::vector<std::string> kinds = TransportBenchKinds();
  for (const std::string& transport : options.transports) {
    if (std::find(kinds.begin(), kinds.end(), transport) == kinds.end()) {
      return WithHint(
          absl::InvalidArgumentError(absl::StrCat("there is no transport '", transport, "'")),
          absl::StrCat("--transports takes ", absl::StrJoin(kinds, ",")));
    }
  }
  if (options.transports.empty()) return absl::InvalidArgumentError("no transport is named");
  if (options.message_bytes.empty()) return absl::InvalidArgumentError("no size is named");
  for (const int64_t bytes : options.message_bytes) {
    if (bytes < 16 || bytes > kMaxBenchMessageBytes || bytes % 16 != 0) {
      return WithHint(absl::InvalidArgumentError(absl::StrCat("messages of ", bytes, " bytes")),
                      absl::StrCat("--sizes takes multiples of 16 up to ", kMaxBenchMessageBytes));
    }
  }
  if (options.repetitions < 1 || options.repetitions > 1000) {
    return absl::InvalidArgumentError(
        absl::StrCat("--repetitions is ", options.repetitions, ", not in [1, 1000]"));
  }
  if (options.duration < absl::Milliseconds(1) || options.duration > absl::Seconds(30)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--seconds is ", absl::ToDoubleSeconds(options.duration), ", not in [0.001, 30]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<BenchReport> RunTransportBench(const TransportBenchOptions& options,
                                              const BenchProgress& progress) {
  MOEBIUS_RETURN_IF_ERROR(ValidateOptions(options));
  TransportBench bench(options, progress);
  MOEBIUS_RETURN_IF_ERROR(bench.Open());
  MOEBIUS_RETURN_IF_ERROR(bench.Run());
  return MakeBenchReport(kPayloadSeed, 0, bench.Results());
}

absl::Status ServeTransportBench(const std::string& kind) {
  if (kind == kServeFutex) {
    std::atomic<bool> stopping{false};
    absl::Status status;
    std::thread answerer(
        [&] { status = AnswerFutexPings(PeerProcess::kInheritedDescriptor, stopping); });
    ServeUntilInputEnds("ready");
    stopping.store(true);
    answerer.join();
    return status;
  }
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<BenchServer> server,
                           kind == kServeRawGrpc ? StartRawGrpcServer() : StartMessageServer(kind));
  ServeUntilInputEnds(server->address());
  return absl::OkStatus();
}

}  // namespace moebius
