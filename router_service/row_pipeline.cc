// SPDX-License-Identifier: Apache-2.0
#include "router_service/row_pipeline.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "moebius/base/check.h"
#include "moebius/base/clock.h"
#include "moebius/base/status.h"
#include "moebius/kernels/block_gemm.h"
#include "moebius/kernels/gate_logits.h"
#include "moebius/kernels/norm.h"
#include "moebius/kernels/row_ops.h"
#include "moebius/routing/combine.h"
#include "moebius/routing/dispatch_plan.h"
#include "moebius/routing/gate.h"

namespace moebius {
namespace {

// Elements from which element-wise work pays for a fork and join.
constexpr int64_t kParallelElements = int64_t{1} << 16;

// Of so many dispatch plans one is checked against all rules; under the sanitizers every one.
#ifdef __SANITIZE_ADDRESS__
[[maybe_unused]] constexpr uint64_t kPlansPerCheck = 1;
#else
[[maybe_unused]] constexpr uint64_t kPlansPerCheck = 31;  // prime: it visits every layer
#endif

// Adds the time since the last lap to a phase.
class PhaseTimer {
 public:
  PhaseTimer() : last_(Clock::Monotonic().Now()) {}
  void Lap(double* phase_seconds) {
    const absl::Duration now = Clock::Monotonic().Now();
    *phase_seconds += absl::ToDoubleSeconds(now - last_);
    last_ = now;
  }

 private:
  absl::Duration last_;
};

bool AllFinite(absl::Span<const float> values) {
  constexpr uint32_t kExponent = 0x7F800000;  // all ones for an infinity or a NaN
  uint32_t found = 0;
  for (const float value : values) {
    found |= static_cast<uint32_t>((std::bit_cast<uint32_t>(value) & kExponent) == kExponent);
  }
  return found == 0;
}

}  // namespace

class RowPipeline::Impl {
 public:
  explicit Impl(const Parts& parts)
      : config_(*parts.config),
        numerics_(*parts.numerics),
        weights_(*parts.weights),
        kernels_(*parts.kernels),
        executor_(*parts.executor),
        attention_(*parts.attention),
        experts_(*parts.experts),
        placement_(*parts.placement),
        replies_(static_cast<size_t>(placement_.num_services())),
        reply_views_(replies_.size()) {}

  absl::Status RunStep(const StepRequest& request, StepResult* result) {
    MOEBIUS_CHECK_EQ(static_cast<int64_t>(request.token_ids.size()), request.plan.num_rows);
    result->nonfinite_rows.clear();
    result->figures = StepFigures();
    result->figures.num_rows = request.plan.num_rows;
    const absl::Status status = RunReserved(request, result);
    experts_.EndStep();
    if (!status.ok()) attention_.AbortStep();
    return status;
  }

  void EndSession(SessionId session) { attention_.EndSession(session); }
  KvPool kv_pool() const { return attention_.kv_pool(); }
  void SetObserver(StepObserver* observer) { observer_ = observer; }

 private:
  absl::Status RunReserved(const StepRequest& request, StepResult* result) {
    PhaseTimer timer;
    MOEBIUS_RETURN_IF_ERROR(attention_.BeginStep(request.plan));
    timer.Lap(&result->figures.attention_seconds);
    MOEBIUS_RETURN_IF_ERROR(experts_.BeginStep(request.plan));
    timer.Lap(&result->figures.expert_seconds);

    Embed(request.token_ids);
    timer.Lap(&result->figures.embed_seconds);
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      MOEBIUS_RETURN_IF_ERROR(RunAttention(LayerId(layer), timer, result));
      MOEBIUS_RETURN_IF_ERROR(RunExperts(LayerId(layer), timer, result));
    }
    Head(request.logit_rows, &result->logits);
    FindNonfiniteRows(&result->nonfinite_rows);
    timer.Lap(&result->figures.head_seconds);

    MOEBIUS_RETURN_IF_ERROR(attention_.CommitStep());
    timer.Lap(&result->figures.attention_seconds);
    return absl::OkStatus();
  }

  // rows ─▶ attention ranks ─▶ + residual
  absl::Status RunAttention(LayerId layer, PhaseTimer& timer, StepResult* result) {
    Normalize(weights_.attention_norms[IndexOf(layer)]);
    timer.Lap(&result->figures.norm_seconds);
    MOEBIUS_RETURN_IF_ERROR(attention_.RunLayer(layer, normed_.rows(), delta_.rows()));
    timer.Lap(&result->figures.attention_seconds);
    AddToResidual();
    timer.Lap(&result->figures.norm_seconds);
    return absl::OkStatus();
  }

  // rows ─▶ gate ─▶ assignments ─▶ DispatchPlan ─▶ forward ─▶ replies ─▶ Combine ─▶ + residual
  absl::Status RunExperts(LayerId layer, PhaseTimer& timer, StepResult* result) {
    Normalize(weights_.ffn_norms[IndexOf(layer)]);
    timer.Lap(&result->figures.norm_seconds);
    Gate(layer, result);
    timer.Lap(&result->figures.gate_seconds);
    MOEBIUS_RETURN_IF_ERROR(Plan(layer, &result->figures));
    timer.Lap(&result->figures.plan_seconds);
    MOEBIUS_RETURN_IF_ERROR(experts_.Forward(layer, plan_, normed_.rows(), reply_views_));
    timer.Lap(&result->figures.expert_seconds);
    CombineReplies();
    timer.Lap(&result->figures.combine_seconds);
    AddToResidual();
    timer.Lap(&result->figures.norm_seconds);
    return absl::OkStatus();
  }

  // token ids ─▶ residual_ [num_rows, hidden_size], and room for what the layers make of it.
  void Embed(absl::Span<const int32_t> token_ids) {
    const int64_t num_rows = static_cast<int64_t>(token_ids.size());
    residual_.Reset(num_rows, config_.hidden_size);
    normed_.Reset(num_rows, config_.hidden_size);
    delta_.Reset(num_rows, config_.hidden_size);
    ForRows(num_rows, [&](int64_t begin, int64_t end) {
      GatherRows(weights_.embedding.rows(),
                 token_ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                 residual_.rows().Slice(begin, end));
    });
  }

  // residual_ ─▶ normed_, rounded to bf16.
  void Normalize(const RowBatch<Bf16>& norm) {
    ForRows(residual_.num_rows(), [&](int64_t begin, int64_t end) {
      RmsNorm(FloatRows(residual_.rows()).Slice(begin, end), norm.rows().span(0),
              config_.rms_norm_eps, normed_.rows().Slice(begin, end));
    });
  }

  // residual_ += delta_, fp32.
  void AddToResidual() {
    ForRows(residual_.num_rows(), [&](int64_t begin, int64_t end) {
      AddRows(Bf16Rows(delta_.rows()).Slice(begin, end), residual_.rows().Slice(begin, end));
    });
  }

  // normed_ ─▶ assignments_; none in a dense layer, where every row visits every slice.
  void Gate(LayerId layer, StepResult* result) {
    const int64_t num_rows = normed_.num_rows();
    if (!config_.IsMoeLayer(layer.value())) {
      assignments_.Reset(num_rows, 0);
      return;
    }
    const GateWeights& gate = weights_.gates[IndexOf(layer)];
    GateCounts counts;
    gate_logits_.Reset(num_rows, config_.gate.num_experts);
    executor_.Run([&] {
      GateLogits(executor_, kernels_, normed_.rows(), gate.matrix, gate_logits_.rows());
      SelectExperts(executor_, config_.gate, numerics_.group_fill, gate_logits_.rows(), gate.bias,
                    &assignments_, &counts);
    });
    result->figures.group_fill_mismatches += counts.group_fill_mismatches;
    result->nonfinite_rows.insert(result->nonfinite_rows.end(), assignments_.refused_rows.begin(),
                                  assignments_.refused_rows.end());
    if (observer_ != nullptr) observer_->OnGate(layer, gate_logits_.rows(), assignments_);
  }

  // assignments_ ─▶ plan_, and room for the replies that it announces.
  absl::Status Plan(LayerId layer, StepFigures* figures) {
    LayerRule rule;
    rule.layer = layer;
    rule.num_experts = config_.gate.num_experts;
    rule.num_combine_groups = numerics_.num_combine_groups;
    rule.num_slices = placement_.shape().LayerAt(layer).num_slices;
    const DispatchLimits limits;
    MOEBIUS_RETURN_IF_ERROR(BuildDispatchPlan(rule, assignments_, placement_, limits, &plan_));
    CheckConservation(limits);
    const DispatchCounts& counts = plan_.counts();
    figures->assignments += counts.demanded;
    figures->dropped += counts.dropped;
    figures->dispatched_rows += counts.dispatched_rows;
    figures->reply_rows += counts.reply_rows;
    for (size_t service = 0; service < replies_.size(); ++service) {
      replies_[service].Reset(plan_.services()[service].num_reply_rows, config_.hidden_size);
      reply_views_[service] = replies_[service].rows();
    }
    return absl::OkStatus();
  }

  // Tokens are conserved: what the gate demanded is served or counted as dropped. Checking every
  // rule of a plan from scratch takes longer than building it: some plans stand for all.
  void CheckConservation([[maybe_unused]] const DispatchLimits& limits) {
    const DispatchCounts& counts = plan_.counts();
    const int64_t gated =
        assignments_.num_rows - static_cast<int64_t>(assignments_.refused_rows.size());
    MOEBIUS_CHECK_EQ(counts.demanded, gated * assignments_.top_k);
    MOEBIUS_CHECK_EQ(counts.served + counts.dropped, counts.demanded);
#ifdef MOEBIUS_CHECKS
    if (num_plans_++ % kPlansPerCheck != 0) return;
    const absl::Status valid = ValidateDispatchPlan(plan_, assignments_, placement_, limits);
    MOEBIUS_CHECK_EQ(valid.ToString(), absl::OkStatus().ToString());
#endif
  }

  // replies ─▶ delta_
  void CombineReplies() {
    executor_.Run([&] { Combine(executor_, kernels_, plan_, reply_views_, delta_.rows()); });
  }

  // residual_ ─▶ final norm ─▶ logits [logit_rows, vocab_size], of the rows that need them.
  void Head(absl::Span<const int64_t> logit_rows, RowBatch<float>* logits) {
    const int64_t num_rows = static_cast<int64_t>(logit_rows.size());
    logits->Reset(num_rows, config_.vocab_size);
    final_.Reset(num_rows, config_.hidden_size);
    executor_.Run([&] {
      for (int64_t index = 0; index < num_rows; ++index) {
        const int64_t row = logit_rows[static_cast<size_t>(index)];
        RmsNorm(FloatRows(residual_.rows()).Slice(row, row + 1), weights_.final_norm.rows().span(0),
                config_.rms_norm_eps, final_.rows().Slice(index, index + 1));
      }
      ParallelLogits(executor_, kernels_, final_.rows(), weights_.head, logits->rows());
    });
  }

  // A NaN or infinity never leaves the residual again: looking at its end finds all of them.
  void FindNonfiniteRows(std::vector<int64_t>* rows) const {
    for (int64_t row = 0; row < residual_.num_rows(); ++row) {
      if (!AllFinite(residual_.rows().span(row))) rows->push_back(row);
    }
    std::sort(rows->begin(), rows->end());
    rows->erase(std::unique(rows->begin(), rows->end()), rows->end());
  }

  // Calls body(begin, end) on the executor for ranges of rows that cover [0, num_rows).
  void ForRows(int64_t num_rows, absl::FunctionRef<void(int64_t, int64_t)> body) {
    executor_.Run([&] {
      if (num_rows * config_.hidden_size < kParallelElements) return body(0, num_rows);
      const int64_t num_tasks = std::min<int64_t>(executor_.num_threads(), num_rows);
      executor_.ParallelFor(num_tasks, [&](int64_t index, int) {
        const TaskRange range = SplitEvenly(num_rows, index, num_tasks);
        body(range.begin, range.end);
      });
    });
  }

  static size_t IndexOf(LayerId layer) { return static_cast<size_t>(layer.value()); }

  const ModelConfig& config_;
  const NumericsConfig& numerics_;
  const RouterWeights& weights_;
  const Kernels& kernels_;
  Executor& executor_;
  AttentionPort& attention_;
  ExpertPort& experts_;
  const Placement& placement_;
  StepObserver* observer_ = nullptr;
  uint64_t num_plans_ = 0;

  // Of the step in progress; kept from step to step.
  RowBatch<float> residual_;     // [num_rows, hidden_size]
  RowBatch<Bf16> normed_;        // [num_rows, hidden_size]
  RowBatch<Bf16> delta_;         // [num_rows, hidden_size], what the residual gains
  RowBatch<float> gate_logits_;  // [num_rows, num_experts]
  RowBatch<Bf16> final_;         // [logit rows, hidden_size]
  Assignments assignments_;
  DispatchPlan plan_;
  std::vector<RowBatch<Bf16>> replies_;  // per service [its reply rows, hidden_size]
  std::vector<MutableBf16Rows> reply_views_;
};

RowPipeline::RowPipeline(const Parts& parts) : impl_(std::make_unique<Impl>(parts)) {}
RowPipeline::~RowPipeline() = default;
absl::Status RowPipeline::RunStep(const StepRequest& request, StepResult* result) {
  return impl_->RunStep(request, result);
}
void RowPipeline::EndSession(SessionId session) { impl_->EndSession(session); }
KvPool RowPipeline::kv_pool() const { return impl_->kv_pool(); }
void RowPipeline::SetObserver(StepObserver* observer) { impl_->SetObserver(observer); }

}  // namespace moebius
