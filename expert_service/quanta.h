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
/// more urgent can run. Cut by experts, so that weights are read once; an expert with more rows
/// than a quantum holds is cut by rows. No bit depends on a cut.
///
/// Work is counted in multiply-adds, or in what reading the weights costs where that is more.
/// Not thread-safe; memory is reused.
class QuantumPlan {
 public:
  /// What one batch takes.
  static int64_t WorkOf(const ExpertBatch& batch);

  /// The views stay valid until the next Cut. Batches without rows are left out. A quantum holds at
  /// most what was measured to take 4/5 of kMaxQuantum, or kMinRows rows of one expert.
  void Cut(absl::Span<const ExpertBatch> batches);
  size_t num_quanta() const { return ends_.size(); }
  absl::Span<const ExpertBatch> Quantum(size_t index) const;
  /// Quantum `index` took so long: the next cut knows.
  void OnRun(size_t index, absl::Duration time);

  int64_t max_work() const;

  /// Fewer rows of one expert are never cut off: reading its weights again would cost as much.
  static constexpr int64_t kMinRows = 32;

 private:
  void Add(const ExpertBatch& batch, int64_t work);

  // A guess for the first cut, on the slow side: a core without vectors.
  double work_per_second_ = 2e9;
  std::vector<ExpertBatch> parts_;
  std::vector<size_t> ends_;  // of each quantum, into parts_
  std::vector<int64_t> work_;
};

}  // namespace moebius
