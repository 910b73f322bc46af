// SPDX-License-Identifier: Apache-2.0
#include "router_service/rank_probe.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/base/status.h"
#include "moebius/wire/message_kind.h"
#include "moebius/wire/probe_codec.h"

namespace moebius {
namespace {

constexpr uint64_t kSmallProbeBytes = 64;
constexpr int kSmallProbes = 16;
constexpr int kLargeProbes = 6;
constexpr absl::Duration kPatience = absl::Seconds(1);
// A clock's step: no measured time is shorter.
constexpr double kLeastSeconds = 1e-7;

// One rank's answers, one at a time.
class Probe {
 public:
  Probe(Transport& transport, PeerId rank) : transport_(transport), rank_(rank) {}

  // Seconds of the round trip.
  absl::StatusOr<double> Time(uint64_t num_bytes) {
    ReservationSpec spec;
    spec.source = rank_;
    spec.key.kind = kProbeReplyKind;
    spec.key.step = ++number_;
    spec.max_message_bytes = kMessageAlignment;
    spec.on_delivery = [answer = answer_](Delivery delivery) {
      MutexLock lock(answer->mutex);
      answer->message = std::move(delivery.message);
      answer->arrived.SignalAll();
    };
    MOEBIUS_ASSIGN_OR_RETURN(const ReservationId id, transport_.Reserve(std::move(spec)));
    Message probe = BuildProbe(number_, num_bytes);
    const absl::Duration begin = Clock::Monotonic().Now();
    absl::StatusOr<Message> reply = absl::UnavailableError("it did not answer a probe");
    const absl::Status sent = transport_.Send(rank_, Lane::kBulk, std::move(probe)).status();
    if (sent.ok()) reply = Wait(begin + kPatience);
    const absl::Duration end = Clock::Monotonic().Now();
    transport_.CancelReservation(id);
    MOEBIUS_RETURN_IF_ERROR(sent);
    MOEBIUS_RETURN_IF_ERROR(reply.status());
    MOEBIUS_ASSIGN_OR_RETURN(kernel_flops_, ParseProbeReply(*reply));
    return std::max(kLeastSeconds, absl::ToDoubleSeconds(end - begin));
  }

  absl::StatusOr<double> Best(int times, uint64_t num_bytes) {
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < times; ++i) {
      MOEBIUS_ASSIGN_OR_RETURN(const double seconds, Time(num_bytes));
      best = std::min(best, seconds);
    }
    return best;
  }

  double kernel_flops() const { return kernel_flops_; }

 private:
  // Outlives a probe that was given up.
  struct Answer {
    Mutex mutex;
    CondVar arrived;
    std::optional<absl::StatusOr<Message>> message MOEBIUS_GUARDED_BY(mutex);
  };

  absl::StatusOr<Message> Wait(absl::Duration end) {
    MutexLock lock(answer_->mutex);
    while (!answer_->message.has_value()) {
      const absl::Duration left = end - Clock::Monotonic().Now();
      if (left <= absl::ZeroDuration()) {
        return absl::UnavailableError("it did not answer a probe in time");
      }
      answer_->arrived.WaitWithTimeout(answer_->mutex, left);
    }
    return *std::exchange(answer_->message, std::nullopt);
  }

  Transport& transport_;
  const PeerId rank_;
  const std::shared_ptr<Answer> answer_ = std::make_shared<Answer>();
  uint64_t number_ = 0;
  double kernel_flops_ = 0;
};

absl::StatusOr<RankRates> MeasureRank(Transport& transport, PeerId rank) {
  Probe probe(transport, rank);
  MOEBIUS_ASSIGN_OR_RETURN(const double small, probe.Best(kSmallProbes, kSmallProbeBytes));
  MOEBIUS_ASSIGN_OR_RETURN(const double large, probe.Best(kLargeProbes, kMaxProbeBytes));
  RankRates rates;
  rates.flops = probe.kernel_flops();
  rates.latency = small / 2;
  // The answer is as small as before: what the megabyte took longer is its own.
  rates.bandwidth = static_cast<double>(kMaxProbeBytes) / std::max(kLeastSeconds, large - small);
  return rates;
}

}  // namespace

absl::StatusOr<RankRates> MeasureRankRates(Transport& transport, absl::Span<const PeerId> ranks) {
  RankRates slowest{.flops = std::numeric_limits<double>::infinity(),
                    .bandwidth = std::numeric_limits<double>::infinity(),
                    .latency = 0};
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const absl::StatusOr<RankRates> rates = MeasureRank(transport, ranks[rank]);
    if (!rates.ok()) {
      return absl::Status(rates.status().code(),
                          absl::StrCat("attention rank ", rank, ": ", rates.status().message()));
    }
    slowest.flops = std::min(slowest.flops, rates->flops);
    slowest.bandwidth = std::min(slowest.bandwidth, rates->bandwidth);
    slowest.latency = std::max(slowest.latency, rates->latency);
  }
  return slowest;
}

}  // namespace moebius
