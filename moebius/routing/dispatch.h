// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "moebius/base/strong_id.h"

namespace moebius {

/// The assignments of one expert at one service: [begin, end) of ServiceDispatch::expert_rows.
struct ExpertSegment {
  ExpertId id;
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const ExpertSegment&, const ExpertSegment&) = default;
};

/// What one expert service is asked for in one layer: a view of arrays that a DispatchPlan (at the
/// row owner) or a decoded frame (at the service) owns. R rows, N assignments.
///
/// The first part is what travels. From it alone both sides derive the reply layout (DispatchOrder
/// below), so that a reply carries no index:
///
///   A row's assignments are listed in the order of its sum: combine groups ascending, in a group
///   the choice ascending, then slices ascending. Each assignment opens a reply row, unless
///   `joins_previous`: it is then summed into the reply row of the one before it. Reply rows are
///   numbered in the order in which they open, rows ascending.
///
/// A reply row of one assignment is y_e as it is. One of several is bf16(Σ weight·y_e) by SumTerms
/// of combine.h: a combine group that the service holds completely for that row, or all slices of
/// a dense layer (weights 1).
///
/// Zero rows are ordinary: all arrays empty but row_begin, which is {0}.
struct ServiceDispatch {
  ServiceId service;
  Epoch epoch;

  absl::Span<const int32_t> row_ids;     // [R] rows of the `rows` that Forward is given, ascending
  absl::Span<const int64_t> row_begin;   // [R + 1] offsets of each row's assignments, from 0 to N
  absl::Span<const int32_t> expert_ids;  // [N] routed experts, and slices from E upwards
  absl::Span<const float> weights;       // [N] gate weights; slices have 1
  absl::Span<const uint8_t> joins_previous;  // [N] 0 or 1; 0 for a row's first

  // Derived: filled by DispatchOrder.
  absl::Span<const ExpertSegment> experts;    // distinct, ascending by id
  absl::Span<const int32_t> expert_rows;      // [N] by (expert, row): the rows' row_ids
  absl::Span<const int32_t> expert_position;  // [N] assignment → its place in expert_rows
  int64_t num_reply_rows = 0;

  int64_t num_rows() const { return static_cast<int64_t>(row_ids.size()); }
  int64_t num_assignments() const { return static_cast<int64_t>(expert_ids.size()); }
};

/// Checks a dispatch that came from outside before anything is derived or computed from it: array
/// sizes, row_ids ascending in [0, num_rows), every row with at least one assignment, offsets
/// monotone, ids in [0, num_ids) and distinct within a row, finite weights, joins. INVALID_ARGUMENT
/// says what is wrong and where. `num_ids` is PlacementShape::NumIds of the layer.
absl::Status ValidateServiceDispatch(const ServiceDispatch& dispatch, int64_t num_rows,
                                     int32_t num_ids);

/// Owns the derived part of a dispatch that was decoded from a frame. Derive again for the next
/// one: the memory is reused. Not thread-safe.
class DispatchOrder {
 public:
  /// Fills the derived members of `dispatch` (a counting sort by expert, stable in the rows). The
  /// views stay valid until the next Derive. The dispatch must be valid.
  void Derive(int32_t num_ids, ServiceDispatch& dispatch);

 private:
  std::vector<int64_t> counts_;  // [num_ids]
  std::vector<ExpertSegment> experts_;
  std::vector<int32_t> expert_rows_;
  std::vector<int32_t> expert_position_;
};

/// The derived arrays, written by DeriveDispatchOrder into memory of the caller.
struct DispatchOrderStorage {
  absl::Span<int64_t> counts;           // [num_ids], scratch
  absl::Span<ExpertSegment> experts;    // [min(N, num_ids)]
  absl::Span<int32_t> expert_rows;      // [N]
  absl::Span<int32_t> expert_position;  // [N]
};
void DeriveDispatchOrder(int32_t num_ids, const DispatchOrderStorage& storage,
                         ServiceDispatch& dispatch);

}  // namespace moebius
