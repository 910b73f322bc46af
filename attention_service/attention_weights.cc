// SPDX-License-Identifier: Apache-2.0
#include "attention_service/attention_weights.h"

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"

namespace moebius {

AttentionFacts AttentionFactsOf(const Checkpoint& checkpoint) {
  return {.config = checkpoint.config().attention,
          .hidden_size = checkpoint.config().hidden_size,
          .num_layers = checkpoint.config().num_layers,
          .span = checkpoint.numerics().span,
          .key_block = checkpoint.numerics().key_block,
          .sum = *ParseAttentionSum(checkpoint.numerics().attention_sum),
          .layout = *ParseAttentionLayout(checkpoint.numerics().attention_layout)};
}

absl::Status ValidateAttentionFacts(const AttentionFacts& facts) {
  const AttentionConfig& config = facts.config;
  if (absl::Status status = ValidateSpanGeometry(facts.span, facts.key_block); !status.ok()) {
    return status;
  }
  if (config.output_bias) {
    return absl::UnimplementedError("a bias on attention's output projection is not supported");
  }
  if (!config.is_causal && !config.windows.empty()) {
    return absl::UnimplementedError("attention that is not causal has no windows");
  }
  if (facts.hidden_size < 1 || facts.num_layers < 1 || config.num_query_heads < 1 ||
      config.qk_head_dim < 1 || config.v_head_dim < 1) {
    return absl::InvalidArgumentError("attention needs at least one layer, head and element");
  }
  if (config.mla.has_value()) {
    const MlaConfig& mla = *config.mla;
    if (mla.qk_nope_dim < 1 || mla.kv_lora_rank < 1 || mla.qk_rope_dim < 2 ||
        mla.qk_nope_dim + mla.qk_rope_dim != config.qk_head_dim ||
        config.rope.dim != mla.qk_rope_dim) {
      return absl::InvalidArgumentError(
          absl::StrCat("latent attention with head size ", config.qk_head_dim, " = ",
                       mla.qk_nope_dim, " + ", mla.qk_rope_dim, ", rank ", mla.kv_lora_rank,
                       " and ", config.rope.dim, " rotated elements does not fit together"));
    }
    return absl::OkStatus();
  }
  if (config.num_kv_heads < 1 || config.num_query_heads % config.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(config.num_kv_heads, " KV heads do not divide ",
                                                   config.num_query_heads, " query heads"));
  }
  if (config.rope.dim < 0 || config.rope.dim > config.qk_head_dim || config.rope.dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.rope.dim, " rotated elements in a head of ", config.qk_head_dim));
  }
  return absl::OkStatus();
}

AttentionBlocks AttentionBlocksOf(const Checkpoint& checkpoint, int64_t layer) {
  const auto blocks = [&](Part part) -> std::optional<Fp8Rows> {
    const ParameterKey key{.part = part, .layer = static_cast<int32_t>(layer)};
    return checkpoint.Has(key) ? checkpoint.BlocksOf(key) : std::nullopt;
  };
  return {.q = blocks(Part::kQ),
          .k = blocks(Part::kK),
          .v = blocks(Part::kV),
          .o = blocks(Part::kO),
          .q_a = blocks(Part::kQA),
          .q_b = blocks(Part::kQB),
          .kv_a = blocks(Part::kKvA),
          .kv_b = blocks(Part::kKvB)};
}

AttentionBlocks AttentionBlocksOf(const AttentionLayerWeights& weights) {
  return {.q = weights.q.rows().blocks(),
          .k = weights.k.rows().blocks(),
          .v = weights.v.rows().blocks(),
          .o = weights.o.rows().blocks(),
          .q_a = weights.q_a.rows().blocks(),
          .q_b = weights.q_b.rows().blocks(),
          .kv_a = weights.kv_a.rows().blocks(),
          .kv_b = weights.kv_b.rows().blocks()};
}

absl::StatusOr<AttentionLayerWeights> LoadAttentionLayer(const Checkpoint& checkpoint,
                                                         int64_t layer, AttentionParts parts) {
  AttentionLayerWeights weights;
  const struct {
    Part part;
    WeightMatrix* target;
  } matrices[] = {{Part::kQ, &weights.q},      {Part::kK, &weights.k},
                  {Part::kV, &weights.v},      {Part::kO, &weights.o},
                  {Part::kQA, &weights.q_a},   {Part::kQB, &weights.q_b},
                  {Part::kKvA, &weights.kv_a}, {Part::kKvB, &weights.kv_b}};
  for (const auto& [part, target] : matrices) {
    const ParameterKey key{.part = part, .layer = static_cast<int32_t>(layer)};
    if (!checkpoint.Has(key) || parts == AttentionParts::kVectors) continue;
    MOEBIUS_ASSIGN_OR_RETURN(*target, checkpoint.LoadWeights(key));
  }
  const struct {
    Part part;
    RowBatch<Bf16>* target;
  } norms[] = {{Part::kQNorm, &weights.q_norm},
               {Part::kKNorm, &weights.k_norm},
               {Part::kQANorm, &weights.q_a_norm},
               {Part::kKvANorm, &weights.kv_a_norm}};
  for (const auto& [part, target] : norms) {
    const ParameterKey key{.part = part, .layer = static_cast<int32_t>(layer)};
    if (!checkpoint.Has(key)) continue;
    MOEBIUS_ASSIGN_OR_RETURN(*target, checkpoint.LoadBf16(key));
  }
  const struct {
    Part part;
    RowBatch<float>* target;
  } biases[] = {{Part::kQBias, &weights.q_bias},
                {Part::kKBias, &weights.k_bias},
                {Part::kVBias, &weights.v_bias}};
  for (const auto& [part, target] : biases) {
    const ParameterKey key{.part = part, .layer = static_cast<int32_t>(layer)};
    if (!checkpoint.Has(key)) continue;
    MOEBIUS_ASSIGN_OR_RETURN(*target, checkpoint.LoadFloat(key));
  }
  return weights;
}

}  // namespace moebius
