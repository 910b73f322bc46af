// SPDX-License-Identifier: Apache-2.0
#include "node/reference_attention.h"

#include <algorithm>
#include <limits>

#include "moebius/base/check.h"
#include "moebius/kernels/math.h"

namespace moebius {
namespace {

constexpr int64_t kBlockKeys = ReferenceKvCache::kBlockKeys;
// Queries that share a pass over the keys: their scores against 16,384 keys are 512 KiB.
constexpr int64_t kQueryTile = 8;

// Normalises `heads` [num_heads · head_dim] in place by the family's rule.
void NormalizeHeads(const AttentionConfig& config, absl::Span<const float> weight,
                    absl::Span<float> heads) {
  if (config.qk_norm == QkNorm::kNone) return;
  for (size_t begin = 0; begin < heads.size(); begin += weight.size()) {
    const absl::Span<float> part = heads.subspan(begin, weight.size());
    ReferenceRmsNorm(part, weight, config.qk_norm_eps, part);
  }
}

// Cosines and sines at one position.
struct Angles {
  Angles(const ReferenceRope& rope, int64_t position)
      : cosines(static_cast<size_t>(rope.num_pairs())), sines(cosines.size()) {
    rope.AnglesAt(position, absl::MakeSpan(cosines), absl::MakeSpan(sines));
  }
  std::vector<float> cosines, sines;
};

void ProjectGroupedQuery(const AttentionConfig& config, const ReferenceAttentionWeights& weights,
                         const ReferenceRope& rope, FloatRows normed, int64_t position_begin,
                         MutableFloatRows queries, ReferenceKvCache& cache) {
  const size_t head_dim = static_cast<size_t>(config.qk_head_dim);
  const size_t rope_dim = static_cast<size_t>(config.rope.dim);
  RowBatch<float> keys(normed.num_rows, weights.k.num_outputs());
  RowBatch<float> values(normed.num_rows, weights.v.num_outputs());
  weights.q.Apply(normed, queries);
  weights.k.Apply(normed, keys.rows());
  weights.v.Apply(normed, values.rows());
  for (int64_t row = 0; row < normed.num_rows; ++row) {
    const Angles angles(rope, position_begin + row);
    const absl::Span<float> query = queries.span(row);
    const absl::Span<float> key = keys.rows().span(row);
    NormalizeHeads(config, weights.q_norm, query);
    NormalizeHeads(config, weights.k_norm, key);
    for (int32_t head = 0; head < config.num_query_heads; ++head) {
      rope.Rotate(angles.cosines, angles.sines, query.subspan(head * head_dim, rope_dim));
    }
    for (int32_t head = 0; head < config.num_kv_heads; ++head) {
      rope.Rotate(angles.cosines, angles.sines, key.subspan(head * head_dim, rope_dim));
      const size_t value_dim = static_cast<size_t>(config.v_head_dim);
      cache.Put(position_begin + row, head, key.subspan(head * head_dim, head_dim),
                values.rows().span(row).subspan(head * value_dim, value_dim));
    }
  }
}

void ProjectLatent(const AttentionConfig& config, const ReferenceAttentionWeights& weights,
                   const ReferenceRope& rope, FloatRows normed, int64_t position_begin,
                   MutableFloatRows queries, ReferenceKvCache& cache) {
  const MlaConfig& mla = *config.mla;
  const size_t rank = static_cast<size_t>(mla.kv_lora_rank);
  const size_t nope = static_cast<size_t>(mla.qk_nope_dim);
  const size_t rotary = static_cast<size_t>(mla.qk_rope_dim);
  const size_t value_dim = static_cast<size_t>(config.v_head_dim);
  if (mla.q_lora_rank > 0) {
    RowBatch<float> low_rank(normed.num_rows, mla.q_lora_rank);
    weights.q_a.Apply(normed, low_rank.rows());
    for (int64_t row = 0; row < normed.num_rows; ++row) {
      const absl::Span<float> span = low_rank.rows().span(row);
      ReferenceRmsNorm(span, weights.q_a_norm, mla.lora_norm_eps, span);
    }
    weights.q_b.Apply(low_rank.rows(), queries);
  } else {
    weights.q.Apply(normed, queries);
  }
  RowBatch<float> compressed(normed.num_rows, weights.kv_a.num_outputs());  // [latent, rope key]
  RowBatch<float> latents(normed.num_rows, mla.kv_lora_rank);
  RowBatch<float> expanded(normed.num_rows, weights.kv_b.num_outputs());  // per head [nope, value]
  weights.kv_a.Apply(normed, compressed.rows());
  for (int64_t row = 0; row < normed.num_rows; ++row) {
    ReferenceRmsNorm(compressed.rows().span(row).subspan(0, rank), weights.kv_a_norm,
                     mla.lora_norm_eps, latents.rows().span(row));
  }
  weights.kv_b.Apply(latents.rows(), expanded.rows());

  std::vector<float> key(nope + rotary);
  for (int64_t row = 0; row < normed.num_rows; ++row) {
    const Angles angles(rope, position_begin + row);
    const absl::Span<float> shared_key = compressed.rows().span(row).subspan(rank, rotary);
    rope.Rotate(angles.cosines, angles.sines, shared_key);
    std::copy(shared_key.begin(), shared_key.end(), key.begin() + nope);
    for (size_t head = 0; head < static_cast<size_t>(config.num_query_heads); ++head) {
      rope.Rotate(angles.cosines, angles.sines,
                  queries.span(row).subspan(head * (nope + rotary) + nope, rotary));
      const absl::Span<float> own =
          expanded.rows().span(row).subspan(head * (nope + value_dim), nope + value_dim);
      std::copy_n(own.begin(), nope, key.begin());
      cache.Put(position_begin + row, static_cast<int64_t>(head), key,
                own.subspan(nope, value_dim));
    }
  }
}

// scores[j] = scale · Σ_d query[d] · keys[d][j] over one block.
void ScoreBlock(absl::Span<const float> query, FloatRows keys, float scale, float* scores) {
  alignas(64) float sums[kBlockKeys] = {};
  const float* key = keys.data;
  size_t d = 0;
  for (; d + 4 <= query.size(); d += 4, key += 4 * kBlockKeys) {
    const float* q = query.data() + d;
    for (int64_t j = 0; j < kBlockKeys; ++j) {
      sums[j] += (q[0] * key[j] + q[1] * key[j + kBlockKeys]) +
                 (q[2] * key[j + 2 * kBlockKeys] + q[3] * key[j + 3 * kBlockKeys]);
    }
  }
  for (; d < query.size(); ++d, key += kBlockKeys) {
    for (int64_t j = 0; j < kBlockKeys; ++j) sums[j] += query[d] * key[j];
  }
  for (int64_t j = 0; j < kBlockKeys; ++j) scores[j] = sums[j] * scale;
}

// Scores → unnormalised probabilities in place; entries outside [first_key, end) become +0. Returns
// the sum.
double ExponentiateScores(absl::Span<float> scores, int64_t first_key, int64_t end) {
  const absl::Span<float> visible =
      scores.subspan(static_cast<size_t>(first_key), static_cast<size_t>(end - first_key));
  const float largest = *std::max_element(visible.begin(), visible.end());
  for (float& score : visible) score = Exp(score - largest);
  double sum = 0;
  for (const float probability : visible) sum += probability;
  std::fill(scores.begin(), scores.begin() + first_key, 0.0f);
  std::fill(scores.begin() + end, scores.end(), 0.0f);
  return sum;
}

// sums[d] += Σ_j probabilities[j] · values[j][d] over one block: fp32 inside, double across blocks.
void AddWeightedValues(const float* probabilities, FloatRows values, absl::Span<float> block_sums,
                       absl::Span<double> sums) {
  float* partial = block_sums.data();
  const int64_t width = values.width;
  std::fill(block_sums.begin(), block_sums.end(), 0.0f);
  for (int64_t j = 0; j < kBlockKeys; j += 4) {
    const float* value = values.data + j * values.stride;
    const float* p = probabilities + j;
    for (int64_t d = 0; d < width; ++d) {
      partial[d] += (p[0] * value[d] + p[1] * value[d + width]) +
                    (p[2] * value[d + 2 * width] + p[3] * value[d + 3 * width]);
    }
  }
  for (int64_t d = 0; d < width; ++d) sums[static_cast<size_t>(d)] += partial[d];
}

// One head of up to kQueryTile consecutive queries. `queries` [T, qk_head_dim].
void AttendTile(const AttentionConfig& config, const ReferenceKvCache& cache, int64_t kv_head,
                int64_t position_begin, int64_t prompt_end, int64_t window, FloatRows queries,
                Array<float>& scores, MutableFloatRows out) {
  const int64_t last_end = std::max(prompt_end, position_begin + queries.num_rows);
  const int64_t num_blocks = (last_end - 1) / kBlockKeys + 1;
  scores.Resize(static_cast<size_t>(queries.num_rows * num_blocks * kBlockKeys));
  const MutableFloatRows score_rows(scores.data(), queries.num_rows, num_blocks * kBlockKeys);
  for (int64_t block = 0; block < num_blocks; ++block) {
    const FloatRows keys = cache.KeyBlock(block, kv_head);
    for (int64_t row = 0; row < queries.num_rows; ++row) {
      ScoreBlock(queries.span(row), keys, config.softmax_scale,
                 score_rows.row(row) + block * kBlockKeys);
    }
  }
  const size_t width = static_cast<size_t>(config.v_head_dim);
  std::vector<double> weights_sums(static_cast<size_t>(queries.num_rows));
  std::vector<double> sums(width * weights_sums.size());
  std::vector<float> block_sums(width);
  for (int64_t row = 0; row < queries.num_rows; ++row) {
    const int64_t end = std::max(prompt_end, position_begin + row + 1);
    const int64_t first_key = window > 0 ? std::max<int64_t>(0, end - window) : 0;
    weights_sums[static_cast<size_t>(row)] =
        ExponentiateScores(score_rows.span(row), first_key, end);
  }
  for (int64_t block = 0; block < num_blocks; ++block) {
    const FloatRows values = cache.ValueBlock(block, kv_head);
    for (int64_t row = 0; row < queries.num_rows; ++row) {
      AddWeightedValues(score_rows.row(row) + block * kBlockKeys, values,
                        absl::MakeSpan(block_sums),
                        absl::MakeSpan(sums).subspan(static_cast<size_t>(row) * width, width));
    }
  }
  for (int64_t row = 0; row < queries.num_rows; ++row) {
    const size_t index = static_cast<size_t>(row);
    for (size_t d = 0; d < width; ++d) {
      out.row(row)[d] = static_cast<float>(sums[index * width + d] / weights_sums[index]);
    }
  }
}

}  // namespace

ReferenceKvCache::ReferenceKvCache(const AttentionConfig& config)
    : num_heads_(config.mla.has_value() ? config.num_query_heads : config.num_kv_heads),
      key_dim_(config.qk_head_dim),
      value_dim_(config.v_head_dim) {}

void ReferenceKvCache::Grow(int64_t num_keys) {
  while (static_cast<int64_t>(keys_.size()) * kBlockKeys < num_keys) {
    keys_.emplace_back(static_cast<size_t>(num_heads_ * key_dim_ * kBlockKeys));
    values_.emplace_back(static_cast<size_t>(num_heads_ * kBlockKeys * value_dim_));
  }
}

void ReferenceKvCache::Put(int64_t position, int64_t head, absl::Span<const float> key,
                           absl::Span<const float> value) {
  const size_t block = static_cast<size_t>(position / kBlockKeys);
  const int64_t slot = position % kBlockKeys;
  float* keys = keys_[block].data() + head * key_dim_ * kBlockKeys;
  for (size_t d = 0; d < key.size(); ++d)
    keys[static_cast<int64_t>(d) * kBlockKeys + slot] = key[d];
  std::copy(value.begin(), value.end(),
            values_[block].data() + (head * kBlockKeys + slot) * value_dim_);
}

FloatRows ReferenceKvCache::KeyBlock(int64_t block, int64_t head) const {
  const Array<float>& keys = keys_[static_cast<size_t>(block)];
  return FloatRows(keys.data() + head * key_dim_ * kBlockKeys, key_dim_, kBlockKeys);
}

FloatRows ReferenceKvCache::ValueBlock(int64_t block, int64_t head) const {
  const Array<float>& values = values_[static_cast<size_t>(block)];
  return FloatRows(values.data() + head * kBlockKeys * value_dim_, kBlockKeys, value_dim_);
}

void ProjectReferenceAttention(const AttentionConfig& config,
                               const ReferenceAttentionWeights& weights, const ReferenceRope& rope,
                               FloatRows normed, int64_t position_begin, MutableFloatRows queries,
                               ReferenceKvCache& cache) {
  if (config.mla.has_value()) {
    ProjectLatent(config, weights, rope, normed, position_begin, queries, cache);
  } else {
    ProjectGroupedQuery(config, weights, rope, normed, position_begin, queries, cache);
  }
}

void AttendReference(Executor& executor, const AttentionConfig& config,
                     const ReferenceKvCache& cache, int64_t position_begin, int64_t prompt_end,
                     int64_t window, FloatRows queries, MutableFloatRows out) {
  const int64_t num_heads = config.num_query_heads;
  const int64_t heads_per_kv_head = config.mla.has_value() ? 1 : num_heads / config.num_kv_heads;
  const int64_t num_tiles = (queries.num_rows + kQueryTile - 1) / kQueryTile;
  std::vector<Array<float>> scores(static_cast<size_t>(executor.num_threads()));
  executor.ParallelFor(num_tiles * num_heads, [&](int64_t index, int thread_index) {
    // The last tiles see the most keys: first, so that threads end together.
    const int64_t begin = (num_tiles - 1 - index / num_heads) * kQueryTile;
    const int64_t end = std::min(begin + kQueryTile, queries.num_rows);
    const int64_t head = index % num_heads;
    const int64_t key_dim = config.qk_head_dim, value_dim = config.v_head_dim;
    AttendTile(config, cache, head / heads_per_kv_head, position_begin + begin, prompt_end, window,
               queries.Slice(begin, end).Columns(head * key_dim, (head + 1) * key_dim),
               scores[static_cast<size_t>(thread_index)],
               out.Slice(begin, end).Columns(head * value_dim, (head + 1) * value_dim));
  });
}

}  // namespace moebius
