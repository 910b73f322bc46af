// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "moebius/base/strong_id.h"
#include "moebius/routing/assignments.h"
#include "moebius/routing/dispatch_plan.h"

namespace moebius {

// What becomes of a layer's rows when a service fails that was asked for them. A row that it was
// asked for is lost as a whole and planned again as a whole: all terms of a row's sum come from one
// plan. The other rows are kept. Pure; placement never changes a row's bits, so recovery neither.

/// The rows of `plan` that one of `failed` was asked for: ascending, each once.
void FindLostRows(const DispatchPlan& plan, absl::Span<const ServiceId> failed,
                  std::vector<int64_t>* lost);

/// The choices of `rows` (ascending, none refused), as rows 0, 1, … of `selected`. Assignments that
/// capacity dropped stay dropped.
void SelectAssignments(const Assignments& assignments, absl::Span<const int64_t> rows,
                       Assignments* selected);

/// Follows the rows of one layer, wave by wave, from plan to plan. Not thread-safe; keeps its
/// memory.
///
/// Invariants:
/// 1. The rows of a round are a subset of the round before, in the layer's order.
/// 2. A service that failed is not usable any more in this layer, so there are at most as many
///    rounds with failures as there are services.
/// 3. At the end of a wave every assignment that the gate demanded was served or dropped in exactly
/// one plan:
///    the one that its row was completed by. CHECKed.
class RowRecovery {
 public:
  /// A new layer: no service has failed.
  void BeginLayer(int32_t num_services);
  /// A wave of its rows; the first round has all of them. Borrows `assignments` until it has ended.
  void BeginWave(const Assignments& assignments);

  /// Of the round at hand.
  int32_t round() const { return round_; }
  const Assignments& assignments() const { return round_ == 0 ? *all_ : selected_; }
  /// Row i of this round is row row_ids()[i] of the wave. Empty in the first round: all rows.
  absl::Span<const int64_t> row_ids() const { return row_ids_; }
  /// What the port says, less the services that have failed. `usable` empty: all.
  absl::Span<const uint8_t> UsableServices(absl::Span<const uint8_t> usable);

  /// How the round went: `plan` was made of its assignments. True when the wave has ended, false
  /// when another round begins, with the lost rows.
  bool EndRound(const DispatchPlan& plan, absl::Span<const ServiceId> failed);

 private:
  void CheckRound(const DispatchPlan& plan);

  const Assignments* all_ = nullptr;
  int32_t round_ = 0;
  int64_t completed_ = 0;  // assignments whose rows have ended
  std::vector<uint8_t> failed_;
  std::vector<uint8_t> usable_;
  std::vector<int64_t> row_ids_;
  std::vector<int64_t> lost_;
  Assignments selected_;
};

}  // namespace moebius
