// SPDX-License-Identifier: Apache-2.0
#include "router_service/expert_layer.h"

#include <algorithm>

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/routing/combine.h"
#include "router_service/phase_timer.h"

namespace moebius {
namespace {

// Of so many first plans one is checked against all rules, which takes longer than building it;
// under the sanitizers every one.
#ifdef __SANITIZE_ADDRESS__
[[maybe_unused]] constexpr uint64_t kPlansPerCheck = 1;
#else
[[maybe_unused]] constexpr uint64_t kPlansPerCheck = 31;  // prime: it visits every layer
#endif

}  // namespace

ExpertLayer::ExpertLayer(const Parts& parts)
    : kernels_(*parts.kernels),
      executor_(*parts.executor),
      experts_(*parts.experts),
      placement_(*parts.placement),
      max_rows_(parts.max_rows_per_service),
      message_rows_(parts.message_rows),
      replica_load_(parts.replica_load),
      replies_(static_cast<size_t>(placement_.num_services())),
      reply_views_(replies_.size()) {}

absl::Status ExpertLayer::Run(const LayerRule& rule, const Assignments& assignments, Bf16Rows rows,
                              MutableBf16Rows out, StepFigures* figures, PhaseLog* phases) {
  recovery_.BeginLayer(placement_.num_services());
  served_.Begin(rule.num_experts);
  num_calls_ = 0;
  if (max_rows_ == 0 || assignments.num_rows <= max_rows_) {
    return RunWave(rule, assignments, rows, out, figures, phases);
  }
  for (int64_t begin = 0; begin < assignments.num_rows; begin += max_rows_) {
    const Wave wave{begin, std::min(begin + max_rows_, assignments.num_rows)};
    SliceAssignments(assignments, wave, &wave_);
    MOEBIUS_RETURN_IF_ERROR(RunWave(rule, wave_, rows.Slice(wave.begin, wave.end),
                                    out.Slice(wave.begin, wave.end), figures, phases));
  }
  return absl::OkStatus();
}

absl::Status ExpertLayer::RunWave(const LayerRule& rule, const Assignments& assignments,
                                  Bf16Rows rows, MutableBf16Rows out, StepFigures* figures,
                                  PhaseLog* phases) {
  PhaseTimer timer(phases);
  recovery_.BeginWave(assignments);
  for (bool ended = false; !ended;) {
    const int32_t round = recovery_.round();
    double plan_seconds = 0, expert_seconds = 0;
    MOEBIUS_RETURN_IF_ERROR(Plan(rule));
    const Bf16Rows round_rows = round == 0 ? rows : GatherRows(rows);
    for (size_t service = 0; service < replies_.size(); ++service) {
      replies_[service].Reset(plan_.services()[service].num_reply_rows, rows.width);
      reply_views_[service] = replies_[service].rows();
    }
    CountRound(rows.width, figures);
    timer.Lap(&plan_seconds, StepPhase::kDispatch, rule.layer, round);
    failed_.clear();
    const absl::Status forwarded = experts_.Forward(rule.layer, plan_, {num_calls_++, round > 0},
                                                    round_rows, reply_views_, &failed_);
    timer.Lap(&expert_seconds, StepPhase::kForward, rule.layer, round);
    MOEBIUS_RETURN_IF_ERROR(forwarded);
    figures->plan_seconds += plan_seconds;
    figures->expert_seconds += expert_seconds;
    if (round > 0) figures->stall_seconds += plan_seconds + expert_seconds;
    // Rows that are lost in this round are combined too, and overwritten by the round that
    // completes them.
    CombineRound(out);
    timer.Lap(&figures->combine_seconds, StepPhase::kCombine, rule.layer, round);
    FindLostRows(plan_, failed_, &lost_);
    served_.AddRound(plan_, lost_);
    if (replica_load_ != nullptr) replica_load_->AddRound(plan_, lost_);
    ended = recovery_.EndRound(plan_, failed_);
  }
  return absl::OkStatus();
}

// The round's assignments ─▶ plan_.
absl::Status ExpertLayer::Plan(const LayerRule& rule) {
  const Assignments& assignments = recovery_.assignments();
  DispatchLimits limits;
  limits.max_rows_per_service = max_rows_;
  limits.message_rows = message_rows_;
  limits.usable_services = recovery_.UsableServices(experts_.usable_services());
  MOEBIUS_RETURN_IF_ERROR(BuildDispatchPlan(rule, assignments, placement_, limits, &plan_));
#ifdef MOEBIUS_CHECKS
  if (recovery_.round() > 0 || num_plans_++ % kPlansPerCheck == 0) {
    const absl::Status valid = ValidateDispatchPlan(plan_, assignments, placement_, limits);
    MOEBIUS_CHECK_EQ(valid.ToString(), absl::OkStatus().ToString());
  }
#endif
  return absl::OkStatus();
}

// What the layer would send if each expert were asked by itself.
void ExpertLayer::CountNaive(int64_t width, StepFigures* figures) const {
  for (const ServiceDispatch& dispatch : plan_.services()) {
    figures->naive_messages += static_cast<int64_t>(dispatch.experts.size());
    figures->naive_bytes += dispatch.num_assignments() * width * static_cast<int64_t>(sizeof(Bf16));
  }
}

void ExpertLayer::CountRound(int64_t width, StepFigures* figures) const {
  const DispatchCounts& counts = plan_.counts();
  figures->dispatched_rows += counts.dispatched_rows;
  figures->reply_rows += counts.reply_rows;
  if (recovery_.round() == 0) {
    figures->assignments += counts.demanded;
    figures->dropped += counts.dropped;
    figures->dispatched += counts.served;
    CountNaive(width, figures);
  } else {
    ++figures->resends;
    figures->resent_rows += plan_.num_rows();
  }
}

// The wave's rows ─▶ those of a later round.
Bf16Rows ExpertLayer::GatherRows(Bf16Rows rows) {
  const absl::Span<const int64_t> row_ids = recovery_.row_ids();
  resent_.Reset(static_cast<int64_t>(row_ids.size()), rows.width);
  for (size_t i = 0; i < row_ids.size(); ++i) {
    std::copy_n(rows.row(row_ids[i]), rows.width, resent_.rows().row(static_cast<int64_t>(i)));
  }
  return resent_.rows();
}

// Replies ─▶ the round's rows of `out`.
void ExpertLayer::CombineRound(MutableBf16Rows out) {
  if (recovery_.round() == 0) {
    executor_.Run([&] { Combine(executor_, kernels_, plan_, reply_views_, out); });
    return;
  }
  combined_.Reset(plan_.num_rows(), out.width);
  executor_.Run([&] { Combine(executor_, kernels_, plan_, reply_views_, combined_.rows()); });
  const absl::Span<const int64_t> row_ids = recovery_.row_ids();
  for (size_t i = 0; i < row_ids.size(); ++i) {
    std::copy_n(combined_.rows().row(static_cast<int64_t>(i)), out.width, out.row(row_ids[i]));
  }
}

}  // namespace moebius
