// SPDX-License-Identifier: Apache-2.0
#include "router_service/row_pipeline.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/clock.h"
#include "moebius/base/status.h"
#include "moebius/kernels/block_gemm.h"
#include "moebius/kernels/norm.h"
#include "moebius/kernels/row_ops.h"
#include "moebius/routing/dispatch_plan.h"
#include "moebius/routing/replica_choice.h"
#include "router_service/exactness.h"
#include "router_service/expert_layer.h"
#include "router_service/phase_timer.h"
#include "router_service/row_gate.h"

namespace moebius {
namespace {

// Elements from which element-wise work pays for a fork and join.
constexpr int64_t kParallelElements = int64_t{1} << 16;

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
        load_(parts.load),
        gate_({parts.config, parts.numerics, parts.weights, parts.kernels, parts.executor,
               parts.capacity, parts.biases}),
        replica_load_(placement_),
        expert_layer_({&kernels_, &executor_, &experts_, &placement_, parts.max_rows_per_service,
                       parts.message_rows.value_or(MessageRows(config_.ExpertWeightBytes())),
                       &replica_load_}) {}

  absl::Status RunStep(const StepRequest& request, StepResult* result) {
    MOEBIUS_CHECK_EQ(static_cast<int64_t>(request.token_ids.size()), request.plan.num_rows);
    result->Begin(request.plan.num_rows);
    result->phases.Begin(request.wants_phases);
    gate_.BeginStep(request.plan, request.purpose);
    replica_load_.BeginStep();
    const PortTraffic attention_before = attention_.traffic();
    const PortTraffic experts_before = experts_.traffic();
    absl::Status status = RunReserved(request, result);
    experts_.EndStep();
    result->slowest_service = experts_.slowest_service();
    if (status.ok()) status = CheckConservation(&result->figures);
    result->figures.attention_traffic = attention_.traffic().Since(attention_before);
    result->figures.expert_traffic = experts_.traffic().Since(experts_before);
    if (!status.ok()) {
      attention_.AbortStep();
    } else if (request.purpose == StepPurpose::kServe) {
      CountLoad();
    }
    return status;
  }

  absl::Status ForwardRows(uint64_t step, LayerId layer, Bf16Rows normed, MutableBf16Rows out,
                           ForwardResult* forward) {
    MOEBIUS_CHECK(config_.IsMoeLayer(layer.value()));
    StepPlan plan;
    plan.step = step;
    plan.num_rows = normed.num_rows;
    MOEBIUS_RETURN_IF_ERROR(experts_.BeginStep(plan));
    gate_.BeginStep(plan, StepPurpose::kServe);
    replica_load_.BeginStep();
    absl::Status status = ForwardReserved(layer, normed, out, forward);
    experts_.EndStep();
    if (status.ok()) CountLoad();
    return status;
  }

  void EndSession(SessionId session) { attention_.EndSession(session); }
  KvPool kv_pool() const { return attention_.kv_pool(); }
  bool WaitUntilUsable(absl::Duration timeout) {
    const Clock& clock = Clock::Monotonic();
    const absl::Duration end = clock.Now() + timeout;
    return experts_.WaitUntilUsable(timeout) &&
           attention_.WaitUntilUsable(std::max(absl::ZeroDuration(), end - clock.Now()));
  }
  std::vector<SessionId> TakeLostSessions() { return attention_.TakeLostSessions(); }
  void SetObserver(StepObserver* observer) { observer_ = observer; }
  const ReplicaLoad& replica_load() const { return replica_load_; }

 private:
  absl::Status ForwardReserved(LayerId layer, Bf16Rows normed, MutableBf16Rows out,
                               ForwardResult* forward) {
    normed_.Reset(normed.num_rows, normed.width);
    for (int64_t row = 0; row < normed.num_rows; ++row) {
      std::copy_n(normed.row(row), normed.width, normed_.rows().row(row));
    }
    StepResult result;
    PhaseTimer timer(&forward->phases);
    gate_.Choose(layer, normed_.rows(), &result);
    timer.Lap(&result.figures.gate_seconds, StepPhase::kGate, layer);
    if (!result.nonfinite_rows.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", result.nonfinite_rows.front(),
                       " is not finite, or so large that its gate scores are not"));
    }
    if (!result.rejected_rows.empty()) {
      const RejectedRow& rejected = result.rejected_rows.front();
      return RejectedByCapacity(rejected, absl::StrCat("row ", rejected.row));
    }
    MOEBIUS_RETURN_IF_ERROR(DispatchLayer(layer, out, &result.figures, &forward->phases));
    MOEBIUS_RETURN_IF_ERROR(CheckConservation(&result.figures));
    forward->figures.Add(result.figures);
    forward->effects.Add({result.figures.dropped, result.figures.rerouted, result.bias_version});
    return absl::OkStatus();
  }

  // assignments ─▶ expert services ─▶ out, and what of them was served.
  absl::Status DispatchLayer(LayerId layer, MutableBf16Rows out, StepFigures* figures,
                             PhaseLog* phases) {
    MOEBIUS_RETURN_IF_ERROR(expert_layer_.Run(RuleOf(layer), gate_.assignments(), normed_.rows(),
                                              out, figures, phases));
    gate_.load().AddServed(layer, expert_layer_.served());
    return absl::OkStatus();
  }

  // What was served is counted in the plans, what is expected in the gates: two ways to one number.
  absl::Status CheckConservation(StepFigures* figures) {
    figures->combined = gate_.load().TotalServed();
    figures->conservation_errors = gate_.load().CountConservationErrors();
    if (figures->conservation_errors == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("assignments of ", figures->conservation_errors,
                                            " experts were lost or doubled in the step"));
  }

  void CountLoad() {
    gate_.Commit();
    replica_load_.Commit();
    if (load_ != nullptr) load_->Add(gate_.load());
  }

  absl::Status RunReserved(const StepRequest& request, StepResult* result) {
    PhaseTimer timer(&result->phases);
    MOEBIUS_RETURN_IF_ERROR(attention_.BeginStep(request.plan));
    result->figures.attention_methods = attention_.step_methods();
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
    FindNonfiniteRows(request.logit_rows, result);
    timer.Lap(&result->figures.head_seconds);

    MOEBIUS_RETURN_IF_ERROR(attention_.CommitStep());
    timer.Lap(&result->figures.attention_seconds);
    return absl::OkStatus();
  }

  // rows ─▶ attention ranks ─▶ + residual
  absl::Status RunAttention(LayerId layer, PhaseTimer& timer, StepResult* result) {
    Normalize(weights_.attention_norms[IndexOf(layer)]);
    timer.Lap(&result->figures.norm_seconds);
    const absl::Status attended = attention_.RunLayer(layer, normed_.rows(), delta_.rows());
    timer.Lap(&result->figures.attention_seconds, StepPhase::kAttention, layer);
    MOEBIUS_RETURN_IF_ERROR(attended);
    AddToResidual();
    timer.Lap(&result->figures.norm_seconds);
    return absl::OkStatus();
  }

  // rows ─▶ gate ─▶ assignments ─▶ expert services ─▶ + residual
  absl::Status RunExperts(LayerId layer, PhaseTimer& timer, StepResult* result) {
    Normalize(weights_.ffn_norms[IndexOf(layer)]);
    timer.Lap(&result->figures.norm_seconds);
    gate_.Choose(layer, normed_.rows(), result);
    if (observer_ != nullptr && config_.IsMoeLayer(layer.value())) {
      observer_->OnGate(layer, gate_.logits(), gate_.assignments());
    }
    timer.Lap(&result->figures.gate_seconds, StepPhase::kGate, layer);
    MOEBIUS_RETURN_IF_ERROR(DispatchLayer(layer, delta_.rows(), &result->figures, &result->phases));
    timer.Restart();
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

  LayerRule RuleOf(LayerId layer) const {
    LayerRule rule;
    rule.layer = layer;
    rule.num_experts = config_.gate.num_experts;
    rule.num_combine_groups = numerics_.num_combine_groups;
    rule.num_slices = placement_.shape().LayerAt(layer).num_slices;
    return rule;
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

  // A NaN or infinity never leaves the residual again: looking at its end finds all of them but
  // those that the final norm and the head make.
  void FindNonfiniteRows(absl::Span<const int64_t> logit_rows, StepResult* result) const {
    std::vector<int64_t>& rows = result->nonfinite_rows;
    for (int64_t row = 0; row < residual_.num_rows(); ++row) {
      if (!AllFinite(residual_.rows().span(row))) rows.push_back(row);
    }
    for (size_t index = 0; index < logit_rows.size(); ++index) {
      const absl::Span<const float> logits =
          result->logits.rows().span(static_cast<int64_t>(index));
      if (!AllFinite(logits)) rows.push_back(logit_rows[index]);
    }
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
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
  ExpertLoad* const load_;
  StepObserver* observer_ = nullptr;

  // Of the step in progress; kept from step to step.
  RowBatch<float> residual_;  // [num_rows, hidden_size]
  RowBatch<Bf16> normed_;     // [num_rows, hidden_size]
  RowBatch<Bf16> delta_;      // [num_rows, hidden_size], what the residual gains
  RowBatch<Bf16> final_;      // [logit rows, hidden_size]
  RowGate gate_;
  ReplicaLoad replica_load_;
  ExpertLayer expert_layer_;
};

RowPipeline::RowPipeline(const Parts& parts) : impl_(std::make_unique<Impl>(parts)) {}
RowPipeline::~RowPipeline() = default;
absl::Status RowPipeline::RunStep(const StepRequest& request, StepResult* result) {
  return impl_->RunStep(request, result);
}
void RowPipeline::EndSession(SessionId session) { impl_->EndSession(session); }
KvPool RowPipeline::kv_pool() const { return impl_->kv_pool(); }
bool RowPipeline::WaitUntilUsable(absl::Duration timeout) {
  return impl_->WaitUntilUsable(timeout);
}
std::vector<SessionId> RowPipeline::TakeLostSessions() { return impl_->TakeLostSessions(); }
absl::Status RowPipeline::ForwardRows(uint64_t step, LayerId layer, Bf16Rows normed,
                                      MutableBf16Rows out, ForwardResult* forward) {
  return impl_->ForwardRows(step, layer, normed, out, forward);
}
const ReplicaLoad& RowPipeline::replica_load() const { return impl_->replica_load(); }
void RowPipeline::SetObserver(StepObserver* observer) { impl_->SetObserver(observer); }

}  // namespace moebius
