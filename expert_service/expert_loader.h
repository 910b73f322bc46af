// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "moebius/kernels/expert_ffn.h"
#include "moebius/kernels/kernels.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/packed_cache.h"
#include "moebius/model/weight_load.h"
#include "moebius/placement/placement.h"
#include "moebius/tensor/weight_arena.h"

namespace moebius {

/// Experts in one arena, in the order in which they were asked for. Moves, never copies.
struct PackedExperts {
  std::unique_ptr<WeightArena> arena;
  std::vector<PackedExpert> experts;  // borrow from it
  WeightLoadFigures figures;
};

/// How experts are loaded.
struct ExpertLoadOptions {
  PairOrder order = PairOrder::kAdjacent;
  int num_threads = 1;           // the caller's included; fewer where the host has no more
  PackedCache* cache = nullptr;  // null: none
  std::function<void(int64_t loaded_bytes)> on_progress;  // on the caller's thread
};

/// The sizes of an expert that exists, and how it is stored.
ExpertShape ExpertShapeOf(const Checkpoint& checkpoint, const HeldExpert& held);

/// Reads and packs experts, or takes them from the cache. Each thread holds one expert as it is
/// stored beside what is packed, so that the memory of loading is that of the weights and of
/// `num_threads` experts. On failure the status of one expert that could not be read. `experts` are
/// distinct and exist in the model.
absl::StatusOr<PackedExperts> LoadExperts(const Checkpoint& checkpoint,
                                          absl::Span<const HeldExpert> experts,
                                          const ExpertLoadOptions& options);

}  // namespace moebius
