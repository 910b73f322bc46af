// SPDX-License-Identifier: Apache-2.0
#include "attention_service/attention_pipeline.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "attention_service/attention_weights.h"
#include "attention_service/kv_cache.h"
#include "attention_service/kv_layout.h"
#include "attention_service/packed_attention.h"
#include "attention_service/projections.h"
#include "attention_service/span_sum.h"
#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/kernels/block_gemm.h"

namespace moebius {

class AttentionPipeline::Impl {
 public:
  Impl(const AttentionFacts& facts, const KvLayout& layout, int64_t num_blocks,
       const Kernels& kernels, Executor& executor)
      : facts(facts),
        kernels(kernels),
        executor(executor),
        cache(layout, facts.num_layers, num_blocks),
        projections(facts, layout, kernels, executor),
        sum(facts, layout, kernels, executor) {}

  void RunLayer(int64_t layer, Bf16Rows normed, MutableBf16Rows out) {
    const PackedAttentionLayer& weights = layers[static_cast<size_t>(layer)];
    const Bf16Rows queries = projections.Run(weights, layer, normed, cache);
    heads.Reset(normed.num_rows, weights.output.depth());
    sum.Run(weights, layer, queries, cache, heads.rows());
    ParallelMatMulBf16(executor, kernels, heads.rows(), weights.output, {}, out);
  }

  AttentionFacts facts;
  const Kernels& kernels;
  Executor& executor;
  std::vector<PackedAttentionLayer> layers;
  KvCache cache;
  Projections projections;
  SpanSum sum;
  StepPlan plan;         // of the open step
  RowBatch<Bf16> heads;  // [num_rows, heads * v_head_dim]: attention outputs
};

AttentionPipeline::AttentionPipeline(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AttentionPipeline::~AttentionPipeline() = default;

absl::StatusOr<std::unique_ptr<AttentionPipeline>> AttentionPipeline::Load(
    const Checkpoint& checkpoint, const Kernels& kernels, Executor& executor,
    int64_t kv_budget_bytes) {
  return Make(
      AttentionFactsOf(checkpoint),
      [&](int64_t layer) { return LoadAttentionLayer(checkpoint, layer); }, kernels, executor,
      kv_budget_bytes);
}

absl::StatusOr<std::unique_ptr<AttentionPipeline>> AttentionPipeline::Make(
    const AttentionFacts& facts, AttentionLayerSource source, const Kernels& kernels,
    Executor& executor, int64_t kv_budget_bytes) {
  MOEBIUS_RETURN_IF_ERROR(ValidateAttentionFacts(facts));
  const KvLayout layout(facts, kernels.pair_order);
  const int64_t block_bytes = KvCache::BlockBytes(layout, facts.num_layers);
  if (kv_budget_bytes < block_bytes) {
    return WithHint(absl::InvalidArgumentError(absl::StrCat(
                        "KV budget of ", kv_budget_bytes, " bytes holds no block: ",
                        facts.key_block, " positions of this model take ", block_bytes, " bytes")),
                    absl::StrCat("give the KV pool at least ", block_bytes, " bytes"));
  }
  auto impl =
      std::make_unique<Impl>(facts, layout, kv_budget_bytes / block_bytes, kernels, executor);
  for (int64_t layer = 0; layer < facts.num_layers; ++layer) {
    MOEBIUS_ASSIGN_OR_RETURN(const AttentionLayerWeights weights, source(layer));
    auto packed = PackedAttentionLayer::Pack(facts, weights, kernels.pair_order);
    if (!packed.ok()) return WithContext(packed.status(), absl::StrCat("layer ", layer));
    impl->layers.push_back(*std::move(packed));
  }
  return std::unique_ptr<AttentionPipeline>(new AttentionPipeline(std::move(impl)));
}

absl::Status AttentionPipeline::BeginStep(const StepPlan& plan) {
  AbortStep();
  MOEBIUS_RETURN_IF_ERROR(ValidateStepPlan(plan));
  MOEBIUS_RETURN_IF_ERROR(impl_->cache.BeginStep(plan));
  impl_->plan = plan;
  impl_->executor.Run([&] {
    impl_->projections.BeginStep(impl_->plan);
    impl_->sum.BeginStep(impl_->plan);
  });
  return absl::OkStatus();
}

absl::Status AttentionPipeline::RunLayer(int64_t layer, Bf16Rows normed, MutableBf16Rows out) {
  if (!impl_->cache.has_open_step()) {
    return absl::FailedPreconditionError("attention has no open step");
  }
  if (layer < 0 || layer >= impl_->facts.num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, " is not in [0, ", impl_->facts.num_layers, ")"));
  }
  const int64_t hidden_size = impl_->facts.hidden_size;
  if (normed.num_rows != impl_->plan.num_rows || normed.width != hidden_size ||
      out.num_rows != impl_->plan.num_rows || out.width != hidden_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention rows are [", normed.num_rows, ", ", normed.width, "] in and [", out.num_rows,
        ", ", out.width, "] out, the step has [", impl_->plan.num_rows, ", ", hidden_size, "]"));
  }
  if (impl_->plan.num_rows == 0) return absl::OkStatus();
  impl_->executor.Run([&] { impl_->RunLayer(layer, normed, out); });
  return absl::OkStatus();
}

absl::Status AttentionPipeline::CommitStep() {
  if (!impl_->cache.has_open_step()) {
    return absl::FailedPreconditionError("attention has no open step");
  }
  impl_->cache.CommitStep();
  return absl::OkStatus();
}

void AttentionPipeline::AbortStep() { impl_->cache.AbortStep(); }

void AttentionPipeline::EndSession(SessionId session) { impl_->cache.EndSession(session); }

int64_t AttentionPipeline::SessionLength(SessionId session) const {
  return impl_->cache.SessionLength(session);
}

KvUsage AttentionPipeline::usage() const { return impl_->cache.usage(); }

int64_t AttentionPipeline::weight_bytes() const {
  int64_t bytes = 0;
  for (const PackedAttentionLayer& layer : impl_->layers) bytes += layer.bytes();
  return bytes;
}

}  // namespace moebius
