// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "expert_service/expert_loader.h"
#include "expert_service/quanta.h"
#include "moebius/base/executor.h"
#include "moebius/base/strong_id.h"
#include "moebius/kernels/expert_ffn.h"
#include "moebius/kernels/kernels.h"
#include "moebius/model/checkpoint.h"
#include "moebius/placement/placement.h"
#include "moebius/routing/dispatch.h"
#include "moebius/tensor/buffer.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// The feed-forward weights that one expert service holds, and their forward pass.
///
/// Invariants: 1. weights never change after Load; 2. a reply row's bits depend on its row, its
/// experts and their weights only, never on the other rows or on what else is held.
///
/// Not thread-safe: one Forward at a time (it owns the scratch), and one more inside its pauses.
/// Borrows kernels and executor.
class ExpertPipeline {
 public:
  /// After each expert: bytes packed so far, and in all. On the caller's thread.
  using OnLoaded = std::function<void(int64_t loaded_bytes, int64_t total_bytes)>;
  /// Called where a forward pass may be interrupted; may call Forward, without a pause.
  using Pause = std::function<void()>;

  /// Reads and packs exactly `held` (Placement::HeldBy), or takes it from `cache` (null: none), on
  /// as many threads as the executor has, while it is free for others; duplicates count once.
  /// INVALID_ARGUMENT for an id that the model lacks; RESOURCE_EXHAUSTED; else what the checkpoint
  /// says.
  static absl::StatusOr<std::unique_ptr<ExpertPipeline>> Load(
      const Checkpoint& checkpoint, absl::Span<const HeldExpert> held, const Kernels& kernels,
      Executor& executor, const OnLoaded& on_loaded = nullptr, PackedCache* cache = nullptr);

  /// Packed bytes that `held` takes, before anything is loaded. Refuses what Load refuses.
  static absl::StatusOr<int64_t> PackedBytes(const Checkpoint& checkpoint,
                                             absl::Span<const HeldExpert> held);

  /// Fills the reply rows that `dispatch` asks for (its derived part filled).
  /// `rows` bf16 [any, H]: row_ids index it. `replies` bf16 [dispatch.num_reply_rows, H].
  /// On an executor thread. FAILED_PRECONDITION "NOT_HELD: …" names the experts that are asked for
  /// and not held, with no reply written; INVALID_ARGUMENT for shapes that do not fit. Zero rows
  /// are ordinary. Allocates only while its scratch grows. With `pause` it computes in quanta
  /// (quanta.h) and calls it between them.
  absl::Status Forward(LayerId layer, const ServiceDispatch& dispatch, Bf16Rows rows,
                       MutableBf16Rows replies, const Pause& pause = nullptr);

  bool Holds(LayerId layer, ExpertId id) const;
  int64_t num_held() const { return num_held_; }
  int64_t weight_bytes() const { return weight_bytes_; }
  int64_t hidden_size() const { return hidden_size_; }
  /// How the weights came.
  const WeightLoadFigures& load_figures() const { return load_figures_; }

 private:
  ExpertPipeline(const Kernels& kernels, Executor& executor, int64_t hidden_size);
  void Hold(const HeldExpert& held, PackedExpert packed);
  const PackedExpert* Find(LayerId layer, ExpertId id) const;
  absl::Status CheckHeld(LayerId layer, const ServiceDispatch& dispatch) const;
  // Reused by Forward.
  struct ForwardScratch {
    ExpertScratch experts;
    std::vector<ExpertBatch> batches;
    std::vector<int64_t> reply_begin;  // first assignment of each reply row, and the end
    RowBatch<Bf16> outputs;            // y_e of every assignment, in the order of expert_rows
  };
  void RunBatches(Bf16Rows rows, const Pause& pause, ForwardScratch& scratch);
  void WriteReplies(const ServiceDispatch& dispatch, MutableBf16Rows replies,
                    ForwardScratch& scratch);

  const Kernels& kernels_;
  Executor& executor_;
  int64_t hidden_size_ = 0;
  int64_t weight_bytes_ = 0;
  WeightLoadFigures load_figures_;
  std::unique_ptr<WeightArena> arena_;             // of all experts
  std::vector<std::vector<PackedExpert>> layers_;  // [layer][id]; without bytes: not held
  int64_t num_held_ = 0;
  bool is_paused_ = false;
  std::array<ForwardScratch, 2> scratch_;  // [1]: of the Forward inside a pause
  QuantumPlan quanta_;
};

}  // namespace moebius
