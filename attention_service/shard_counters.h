// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "attention_service/kv_exchange.h"
#include "moebius/base/clock.h"

namespace moebius {

/// ShardFigures as the running step counts them. Written by one thread at a time; Read is
/// thread-safe.
struct ShardCounters {
  std::array<std::atomic<int64_t>, kNumAttentionMethods> methods = {};
  std::atomic<int64_t> rounds{0};
  std::atomic<int64_t> spans_received{0};
  std::atomic<int64_t> states_received{0};
  std::atomic<int64_t> head_rows_received{0};
  std::atomic<int64_t> max_foreign_spans{0};
  std::atomic<int64_t> wait_nanoseconds{0};
  std::atomic<int64_t> round_nanoseconds{0};

  void HoldForeignSpans(int64_t count) {
    max_foreign_spans = std::max(max_foreign_spans.load(std::memory_order_relaxed), count);
  }
  ShardFigures Read() const {
    ShardFigures figures;
    std::copy(methods.begin(), methods.end(), figures.methods.begin());
    figures.rounds = rounds;
    figures.spans_received = spans_received;
    figures.states_received = states_received;
    figures.max_foreign_spans = max_foreign_spans;
    figures.head_rows_received = head_rows_received;
    figures.round_seconds = 1e-9 * static_cast<double>(round_nanoseconds.load());
    figures.wait_seconds = 1e-9 * static_cast<double>(wait_nanoseconds.load());
    return figures;
  }
};

/// Adds the time of its life to a count of nanoseconds.
class ShardTimer {
 public:
  explicit ShardTimer(std::atomic<int64_t>& nanoseconds)
      : nanoseconds_(nanoseconds), begin_(Clock::Monotonic().Now()) {}
  ~ShardTimer() { nanoseconds_ += absl::ToInt64Nanoseconds(Clock::Monotonic().Now() - begin_); }
  ShardTimer(const ShardTimer&) = delete;
  ShardTimer& operator=(const ShardTimer&) = delete;

 private:
  std::atomic<int64_t>& nanoseconds_;
  const absl::Duration begin_;
};

/// Of the waits.
class WaitTimer : public ShardTimer {
 public:
  explicit WaitTimer(ShardCounters& counters) : ShardTimer(counters.wait_nanoseconds) {}
};

}  // namespace moebius
