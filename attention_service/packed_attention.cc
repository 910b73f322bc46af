// SPDX-License-Identifier: Apache-2.0
#include "attention_service/packed_attention.h"

#include <initializer_list>

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"

namespace moebius {
namespace {

template <typename Matrix>
absl::Status CheckShape(absl::string_view name, const Matrix& found, int64_t num_rows,
                        int64_t width) {
  if (found.num_rows() == num_rows && found.width() == width) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("attention weights: ", name, " is [",
                                                 found.num_rows(), ", ", found.width(),
                                                 "], expected [", num_rows, ", ", width, "]"));
}

template <typename T>
std::vector<T> VectorOf(const RowBatch<T>& row) {
  if (row.num_rows() == 0) return {};
  return std::vector<T>(row.rows().row(0), row.rows().row(0) + row.width());
}

absl::StatusOr<PackedMatrix> PackTogether(std::initializer_list<WeightRows> parts,
                                          PairOrder order) {
  const absl::Span<const WeightRows> span(parts);
  for (const WeightRows& part : span) {
    if (part.type != span[0].type) {
      return absl::InvalidArgumentError(
          "attention weights: the projections of a row are of different types");
    }
  }
  return PackedMatrix::PackStack(span, order);
}

WeightMatrix Transpose(Bf16Rows rows) {
  RowBatch<Bf16> transposed(rows.width, rows.num_rows);
  for (int64_t i = 0; i < rows.num_rows; ++i) {
    for (int64_t j = 0; j < rows.width; ++j) transposed.rows().row(j)[i] = rows.row(i)[j];
  }
  return transposed;
}

// Blocks of rows become blocks of columns, and groups of K where they were groups of outputs.
WeightMatrix Transpose(const Fp8Rows& rows) {
  Fp8Rows blocks;
  blocks.block_rows = rows.block_columns;
  blocks.block_columns = rows.block_rows;
  blocks.row_offset = rows.column_offset;
  blocks.column_offset = rows.row_offset;
  const Rows<const uint8_t>& codes = rows.codes;
  WeightMatrix transposed = WeightMatrix::MakeFp8(codes.width, codes.num_rows, blocks);
  for (int64_t i = 0; i < codes.num_rows; ++i) {
    for (int64_t j = 0; j < codes.width; ++j) transposed.codes().row(j)[i] = codes.row(i)[j];
  }
  const MutableFloatRows scales = transposed.scales();
  for (int64_t i = 0; i < scales.num_rows; ++i) {
    for (int64_t j = 0; j < scales.width; ++j) scales.row(i)[j] = rows.scales.row(j)[i];
  }
  return transposed;
}

LatentHead PackHead(const AttentionConfig& config, const WeightRows& kv_b, int64_t head,
                    PairOrder order) {
  const MlaConfig& mla = *config.mla;
  const int64_t begin = head * (mla.qk_nope_dim + config.v_head_dim);
  const WeightRows key_up = kv_b.Slice(begin, begin + mla.qk_nope_dim);
  const WeightRows value_up =
      kv_b.Slice(begin + mla.qk_nope_dim, begin + mla.qk_nope_dim + config.v_head_dim);
  const WeightMatrix transposed = key_up.is_fp8() ? Transpose(key_up.fp8) : Transpose(key_up.bf16);
  return {.key_up = PackedMatrix::Pack(key_up, order),
          .query_down = PackedMatrix::Pack(transposed.rows(), order),
          .value_up = PackedMatrix::Pack(value_up, order)};
}

absl::Status PackLatent(const AttentionFacts& facts, const AttentionLayerWeights& weights,
                        PairOrder order, PackedAttentionLayer& layer) {
  const AttentionConfig& config = facts.config;
  const MlaConfig& mla = *config.mla;
  const int64_t rank = mla.kv_lora_rank;
  const int64_t q_outputs = int64_t{config.num_query_heads} * config.qk_head_dim;
  MOEBIUS_RETURN_IF_ERROR(
      CheckShape("kv_a", weights.kv_a, rank + mla.qk_rope_dim, facts.hidden_size));
  MOEBIUS_RETURN_IF_ERROR(CheckShape("kv_a_norm", weights.kv_a_norm, 1, rank));
  MOEBIUS_RETURN_IF_ERROR(
      CheckShape("kv_b", weights.kv_b,
                 config.num_query_heads * int64_t{mla.qk_nope_dim + config.v_head_dim}, rank));
  if (mla.q_lora_rank > 0) {
    MOEBIUS_RETURN_IF_ERROR(CheckShape("q_a", weights.q_a, mla.q_lora_rank, facts.hidden_size));
    MOEBIUS_RETURN_IF_ERROR(CheckShape("q_a_norm", weights.q_a_norm, 1, mla.q_lora_rank));
    MOEBIUS_RETURN_IF_ERROR(CheckShape("q_b", weights.q_b, q_outputs, mla.q_lora_rank));
    layer.q_a_norm = VectorOf(weights.q_a_norm);
    layer.q_b = PackedMatrix::Pack(weights.q_b.rows(), order);
  } else {
    MOEBIUS_RETURN_IF_ERROR(CheckShape("q", weights.q, q_outputs, facts.hidden_size));
  }
  const WeightMatrix& q = mla.q_lora_rank > 0 ? weights.q_a : weights.q;
  MOEBIUS_ASSIGN_OR_RETURN(layer.input, PackTogether({q.rows(), weights.kv_a.rows()}, order));
  layer.latent_norm = VectorOf(weights.kv_a_norm);
  for (int64_t head = 0; head < config.num_query_heads; ++head) {
    layer.heads.push_back(PackHead(config, weights.kv_b.rows(), head, order));
  }
  return absl::OkStatus();
}

absl::Status PackGrouped(const AttentionFacts& facts, const AttentionLayerWeights& weights,
                         PairOrder order, PackedAttentionLayer& layer) {
  const AttentionConfig& config = facts.config;
  const int64_t q = int64_t{config.num_query_heads} * config.qk_head_dim;
  const int64_t k = int64_t{config.num_kv_heads} * config.qk_head_dim;
  const int64_t v = int64_t{config.num_kv_heads} * config.v_head_dim;
  MOEBIUS_RETURN_IF_ERROR(CheckShape("q", weights.q, q, facts.hidden_size));
  MOEBIUS_RETURN_IF_ERROR(CheckShape("k", weights.k, k, facts.hidden_size));
  MOEBIUS_RETURN_IF_ERROR(CheckShape("v", weights.v, v, facts.hidden_size));
  MOEBIUS_ASSIGN_OR_RETURN(
      layer.input, PackTogether({weights.q.rows(), weights.k.rows(), weights.v.rows()}, order));
  if (config.qkv_bias) {
    MOEBIUS_RETURN_IF_ERROR(CheckShape("q bias", weights.q_bias, 1, q));
    MOEBIUS_RETURN_IF_ERROR(CheckShape("k bias", weights.k_bias, 1, k));
    MOEBIUS_RETURN_IF_ERROR(CheckShape("v bias", weights.v_bias, 1, v));
    for (const RowBatch<float>* bias : {&weights.q_bias, &weights.k_bias, &weights.v_bias}) {
      const std::vector<float> part = VectorOf(*bias);
      layer.input_bias.insert(layer.input_bias.end(), part.begin(), part.end());
    }
  }
  if (config.qk_norm != QkNorm::kNone) {
    const bool whole = config.qk_norm == QkNorm::kWholeProjection;
    MOEBIUS_RETURN_IF_ERROR(
        CheckShape("q norm", weights.q_norm, 1, whole ? q : config.qk_head_dim));
    MOEBIUS_RETURN_IF_ERROR(
        CheckShape("k norm", weights.k_norm, 1, whole ? k : config.qk_head_dim));
    layer.q_norm = VectorOf(weights.q_norm);
    layer.k_norm = VectorOf(weights.k_norm);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PackedAttentionLayer> PackedAttentionLayer::Pack(
    const AttentionFacts& facts, const AttentionLayerWeights& weights, PairOrder order) {
  PackedAttentionLayer layer;
  MOEBIUS_RETURN_IF_ERROR(
      CheckShape("o", weights.o, facts.hidden_size,
                 int64_t{facts.config.num_query_heads} * facts.config.v_head_dim));
  MOEBIUS_RETURN_IF_ERROR(facts.config.mla.has_value() ? PackLatent(facts, weights, order, layer)
                                                       : PackGrouped(facts, weights, order, layer));
  layer.output = PackedMatrix::Pack(weights.o.rows(), order);
  return layer;
}

int64_t PackedAttentionLayer::bytes() const {
  size_t bytes = input.bytes() + q_b.bytes() + output.bytes();
  for (const LatentHead& head : heads) {
    bytes += head.key_up.bytes() + head.query_down.bytes() + head.value_up.bytes();
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace moebius
