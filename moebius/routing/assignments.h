// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "moebius/base/check.h"

namespace moebius {

/// Bounds of a gate. Expert ids need more than 8 bits: models of 384 and 896 experts exist.
inline constexpr int32_t kMaxExperts = 1024;
inline constexpr int32_t kMaxTopK = 16;
inline constexpr int32_t kMaxGroups = 256;

/// Stands for every choice of a refused row.
inline constexpr int32_t kNoExpert = INT32_MIN;

/// An assignment that capacity dropped keeps its expert, so that demand stays known.
constexpr int32_t MarkDropped(int32_t expert_id) { return ~expert_id; }
constexpr bool IsDropped(int32_t expert_id) { return expert_id < 0 && expert_id != kNoExpert; }
/// The expert that was asked for, dropped or not. Not for kNoExpert.
constexpr int32_t DemandedExpert(int32_t expert_id) {
  return expert_id < 0 ? ~expert_id : expert_id;
}

/// What a gate chose for the rows of one layer. In choice order: descending selection score, ties
/// by lowest id. A value that steps reuse: Reset keeps the memory. Not thread-safe.
///
/// Invariants: 1. kept ids are in [0, E) and distinct within a row; 2. weights of kept assignments
/// are finite; 3. every choice of a row in `refused_rows` is kNoExpert with weight 0.
struct Assignments {
  int64_t num_rows = 0;               // T
  int32_t top_k = 0;                  // k; 0 in a dense layer, where no gate chooses
  std::vector<int32_t> expert_ids;    // [T, k]: id, MarkDropped(id) or kNoExpert
  std::vector<float> weights;         // [T, k]
  std::vector<int64_t> refused_rows;  // rows with a NaN or infinity, ascending: dispatched nowhere

  /// Sets the shape. Ids and weights are unspecified afterwards, no row is refused. A dense layer's
  /// assignments are Reset(T, 0).
  void Reset(int64_t rows, int32_t k) {
    num_rows = rows;
    top_k = k;
    expert_ids.resize(static_cast<size_t>(rows * k));
    weights.resize(static_cast<size_t>(rows * k));
    refused_rows.clear();
  }

  absl::Span<const int32_t> RowIds(int64_t row) const {
    MOEBIUS_DCHECK(row >= 0 && row < num_rows);
    return absl::MakeConstSpan(expert_ids)
        .subspan(static_cast<size_t>(row * top_k), static_cast<size_t>(top_k));
  }
  absl::Span<const float> RowWeights(int64_t row) const {
    MOEBIUS_DCHECK(row >= 0 && row < num_rows);
    return absl::MakeConstSpan(weights).subspan(static_cast<size_t>(row * top_k),
                                                static_cast<size_t>(top_k));
  }
};

}  // namespace moebius
