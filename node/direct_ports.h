// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "attention_service/attention_pipeline.h"
#include "expert_service/expert_pipeline.h"
#include "moebius/base/executor.h"
#include "router_service/ports.h"

namespace moebius {

/// The attention pipeline of the same process behind the router's port. Borrows the pipeline.
class DirectAttention final : public AttentionPort {
 public:
  explicit DirectAttention(AttentionPipeline* pipeline) : pipeline_(*pipeline) {}

  absl::Status BeginStep(const StepPlan& step) override { return pipeline_.BeginStep(step); }
  absl::Status RunLayer(LayerId layer, Bf16Rows normed, MutableBf16Rows out) override {
    return pipeline_.RunLayer(layer.value(), normed, out);
  }
  absl::Status CommitStep() override { return pipeline_.CommitStep(); }
  void AbortStep() override { pipeline_.AbortStep(); }
  void EndSession(SessionId session) override { pipeline_.EndSession(session); }
  KvPool kv_pool() const override;

 private:
  AttentionPipeline& pipeline_;
};

/// Expert pipelines of the same process behind the router's port, one per service of the
/// placement, one after the other on one executor. Borrows executor and pipelines.
class DirectExperts final : public ExpertPort {
 public:
  DirectExperts(Executor* executor, std::vector<ExpertPipeline*> pipelines)
      : executor_(*executor), pipelines_(std::move(pipelines)) {}

  absl::Status BeginStep(const StepPlan&) override { return absl::OkStatus(); }
  /// No service fails alone: what one cannot do here no other could.
  absl::Status Forward(LayerId layer, const DispatchPlan& plan, ForwardCall call, Bf16Rows rows,
                       absl::Span<const MutableBf16Rows> replies,
                       std::vector<ServiceId>* failed) override;
  void EndStep() override {}

 private:
  Executor& executor_;
  const std::vector<ExpertPipeline*> pipelines_;
};

}  // namespace moebius
