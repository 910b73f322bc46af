// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"

#include "moebius/api/router_info.h"
#include "moebius/base/mutex.h"

namespace moebius {

/// The last samples of one layer, oldest first, and how fast tokens went meanwhile.
struct LoadWindow {
  int32_t num_experts = 0;       // E
  std::vector<uint32_t> demand;  // [S, E] assignments of each sample's time
  double seconds = 0;            // that the samples cover
  double prompt_tokens_per_second = 0;
  double generated_tokens_per_second = 0;

  size_t num_samples() const {
    return num_experts == 0 ? 0 : demand.size() / static_cast<size_t>(num_experts);
  }
};

/// What each expert was asked for in the last two minutes, a sample every two seconds: for people
/// who look. Holds at most kMaxSamples · L · E counts of 4 bytes. Thread-safe.
class LoadHistory {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(2);
  static constexpr size_t kMaxSamples = 60;

  /// Whether the last sample is old enough for another.
  bool IsDue(absl::Duration now) const MOEBIUS_EXCLUDES(mutex_);

  /// All since the start: the history keeps what came since the last call. The first call only
  /// begins it. `now` never falls, and the table keeps its shape.
  void Add(absl::Duration now, const ExpertLoadTable& load, int64_t prompt_tokens,
           int64_t generated_tokens) MOEBIUS_EXCLUDES(mutex_);

  /// Of layer_ids[layer]; empty for one that there is not.
  LoadWindow Window(size_t layer) const MOEBIUS_EXCLUDES(mutex_);

 private:
  struct Sample {
    absl::Duration length;
    int64_t prompt_tokens = 0;
    int64_t generated_tokens = 0;
    std::vector<uint32_t> demand;  // [L, E]
  };

  mutable Mutex mutex_;
  bool has_begun_ MOEBIUS_GUARDED_BY(mutex_) = false;
  absl::Duration last_at_ MOEBIUS_GUARDED_BY(mutex_);
  int64_t prompt_tokens_ MOEBIUS_GUARDED_BY(mutex_) = 0;     // as of last_at_
  int64_t generated_tokens_ MOEBIUS_GUARDED_BY(mutex_) = 0;  // the same
  ExpertLoadTable load_ MOEBIUS_GUARDED_BY(mutex_);          // the same
  std::deque<Sample> samples_ MOEBIUS_GUARDED_BY(mutex_);
};

}  // namespace moebius
