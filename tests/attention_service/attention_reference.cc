// SPDX-License-Identifier: Apache-2.0
// The slow scalar statement of a layer's attention: every product is reference::BlockSum.
#include <algorithm>
#include <cstring>

#include "moebius/attention/merge.h"
#include "moebius/attention/span.h"
#include "moebius/kernels/norm.h"
#include "moebius/kernels/reference/attention.h"
#include "moebius/kernels/reference/block_sum.h"
#include "moebius/kernels/rope.h"
#include "tests/attention_service/attention_fixture.h"

namespace moebius::testing {
namespace {

RowBatch<Bf16> Project(Bf16Rows rows, const RowBatch<Bf16>& weights,
                       const RowBatch<float>* bias = nullptr) {
  RowBatch<Bf16> out(rows.num_rows, weights.num_rows());
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    for (int64_t n = 0; n < weights.num_rows(); ++n) {
      float sum = reference::BlockSum(rows.span(r), weights.rows().span(n), 0.0f);
      if (bias != nullptr && bias->num_rows() > 0) sum = sum + bias->rows().row(0)[n];
      out.rows().row(r)[n] = ToBf16(sum);
    }
  }
  return out;
}

// MLA's latent: normed before its one rounding.
RowBatch<Bf16> ProjectAndNormalize(Bf16Rows rows, Bf16Rows weights, const RowBatch<Bf16>& norm,
                                   double eps) {
  RowBatch<float> sums(rows.num_rows, weights.num_rows);
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    for (int64_t n = 0; n < weights.num_rows; ++n) {
      sums.rows().row(r)[n] = reference::BlockSum(rows.span(r), weights.span(n), 0.0f);
    }
  }
  RowBatch<Bf16> out(rows.num_rows, weights.num_rows);
  RmsNorm(FloatRows(sums.rows()), norm.rows().span(0), eps, out.rows());
  return out;
}

void Normalize(MutableBf16Rows rows, const RowBatch<Bf16>& weight, double eps) {
  if (weight.num_rows() == 0) return;
  // A norm over parts of a row: as many as fit.
  const int64_t width = weight.width();
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    const MutableBf16Rows parts(rows.row(r), rows.width / width, width);
    RmsNorm(Bf16Rows(parts), weight.rows().span(0), eps, parts);
  }
}

void RotateHeads(const AttentionConfig& config, int64_t head_dim, int64_t offset,
                 MutableBf16Rows rows) {
  const RopeConfig& rope = config.rope;
  std::vector<float> frequencies = RopeInvFreq(rope.dim, rope.theta);
  if (rope.yarn.has_value()) {
    frequencies = YarnInvFreq(rope.dim, rope.theta,
                              {.factor = rope.yarn->factor,
                               .original_max_positions = rope.yarn->original_max_positions,
                               .beta_fast = rope.yarn->beta_fast,
                               .beta_slow = rope.yarn->beta_slow});
  }
  RopeTable table(frequencies, config.rope_amplitude);
  std::vector<int64_t> positions;
  for (int64_t t = 0; t < rows.num_rows; ++t) positions.push_back(t);
  table.Fill(positions);
  ApplyRope(
      table, 0,
      rope.pairing == RopePairing::kInterleaved ? RopePairs::kInterleaved : RopePairs::kHalves,
      {.num_heads = rows.width / head_dim, .stride = head_dim, .offset = offset}, rows);
}

// Folds the spans of one (row, head); `leave` turns a span's acc into the output's space.
template <typename Leave>
void AttendRow(const AttentionFacts& facts, absl::Span<const Bf16> query, Bf16Rows keys,
               Bf16Rows values, int64_t position, const Leave& leave, absl::Span<Bf16> out) {
  const SpanGeometry geometry(facts.span, facts.key_block);
  std::vector<float> fold_acc(out.size());
  Partial fold{.acc = absl::MakeSpan(fold_acc)};
  const int64_t window = facts.config.WindowOf(0);
  const int64_t first_key = window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
  for (int64_t span = 0; span < geometry.NumSpans(position + 1); ++span) {
    const PositionRange positions = geometry.SpanPositions(span);
    const int64_t end = std::min(positions.end, position + 1);
    if (end <= first_key) continue;
    const VisibleKeys visible{
        static_cast<int32_t>(std::max(first_key, positions.begin) - positions.begin),
        static_cast<int32_t>(end - positions.begin)};
    std::vector<float> acc(static_cast<size_t>(values.width));
    const reference::SpanState state = reference::ComputeSpanState(
        query, keys.Slice(positions.begin, end), values.Slice(positions.begin, end), visible,
        facts.key_block, facts.config.softmax_scale, absl::MakeSpan(acc));
    std::vector<float> left = leave(acc);
    MergePartial({.acc = absl::MakeSpan(left),
                  .m = state.m,
                  .l = state.l,
                  .num_keys = visible.end - visible.begin},
                 fold);
  }
  NormalizePartial(fold, out);
}

RowBatch<Bf16> AttendGrouped(const AttentionCase& model, const ReferenceProjections& projected) {
  const AttentionConfig& config = model.facts.config;
  const int64_t group = config.num_query_heads / config.num_kv_heads;
  const int64_t d = config.qk_head_dim;
  const int64_t dv = config.v_head_dim;
  RowBatch<Bf16> out(projected.queries.num_rows(), config.num_query_heads * dv);
  for (int64_t t = 0; t < out.num_rows(); ++t) {
    for (int64_t h = 0; h < config.num_query_heads; ++h) {
      const int64_t kv = h / group;
      AttendRow(
          model.facts, projected.queries.rows().Columns(h * d, (h + 1) * d).span(t),
          projected.keys.rows().Columns(kv * d, (kv + 1) * d),
          projected.values.rows().Columns(kv * dv, (kv + 1) * dv), t,
          [](const std::vector<float>& acc) { return acc; },
          out.rows().Columns(h * dv, (h + 1) * dv).span(t));
    }
  }
  return out;
}

RowBatch<Bf16> AttendLatent(const AttentionCase& model, const ReferenceProjections& projected,
                            int64_t prompt_length) {
  const AttentionConfig& config = model.facts.config;
  const MlaConfig& mla = *config.mla;
  const int64_t dv = config.v_head_dim;
  const int64_t rank = mla.kv_lora_rank;
  const Bf16Rows latents = projected.keys.rows();
  RowBatch<Bf16> out(latents.num_rows, config.num_query_heads * dv);
  for (int64_t h = 0; h < config.num_query_heads; ++h) {
    RowBatch<Bf16> keys, values;
    ExpandByReference(model, h, latents, keys, values);
    const Bf16Rows kv_b = model.layers[0].kv_b.bf16().rows();
    const int64_t key_up = h * (mla.qk_nope_dim + dv);
    const int64_t value_up = key_up + mla.qk_nope_dim;
    const Bf16Rows queries =
        projected.queries.rows().Columns(h * config.qk_head_dim, (h + 1) * config.qk_head_dim);
    for (int64_t t = 0; t < latents.num_rows; ++t) {
      const absl::Span<Bf16> head_out = out.rows().Columns(h * dv, (h + 1) * dv).span(t);
      if (t < prompt_length) {
        AttendRow(
            model.facts, queries.span(t), keys.rows(), values.rows(), t,
            [](const std::vector<float>& acc) { return acc; }, head_out);
        continue;
      }
      std::vector<Bf16> absorbed(static_cast<size_t>(rank));
      for (int64_t j = 0; j < rank; ++j) {
        std::vector<Bf16> column;
        for (int64_t i = 0; i < mla.qk_nope_dim; ++i) column.push_back(kv_b.row(key_up + i)[j]);
        absorbed[static_cast<size_t>(j)] = ToBf16(reference::BlockSum(
            queries.span(t).subspan(0, static_cast<size_t>(mla.qk_nope_dim)), column, 0.0f));
      }
      for (int64_t i = 0; i < mla.qk_rope_dim; ++i) {
        absorbed.push_back(queries.row(t)[mla.qk_nope_dim + i]);
      }
      const auto leave = [&](const std::vector<float>& acc) {
        std::vector<Bf16> rounded(acc.size());
        std::transform(acc.begin(), acc.end(), rounded.begin(), ToBf16);
        std::vector<float> left;
        for (int64_t n = 0; n < dv; ++n) {
          left.push_back(reference::BlockSum(rounded, kv_b.span(value_up + n), 0.0f));
        }
        return left;
      };
      AttendRow(model.facts, absorbed, latents, latents.Columns(0, rank), t, leave, head_out);
    }
  }
  return out;
}

}  // namespace

void ExpandByReference(const AttentionCase& model, int64_t head, Bf16Rows latents,
                       RowBatch<Bf16>& keys, RowBatch<Bf16>& values) {
  const AttentionConfig& config = model.facts.config;
  const MlaConfig& mla = *config.mla;
  const int64_t begin = head * (mla.qk_nope_dim + config.v_head_dim);
  const Bf16Rows kv_b = model.layers[0].kv_b.bf16().rows();
  keys.Reset(latents.num_rows, config.qk_head_dim);
  values.Reset(latents.num_rows, config.v_head_dim);
  for (int64_t t = 0; t < latents.num_rows; ++t) {
    const auto latent = latents.Columns(0, mla.kv_lora_rank).span(t);
    for (int64_t n = 0; n < mla.qk_nope_dim; ++n) {
      keys.rows().row(t)[n] = ToBf16(reference::BlockSum(latent, kv_b.span(begin + n), 0.0f));
    }
    std::copy_n(latents.row(t) + mla.kv_lora_rank, mla.qk_rope_dim,
                keys.rows().row(t) + mla.qk_nope_dim);
    for (int64_t n = 0; n < config.v_head_dim; ++n) {
      values.rows().row(t)[n] =
          ToBf16(reference::BlockSum(latent, kv_b.span(begin + mla.qk_nope_dim + n), 0.0f));
    }
  }
}

ReferenceProjections ProjectByReference(const AttentionCase& model, Bf16Rows rows) {
  const AttentionConfig& config = model.facts.config;
  const AttentionLayerWeights& weights = model.layers[0];
  ReferenceProjections projected;
  if (!config.mla.has_value()) {
    projected.queries = Project(rows, weights.q.bf16(), &weights.q_bias);
    projected.keys = Project(rows, weights.k.bf16(), &weights.k_bias);
    projected.values = Project(rows, weights.v.bf16(), &weights.v_bias);
    Normalize(projected.queries.rows(), weights.q_norm, config.qk_norm_eps);
    Normalize(projected.keys.rows(), weights.k_norm, config.qk_norm_eps);
    RotateHeads(config, config.qk_head_dim, 0, projected.queries.rows());
    RotateHeads(config, config.qk_head_dim, 0, projected.keys.rows());
    return projected;
  }
  const MlaConfig& mla = *config.mla;
  if (mla.q_lora_rank > 0) {
    RowBatch<Bf16> low = Project(rows, weights.q_a.bf16());
    Normalize(low.rows(), weights.q_a_norm, mla.lora_norm_eps);
    projected.queries = Project(low.rows(), weights.q_b.bf16());
  } else {
    projected.queries = Project(rows, weights.q.bf16());
  }
  RotateHeads(config, config.qk_head_dim, mla.qk_nope_dim, projected.queries.rows());
  projected.keys = Project(rows, weights.kv_a.bf16());
  const RowBatch<Bf16> latents =
      ProjectAndNormalize(rows, weights.kv_a.bf16().rows().Slice(0, mla.kv_lora_rank),
                          weights.kv_a_norm, mla.lora_norm_eps);
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    std::copy_n(latents.rows().row(r), mla.kv_lora_rank, projected.keys.rows().row(r));
  }
  RotateHeads(config, projected.keys.width(), mla.kv_lora_rank, projected.keys.rows());
  return projected;
}

RowBatch<Bf16> ReferenceOutput(const AttentionCase& model, Bf16Rows rows, int64_t prompt_length) {
  const ReferenceProjections projected = ProjectByReference(model, rows);
  const RowBatch<Bf16> heads = model.facts.config.mla.has_value()
                                   ? AttendLatent(model, projected, prompt_length)
                                   : AttendGrouped(model, projected);
  return Project(heads.rows(), model.layers[0].o.bf16());
}

}  // namespace moebius::testing
