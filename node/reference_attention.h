// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "moebius/base/executor.h"
#include "moebius/model/model_config.h"
#include "moebius/tensor/buffer.h"
#include "moebius/tensor/rows.h"
#include "node/reference_linear.h"
#include "node/reference_rope.h"

namespace moebius {

/// The keys and values of one sequence in one layer, fp32, by position from 0. MLA is kept in its
/// expanded form, a key and a value per head.
///
/// Different positions may be written from different threads at once; reads must not overlap
/// writes.
class ReferenceKvCache {
 public:
  static constexpr int64_t kBlockKeys = 128;

  explicit ReferenceKvCache(const AttentionConfig& config);

  /// Makes room for positions [0, num_keys). Kept positions keep their contents.
  void Grow(int64_t num_keys);

  /// `key` [qk_head_dim] after RoPE, `value` [v_head_dim].
  void Put(int64_t position, int64_t head, absl::Span<const float> key,
           absl::Span<const float> value);

  /// Keys of one block and head, transposed: [qk_head_dim, kBlockKeys].
  FloatRows KeyBlock(int64_t block, int64_t head) const;
  /// Values of one block and head: [kBlockKeys, v_head_dim].
  FloatRows ValueBlock(int64_t block, int64_t head) const;

 private:
  int64_t num_heads_;
  int64_t key_dim_;
  int64_t value_dim_;
  std::vector<Array<float>> keys_;    // per block: [num_heads, key_dim, kBlockKeys]
  std::vector<Array<float>> values_;  // per block: [num_heads, kBlockKeys, value_dim]
};

/// Weights of one attention layer. Grouped-query layers fill q, k, v; MLA layers fill kv_a, kv_b
/// and either q or q_a and q_b. Norm weights are empty where the family has none.
struct ReferenceAttentionWeights {
  ReferenceLinear q, k, v, output;
  ReferenceLinear q_a, q_b, kv_a, kv_b;
  std::vector<float> q_norm, k_norm;       // [head_dim] or [heads · head_dim], by QkNorm
  std::vector<float> q_a_norm, kv_a_norm;  // [q_lora_rank], [kv_lora_rank]
};

/// Queries, keys and values of consecutive tokens, up to and including RoPE.
///
/// `normed` [T, hidden_size] at positions position_begin + i → `queries` [T, heads · qk_head_dim];
/// keys and values go to `cache`, which must have room. Serial; different positions at once.
void ProjectReferenceAttention(const AttentionConfig& config,
                               const ReferenceAttentionWeights& weights, const ReferenceRope& rope,
                               FloatRows normed, int64_t position_begin, MutableFloatRows queries,
                               ReferenceKvCache& cache);

/// Softmax attention over the cached positions up to each query's own, or up to `prompt_end` where
/// that is behind it (0: causal): the last `window` of them, or with 0 all.
///
/// `queries` as above → `out` [T, heads · v_head_dim]. Scores are fp32, normalisation is in double.
/// Call on an executor thread.
void AttendReference(Executor& executor, const AttentionConfig& config,
                     const ReferenceKvCache& cache, int64_t position_begin, int64_t prompt_end,
                     int64_t window, FloatRows queries, MutableFloatRows out);

}  // namespace moebius
