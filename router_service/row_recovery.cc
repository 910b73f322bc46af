// SPDX-License-Identifier: Apache-2.0
#include "router_service/row_recovery.h"

#include <algorithm>

#include "moebius/base/check.h"

namespace moebius {
namespace {

// Assignments that the gate made for rows that it did not refuse.
int64_t Demand(const Assignments& assignments) {
  const auto num_refused = static_cast<int64_t>(assignments.refused_rows.size());
  return (assignments.num_rows - num_refused) * assignments.top_k;
}

}  // namespace

void FindLostRows(const DispatchPlan& plan, absl::Span<const ServiceId> failed,
                  std::vector<int64_t>* lost) {
  lost->clear();
  for (const ServiceId service : failed) {
    const ServiceDispatch& dispatch = plan.services()[static_cast<size_t>(service.value())];
    lost->insert(lost->end(), dispatch.row_ids.begin(), dispatch.row_ids.end());
  }
  std::sort(lost->begin(), lost->end());
  lost->erase(std::unique(lost->begin(), lost->end()), lost->end());
}

void SelectAssignments(const Assignments& assignments, absl::Span<const int64_t> rows,
                       Assignments* selected) {
  const auto top_k = static_cast<size_t>(assignments.top_k);
  selected->Reset(static_cast<int64_t>(rows.size()), assignments.top_k);
  for (size_t i = 0; i < rows.size(); ++i) {
    const absl::Span<const int32_t> ids = assignments.RowIds(rows[i]);
    const absl::Span<const float> weights = assignments.RowWeights(rows[i]);
    std::copy(ids.begin(), ids.end(), selected->expert_ids.data() + i * top_k);
    std::copy(weights.begin(), weights.end(), selected->weights.data() + i * top_k);
  }
}

void RowRecovery::BeginLayer(int32_t num_services) {
  failed_.assign(static_cast<size_t>(num_services), 0);
}

void RowRecovery::BeginWave(const Assignments& assignments) {
  all_ = &assignments;
  round_ = 0;
  completed_ = 0;
  row_ids_.clear();
}

absl::Span<const uint8_t> RowRecovery::UsableServices(absl::Span<const uint8_t> usable) {
  MOEBIUS_CHECK(usable.empty() || usable.size() == failed_.size());
  usable_.resize(failed_.size());
  for (size_t service = 0; service < failed_.size(); ++service) {
    usable_[service] = failed_[service] == 0 && (usable.empty() || usable[service] != 0) ? 1 : 0;
  }
  return usable_;
}

bool RowRecovery::EndRound(const DispatchPlan& plan, absl::Span<const ServiceId> failed) {
  FindLostRows(plan, failed, &lost_);
  CheckRound(plan);
  if (lost_.empty()) {
    MOEBIUS_CHECK_EQ(completed_, Demand(*all_));
    return true;
  }
  for (const ServiceId service : failed) failed_[static_cast<size_t>(service.value())] = 1;
  if (round_ > 0) {
    for (int64_t& row : lost_) row = row_ids_[static_cast<size_t>(row)];
  }
  row_ids_.swap(lost_);
  SelectAssignments(*all_, row_ids_, &selected_);
  ++round_;
  return false;
}

void RowRecovery::CheckRound(const DispatchPlan& plan) {
  const DispatchCounts& counts = plan.counts();
  MOEBIUS_CHECK_EQ(counts.demanded, Demand(assignments()));
  MOEBIUS_CHECK_EQ(counts.served + counts.dropped, counts.demanded);
  // A lost row was dispatched, so the gate did not refuse it.
  completed_ += counts.demanded - static_cast<int64_t>(lost_.size()) * all_->top_k;
}

}  // namespace moebius
