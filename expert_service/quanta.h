// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

#include "moebius/kernels/expert_ffn.h"

namespace moebius {

/// How long bulk work may keep decode waiting.
inline constexpr absl::Duration kMaxQuantum = absl::Milliseconds(5);

/// Cuts a forward pass over many experts into quanta of about equal time, between which something
/// more urgent can run: as many experts as fit, each of which is read once; one that is more than a
/// quantum by itself is cut further by ForwardPieces. No bit depends on a cut.
///
/// Not thread-safe; memory is reused.
class QuantumPlan {
 public:
  /// The views stay valid until the next Cut. Batches without rows are left out. A quantum of
  /// several experts takes at most max_work.
  void Cut(absl::Span<const ExpertBatch> batches);
  size_t num_quanta() const { return ends_.size(); }
  absl::Span<const ExpertBatch> Quantum(size_t index) const;
  /// `work`, as WorkOf counts, took so long: the next cut knows.
  void OnRun(int64_t work, absl::Duration time);

  /// What was measured to take 4/5 of kMaxQuantum.
  int64_t max_work() const;

 private:
  // A guess for the first cut, on the slow side: a core without vectors.
  double work_per_second_ = 2e9;
  std::vector<ExpertBatch> batches_;
  std::vector<size_t> ends_;  // of each quantum, into batches_
};

}  // namespace moebius
