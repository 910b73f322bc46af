// SPDX-License-Identifier: Apache-2.0
#include "router_service/row_gate.h"

#include <algorithm>

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/kernels/gate_logits.h"
#include "moebius/routing/gate.h"

namespace moebius {
namespace {

// Of one gate in so many what it chose is checked against all rules, which takes longer than
// choosing; under the sanitizers of each.
#ifdef __SANITIZE_ADDRESS__
[[maybe_unused]] constexpr uint64_t kGatesPerCheck = 1;
#else
[[maybe_unused]] constexpr uint64_t kGatesPerCheck = 31;  // prime: it visits every layer
#endif

void AddByRow(absl::Span<const int32_t> of_layer, std::vector<int64_t>* of_step) {
  if (of_step->empty()) of_step->assign(of_layer.size(), 0);
  for (size_t row = 0; row < of_layer.size(); ++row) (*of_step)[row] += of_layer[row];
}

}  // namespace

RowGate::RowGate(const Parts& parts)
    : config_(*parts.config),
      numerics_(*parts.numerics),
      weights_(*parts.weights),
      kernels_(*parts.kernels),
      executor_(*parts.executor),
      capacity_(parts.capacity),
      biases_(parts.biases),
      load_(config_.num_layers, config_.gate.num_experts) {}

void RowGate::BeginStep(const StepPlan& plan, StepPurpose purpose) {
  plan_ = &plan;
  purpose_ = purpose;
  load_.Reset();
  left_out_.clear();
  snapshot_ = biases_ == nullptr ? nullptr : biases_->Current();
  observations_.clear();
}

// What the layer's experts are chosen by.
absl::Span<const float> RowGate::BiasOf(LayerId layer) const {
  const auto index = static_cast<size_t>(layer.value());
  if (snapshot_ != nullptr && biases_->mode() == BiasMode::kOn) return snapshot_->layers[index];
  return weights_.gates[index].bias;
}

void RowGate::Choose(LayerId layer, Bf16Rows normed, StepResult* result) {
  MOEBIUS_CHECK_EQ(normed.num_rows, plan_->num_rows);
  if (!config_.IsMoeLayer(layer.value())) {
    assignments_.Reset(normed.num_rows, 0);
    return;
  }
  const GateWeights& gate = weights_.gates[static_cast<size_t>(layer.value())];
  GateCounts counts;
  logits_.Reset(normed.num_rows, config_.gate.num_experts);
  executor_.Run([&] {
    GateLogits(executor_, kernels_, normed, gate.matrix, logits_.rows());
    SelectExperts(executor_, config_.gate, numerics_.group_fill, logits_.rows(), BiasOf(layer),
                  &assignments_, &counts);
  });
  CheckRules(layer);
  result->figures.group_fill_mismatches += counts.group_fill_mismatches;
  result->figures.nonfinite_assignments += counts.refused_rows * assignments_.top_k;
  result->nonfinite_rows.insert(result->nonfinite_rows.end(), assignments_.refused_rows.begin(),
                                assignments_.refused_rows.end());
  if (snapshot_ != nullptr && biases_->mode() == BiasMode::kOn) {
    result->bias_version = snapshot_->version;
  }
  LeaveOutRejected();
  if (snapshot_ != nullptr && purpose_ == StepPurpose::kServe) Watch(layer);
  if (capacity_.dropless() || purpose_ == StepPurpose::kDryRun) {
    load_.Add(layer, assignments_);
  } else {
    Limit(layer, result);
  }
}

void RowGate::CheckRules([[maybe_unused]] LayerId layer) {
#ifdef MOEBIUS_CHECKS
  if (num_gates_++ % kGatesPerCheck != 0) return;
  executor_.Run([&] {
    const absl::Status valid = ValidateAssignments(config_.gate, numerics_.group_fill,
                                                   logits_.rows(), BiasOf(layer), assignments_);
    MOEBIUS_CHECK_EQ(valid.ToString(), absl::OkStatus().ToString());
  });
#endif
}

// Rows of rejected sessions are refused like those that are not finite.
void RowGate::LeaveOutRejected() {
  if (left_out_.empty()) return;
  assignments_.refused_rows.clear();
  for (int64_t row = 0; row < assignments_.num_rows; ++row) {
    const auto first = static_cast<size_t>(row * assignments_.top_k);
    if (left_out_[static_cast<size_t>(row)] != 0) {
      std::fill_n(assignments_.expert_ids.data() + first, assignments_.top_k, kNoExpert);
      std::fill_n(assignments_.weights.data() + first, assignments_.top_k, 0.0f);
    }
    if (assignments_.expert_ids[first] == kNoExpert) assignments_.refused_rows.push_back(row);
  }
}

// What the layer asks for under the balancer's biases, and how much they change where they are not
// in force. Before any capacity.
void RowGate::Watch(LayerId layer) {
  BiasObservation& seen = observations_.emplace_back();
  seen.layer = layer;
  seen.num_rows = assignments_.num_rows - static_cast<int64_t>(assignments_.refused_rows.size());
  executor_.Run([&] {
    if (biases_->needs_spread()) seen.spread = ScoreSpread(config_.gate, logits_.rows());
    if (biases_->mode() != BiasMode::kShadow) return;
    GateCounts counts;
    SelectExperts(executor_, config_.gate, numerics_.group_fill, logits_.rows(),
                  snapshot_->layers[static_cast<size_t>(layer.value())], &shadow_, &counts);
    // A row that asks for nothing asks for nothing in the shadow either.
    for (const int64_t row : assignments_.refused_rows) {
      std::fill_n(shadow_.expert_ids.data() + row * shadow_.top_k, shadow_.top_k, kNoExpert);
    }
    seen.changed_rows = CountChangedRows(assignments_, shadow_);
  });
  const Assignments& chosen = biases_->mode() == BiasMode::kShadow ? shadow_ : assignments_;
  seen.demand.assign(static_cast<size_t>(config_.gate.num_experts), 0);
  for (const int32_t id : chosen.expert_ids) {
    if (id != kNoExpert) ++seen.demand[static_cast<size_t>(id)];
  }
}

void RowGate::Commit() {
  if (snapshot_ == nullptr || observations_.empty()) return;
  biases_->Observe(snapshot_->version, observations_);
}

void RowGate::Limit(LayerId layer, StepResult* result) {
  executor_.Run([&] {
    limiter_.Apply(capacity_, config_.gate.num_experts,
                   {&config_.gate, logits_.rows(), BiasOf(layer)}, &assignments_, &limited_);
  });
#ifdef MOEBIUS_CHECKS
  const absl::Status valid = ValidateCapacityResult(assignments_, limited_);
  MOEBIUS_CHECK_EQ(valid.ToString(), absl::OkStatus().ToString());
#endif
  load_.Add(layer, limited_);
  result->figures.rerouted += limited_.total_rerouted;
  if (!limited_.dropped_of_row.empty()) {
    AddByRow(limited_.dropped_of_row, &result->dropped_of_row);
    AddByRow(limited_.rerouted_of_row, &result->rerouted_of_row);
  }
  if (!limited_.rejected_rows.empty()) RejectSessions(layer, result);
}

void RowGate::RejectSessions(LayerId layer, StepResult* result) {
  left_out_.resize(static_cast<size_t>(plan_->num_rows));
  for (const int64_t row : limited_.rejected_rows) {
    result->rejected_rows.push_back({row, layer, limited_.capacity});
  }
  for (const SessionRows& rows : plan_->sessions) {
    const auto first = std::lower_bound(limited_.rejected_rows.begin(),
                                        limited_.rejected_rows.end(), rows.row_begin);
    if (first == limited_.rejected_rows.end() || *first >= rows.row_end()) continue;
    std::fill_n(left_out_.begin() + rows.row_begin, rows.num_rows, uint8_t{1});
  }
}

}  // namespace moebius
