// SPDX-License-Identifier: Apache-2.0
#include "attention_service/projections.h"

#include <algorithm>

#include "moebius/kernels/block_gemm.h"
#include "moebius/kernels/norm.h"
#include "moebius/kernels/row_ops.h"

namespace moebius {
namespace {

constexpr int64_t kRowTile = 16;

RopeTable MakeRopeTable(const AttentionConfig& config) {
  if (config.rope.dim == 0) return RopeTable();
  const RopeConfig& rope = config.rope;
  if (!rope.yarn.has_value()) {
    return RopeTable(RopeInvFreq(rope.dim, rope.theta), config.rope_amplitude);
  }
  const YarnFrequencies yarn{.factor = rope.yarn->factor,
                             .original_max_positions = rope.yarn->original_max_positions,
                             .beta_fast = rope.yarn->beta_fast,
                             .beta_slow = rope.yarn->beta_slow};
  return RopeTable(YarnInvFreq(rope.dim, rope.theta, yarn), config.rope_amplitude);
}

}  // namespace

Projections::Projections(const AttentionFacts& facts, const KvLayout& layout,
                         const Kernels& kernels, Executor& executor)
    : facts_(facts),
      layout_(layout),
      kernels_(kernels),
      executor_(executor),
      q_width_(int64_t{facts.config.num_query_heads} * facts.config.qk_head_dim),
      pairs_(facts.config.rope.pairing == RopePairing::kInterleaved ? RopePairs::kInterleaved
                                                                    : RopePairs::kHalves),
      rope_(MakeRopeTable(facts.config)) {
  if (facts_.config.mla.has_value() && facts_.config.mla->q_lora_rank > 0) {
    q_width_ = facts_.config.mla->q_lora_rank;
  }
}

void Projections::BeginStep(absl::Span<const RoleRows> rows, const KvCache& cache) {
  homes_.clear();
  positions_.clear();
  for (const RoleRows& part : rows) {
    for (int64_t position = part.position_begin; position < part.position_end(); ++position) {
      homes_.push_back({part.session_index, cache.HomeOf(part.session_index, position)});
      positions_.push_back(position);
    }
  }
  if (facts_.config.rope.dim > 0) rope_.Fill(positions_);
}

Bf16Rows Projections::Run(const PackedAttentionLayer& weights, int64_t layer, Bf16Rows normed,
                          const KvCache& cache) {
  return layout_.is_latent() ? RunLatent(weights, layer, normed, cache)
                             : RunGrouped(weights, layer, normed, cache);
}

Bf16Rows Projections::RunGrouped(const PackedAttentionLayer& weights, int64_t layer,
                                 Bf16Rows normed, const KvCache& cache) {
  const AttentionConfig& config = facts_.config;
  inputs_.Reset(normed.num_rows, weights.input.num_outputs());
  ParallelMatMulBf16(executor_, kernels_, normed, weights.input, weights.input_bias,
                     inputs_.rows());
  const int64_t d = config.qk_head_dim;
  const int64_t k_width = config.num_kv_heads * d;
  const RopeHeads q_heads{.num_heads = config.num_query_heads, .stride = d, .offset = 0};
  const RopeHeads k_heads{.num_heads = config.num_kv_heads, .stride = d, .offset = q_width_};
  ForRowTiles(normed.num_rows, [&](int64_t begin, int64_t end) {
    const MutableBf16Rows rows = inputs_.rows().Slice(begin, end);
    const MutableBf16Rows q = rows.Columns(0, q_width_);
    const MutableBf16Rows k = rows.Columns(q_width_, q_width_ + k_width);
    if (config.qk_norm == QkNorm::kWholeProjection) {
      RmsNorm(Bf16Rows(q), weights.q_norm, config.qk_norm_eps, q);
      RmsNorm(Bf16Rows(k), weights.k_norm, config.qk_norm_eps, k);
    } else if (config.qk_norm == QkNorm::kPerHead) {
      for (int64_t r = 0; r < rows.num_rows; ++r) {
        const MutableBf16Rows q_of_row(q.row(r), config.num_query_heads, d);
        const MutableBf16Rows k_of_row(k.row(r), config.num_kv_heads, d);
        RmsNorm(Bf16Rows(q_of_row), weights.q_norm, config.qk_norm_eps, q_of_row);
        RmsNorm(Bf16Rows(k_of_row), weights.k_norm, config.qk_norm_eps, k_of_row);
      }
    }
    Rotate(q_heads, rows, begin);
    Rotate(k_heads, rows, begin);
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      layout_.StoreGrouped(k.row(r), k.row(r) + k_width, homes_[begin + r].home.token,
                           HomeBlock(cache, begin + r, layer));
    }
  });
  return Bf16Rows(inputs_.rows().Columns(0, q_width_));
}

Bf16Rows Projections::RunLatent(const PackedAttentionLayer& weights, int64_t layer, Bf16Rows normed,
                                const KvCache& cache) {
  const AttentionConfig& config = facts_.config;
  const MlaConfig& mla = *config.mla;
  const int64_t num_rows = normed.num_rows;
  const bool low_rank = mla.q_lora_rank > 0;
  compressed_.Reset(num_rows, weights.input.num_outputs());
  ParallelMatMul(executor_, kernels_, normed, weights.input, compressed_.rows());
  rope_keys_.Reset(num_rows, mla.qk_rope_dim);
  if (low_rank) q_latents_.Reset(num_rows, mla.q_lora_rank);
  queries_.Reset(num_rows, int64_t{config.num_query_heads} * config.qk_head_dim);
  const RopeHeads k_head{.num_heads = 1, .stride = mla.qk_rope_dim, .offset = 0};
  ForRowTiles(num_rows, [&](int64_t begin, int64_t end) {
    const FloatRows rows = FloatRows(compressed_.rows()).Slice(begin, end);
    const FloatRows q = rows.Columns(0, q_width_);
    const MutableBf16Rows q_rounded = (low_rank ? q_latents_ : queries_).rows().Slice(begin, end);
    RoundRows(q, q_rounded);
    if (low_rank) RmsNorm(Bf16Rows(q_rounded), weights.q_a_norm, mla.lora_norm_eps, q_rounded);
    const MutableBf16Rows keys = rope_keys_.rows().Slice(begin, end);
    RoundRows(rows.Columns(q_width_ + mla.kv_lora_rank, rows.width), keys);
    Rotate(k_head, keys, begin);
    for (int64_t row = begin; row < end; ++row) StoreLatentRow(weights, layer, row, cache);
  });

  if (low_rank) {
    ParallelMatMulBf16(executor_, kernels_, Bf16Rows(q_latents_.rows()), weights.q_b, {},
                       queries_.rows());
  }
  const RopeHeads q_heads{
      .num_heads = config.num_query_heads, .stride = config.qk_head_dim, .offset = mla.qk_nope_dim};
  ForRowTiles(num_rows, [&](int64_t begin, int64_t end) {
    Rotate(q_heads, queries_.rows().Slice(begin, end), begin);
  });
  return Bf16Rows(queries_.rows());
}

void Projections::StoreLatentRow(const PackedAttentionLayer& weights, int64_t layer, int64_t row,
                                 const KvCache& cache) {
  const MlaConfig& mla = *facts_.config.mla;
  const int64_t token = homes_[row].home.token;
  const MutableBf16Rows home =
      layout_.latents(HomeBlock(cache, row, layer), token + 1).Slice(token, token + 1);
  RmsNorm(FloatRows(compressed_.rows().row(row) + q_width_, 1, mla.kv_lora_rank),
          weights.latent_norm, mla.lora_norm_eps, home.Columns(0, mla.kv_lora_rank));
  std::copy_n(rope_keys_.rows().row(row), mla.qk_rope_dim, home.row(0) + mla.kv_lora_rank);
}

void Projections::Rotate(RopeHeads heads, MutableBf16Rows rows, int64_t row_begin) const {
  if (facts_.config.rope.dim > 0) ApplyRope(rope_, row_begin, pairs_, heads, rows);
}

Bf16* Projections::HomeBlock(const KvCache& cache, int64_t row, int64_t layer) const {
  const RowHome& row_home = homes_[row];
  return cache.Block(row_home.session_index, row_home.home.block, layer);
}

template <typename Body>
void Projections::ForRowTiles(int64_t num_rows, const Body& body) {
  const int64_t num_tiles = (num_rows + kRowTile - 1) / kRowTile;
  if (num_tiles == 1) return body(0, num_rows);  // no fork and join for a few rows
  executor_.ParallelFor(num_tiles, [&](int64_t tile, int) {
    body(tile * kRowTile, std::min(num_rows, (tile + 1) * kRowTile));
  });
}

}  // namespace moebius
