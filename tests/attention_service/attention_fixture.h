// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention_service/attention_pipeline.h"
#include "attention_service/attention_weights.h"
#include "moebius/base/executor.h"
#include "moebius/kernels/kernels.h"
#include "moebius/tensor/buffer.h"

namespace moebius::testing {

/// A small model's attention with seeded weights: norms near 1, projections that keep the scale.
struct AttentionCase {
  std::string name;
  AttentionFacts facts;
  std::vector<AttentionLayerWeights> layers;
};

/// Grouped-query 8/2 with head size 24 and norms per head; multi-query 4/1 with head size 40,
/// biases and a partial rotation; multi-head 4/4 with a norm over the whole projection; MLA with
/// and without q_lora, the second under YaRN.
std::vector<std::string> AttentionCaseNames();
/// One of these, or "mla_many_heads": more heads than a task's tile has rows.
AttentionCase MakeAttentionCase(const std::string& name, int64_t span);

/// Seeded normal rows.
RowBatch<Bf16> MakeRows(uint64_t seed, int64_t num_rows, int64_t width, float scale = 1.0f);

/// The pipeline of a case, with room for `tokens` KV positions.
std::unique_ptr<AttentionPipeline> MakePipeline(const AttentionCase& model, const Kernels& kernels,
                                                Executor& executor, int64_t tokens = 4096,
                                                const Sharding& sharding = {});

/// One session's rows [begin, end) of `rows` in one step, committed.
RowBatch<Bf16> RunStep(AttentionPipeline& pipeline, SessionId session, Bf16Rows rows, int64_t begin,
                       int64_t end, int64_t prompt_length, int64_t layer = 0);

/// The same session in chunks; returns all output rows.
RowBatch<Bf16> RunInChunks(AttentionPipeline& pipeline, SessionId session, Bf16Rows rows,
                           int64_t chunk, int64_t prompt_length);

/// What layer 0 of the case gives for a whole session, one scalar operation after the other.
RowBatch<Bf16> ReferenceOutput(const AttentionCase& model, Bf16Rows rows, int64_t prompt_length);

/// Layer 0's rotated queries [T, heads * qk_head_dim] and the keys and values that they meet, as
/// the reference rounds them; MLA: latents and roped keys in `keys` [T, rank + rope].
struct ReferenceProjections {
  RowBatch<Bf16> queries, keys, values;
};
ReferenceProjections ProjectByReference(const AttentionCase& model, Bf16Rows rows);

/// MLA: k_nope and v of head `head` for every latent, expanded.
void ExpandByReference(const AttentionCase& model, int64_t head, Bf16Rows latents,
                       RowBatch<Bf16>& keys, RowBatch<Bf16>& values);

/// Empty, or where the rows first differ.
std::string FirstDifference(Bf16Rows expected, Bf16Rows found);

}  // namespace moebius::testing
