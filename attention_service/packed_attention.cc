// SPDX-License-Identifier: Apache-2.0
#include "attention_service/packed_attention.h"

#include <initializer_list>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/tensor/weight_arena.h"

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

// Matrices that are multiplied as one.
absl::Status CheckTypes(std::initializer_list<const WeightMatrix*> parts) {
  for (const WeightMatrix* part : parts) {
    if (part->is_fp8() == (*parts.begin())->is_fp8()) continue;
    return absl::InvalidArgumentError(
        "attention weights: the projections of a row are of different types");
  }
  return absl::OkStatus();
}

WeightMatrix Transpose(Bf16Rows rows) {
  RowBatch<Bf16> transposed(rows.width, rows.num_rows);
  for (int64_t i = 0; i < rows.num_rows; ++i) {
    for (int64_t j = 0; j < rows.width; ++j) transposed.rows().row(j)[i] = rows.row(i)[j];
  }
  return transposed;
}

// Of rows from `first_row` on, transposed: blocks of rows become blocks of columns, and groups of K
// where they were groups of outputs.
std::optional<Fp8Rows> TransposedBlocks(const std::optional<Fp8Rows>& rows, int64_t first_row) {
  if (!rows.has_value()) return std::nullopt;
  Fp8Rows blocks;
  blocks.block_rows = rows->block_columns;
  blocks.block_columns = rows->block_rows;
  blocks.row_offset = rows->column_offset;
  blocks.column_offset = (rows->row_offset + first_row) % rows->block_rows;
  return blocks;
}

WeightMatrix Transpose(const Fp8Rows& rows) {
  const Rows<const uint8_t>& codes = rows.codes;
  WeightMatrix transposed =
      WeightMatrix::MakeFp8(codes.width, codes.num_rows, *TransposedBlocks(rows, 0));
  for (int64_t i = 0; i < codes.num_rows; ++i) {
    for (int64_t j = 0; j < codes.width; ++j) transposed.codes().row(j)[i] = codes.row(i)[j];
  }
  const MutableFloatRows scales = transposed.scales();
  for (int64_t i = 0; i < scales.num_rows; ++i) {
    for (int64_t j = 0; j < scales.width; ++j) scales.row(i)[j] = rows.scales.row(j)[i];
  }
  return transposed;
}

// Makes the matrices of a layer in their order: by packing, by looking at storage that has them, or
// not at all, to count what they take.
class MatrixMaker {
 public:
  enum class Mode { kPack, kView, kCount };
  MatrixMaker(Mode mode, const AttentionBlocks& blocks, PairOrder order,
              absl::Span<uint8_t> storage)
      : mode_(mode),
        blocks_(blocks),
        order_(order),
        has_storage_(!storage.empty()),
        cursor_(storage) {}

  bool packs() const { return mode_ == Mode::kPack; }
  const AttentionBlocks& blocks() const { return blocks_; }
  int64_t bytes() const { return bytes_; }

  // The next matrix [num_outputs, depth], stored in `blocks` (null: bf16); `parts` gives its
  // weights where it is packed, their outputs in order.
  PackedMatrix Next(int64_t num_outputs, int64_t depth, const std::optional<Fp8Rows>& blocks,
                    absl::FunctionRef<std::vector<WeightRows>()> parts) {
    const PackedLayout layout = PackedLayout::Of(num_outputs, depth, blocks, order_);
    const auto size = static_cast<int64_t>(layout.bytes());
    bytes_ += ArenaCursor::Taken(size);
    if (mode_ == Mode::kCount) return PackedMatrix();
    const absl::Span<uint8_t> storage = has_storage_ ? cursor_.Take(size) : absl::Span<uint8_t>();
    return packs() ? PackedMatrix::PackStack(parts(), order_, storage)
                   : PackedMatrix::View(layout, storage);
  }

 private:
  const Mode mode_;
  const AttentionBlocks blocks_;
  const PairOrder order_;
  const bool has_storage_;
  ArenaCursor cursor_;
  int64_t bytes_ = 0;
};

LatentHead MakeHead(const AttentionConfig& config, const AttentionLayerWeights& weights,
                    int64_t head, MatrixMaker& maker) {
  const MlaConfig& mla = *config.mla;
  const int64_t nope = mla.qk_nope_dim;
  const int64_t rank = mla.kv_lora_rank;
  const int64_t begin = head * (nope + config.v_head_dim);
  const std::optional<Fp8Rows>& blocks = maker.blocks().kv_b;
  const auto rows = [&](int64_t first, int64_t count) {
    return weights.kv_b.rows().Slice(begin + first, begin + first + count);
  };
  WeightMatrix transposed;
  const auto query_down = [&] {
    const WeightRows key = rows(0, nope);
    transposed = key.is_fp8() ? Transpose(key.fp8) : Transpose(key.bf16);
    return std::vector<WeightRows>{transposed.rows()};
  };
  LatentHead made;
  made.key_up =
      maker.Next(nope, rank, blocks, [&] { return std::vector<WeightRows>{rows(0, nope)}; });
  made.query_down = maker.Next(rank, nope, TransposedBlocks(blocks, begin), query_down);
  made.value_up = maker.Next(config.v_head_dim, rank, blocks, [&] {
    return std::vector<WeightRows>{rows(nope, config.v_head_dim)};
  });
  return made;
}

absl::Status CheckLatent(const AttentionFacts& facts, const AttentionLayerWeights& weights) {
  const AttentionConfig& config = facts.config;
  const MlaConfig& mla = *config.mla;
  const int64_t q_outputs = int64_t{config.num_query_heads} * config.qk_head_dim;
  MOEBIUS_RETURN_IF_ERROR(
      CheckShape("kv_a", weights.kv_a, mla.kv_lora_rank + mla.qk_rope_dim, facts.hidden_size));
  MOEBIUS_RETURN_IF_ERROR(CheckShape(
      "kv_b", weights.kv_b, config.num_query_heads * int64_t{mla.qk_nope_dim + config.v_head_dim},
      mla.kv_lora_rank));
  MOEBIUS_RETURN_IF_ERROR(
      CheckTypes({&weights.kv_a, mla.q_lora_rank > 0 ? &weights.q_a : &weights.q}));
  if (mla.q_lora_rank == 0) return CheckShape("q", weights.q, q_outputs, facts.hidden_size);
  MOEBIUS_RETURN_IF_ERROR(CheckShape("q_a", weights.q_a, mla.q_lora_rank, facts.hidden_size));
  return CheckShape("q_b", weights.q_b, q_outputs, mla.q_lora_rank);
}

absl::Status MakeLatent(const AttentionFacts& facts, const AttentionLayerWeights& weights,
                        MatrixMaker& maker, PackedAttentionLayer& layer) {
  const AttentionConfig& config = facts.config;
  const MlaConfig& mla = *config.mla;
  const int64_t q_outputs = int64_t{config.num_query_heads} * config.qk_head_dim;
  if (maker.packs()) MOEBIUS_RETURN_IF_ERROR(CheckLatent(facts, weights));
  if (mla.q_lora_rank > 0) {
    layer.q_b = maker.Next(q_outputs, mla.q_lora_rank, maker.blocks().q_b,
                           [&] { return std::vector<WeightRows>{weights.q_b.rows()}; });
  }
  const bool has_q_a = mla.q_lora_rank > 0;
  layer.input =
      maker.Next((has_q_a ? mla.q_lora_rank : q_outputs) + mla.kv_lora_rank + mla.qk_rope_dim,
                 facts.hidden_size, has_q_a ? maker.blocks().q_a : maker.blocks().q, [&] {
                   const WeightMatrix& q = has_q_a ? weights.q_a : weights.q;
                   return std::vector<WeightRows>{q.rows(), weights.kv_a.rows()};
                 });
  for (int64_t head = 0; head < config.num_query_heads; ++head) {
    layer.heads.push_back(MakeHead(config, weights, head, maker));
  }
  return absl::OkStatus();
}

absl::Status MakeGrouped(const AttentionFacts& facts, const AttentionLayerWeights& weights,
                         MatrixMaker& maker, PackedAttentionLayer& layer) {
  const AttentionConfig& config = facts.config;
  const int64_t q = int64_t{config.num_query_heads} * config.qk_head_dim;
  const int64_t k = int64_t{config.num_kv_heads} * config.qk_head_dim;
  const int64_t v = int64_t{config.num_kv_heads} * config.v_head_dim;
  if (maker.packs()) {
    MOEBIUS_RETURN_IF_ERROR(CheckShape("q", weights.q, q, facts.hidden_size));
    MOEBIUS_RETURN_IF_ERROR(CheckShape("k", weights.k, k, facts.hidden_size));
    MOEBIUS_RETURN_IF_ERROR(CheckShape("v", weights.v, v, facts.hidden_size));
    MOEBIUS_RETURN_IF_ERROR(CheckTypes({&weights.q, &weights.k, &weights.v}));
  }
  layer.input = maker.Next(q + k + v, facts.hidden_size, maker.blocks().q, [&] {
    return std::vector<WeightRows>{weights.q.rows(), weights.k.rows(), weights.v.rows()};
  });
  return absl::OkStatus();
}

absl::Status MakeMatrices(const AttentionFacts& facts, const AttentionLayerWeights& weights,
                          MatrixMaker& maker, PackedAttentionLayer& layer) {
  const int64_t heads_width = int64_t{facts.config.num_query_heads} * facts.config.v_head_dim;
  if (maker.packs()) {
    MOEBIUS_RETURN_IF_ERROR(CheckShape("o", weights.o, facts.hidden_size, heads_width));
  }
  MOEBIUS_RETURN_IF_ERROR(facts.config.mla.has_value() ? MakeLatent(facts, weights, maker, layer)
                                                       : MakeGrouped(facts, weights, maker, layer));
  layer.output = maker.Next(facts.hidden_size, heads_width, maker.blocks().o,
                            [&] { return std::vector<WeightRows>{weights.o.rows()}; });
  return absl::OkStatus();
}

absl::Status TakeLatentVectors(const AttentionFacts& facts, const AttentionLayerWeights& weights,
                               PackedAttentionLayer& layer) {
  const MlaConfig& mla = *facts.config.mla;
  MOEBIUS_RETURN_IF_ERROR(CheckShape("kv_a_norm", weights.kv_a_norm, 1, mla.kv_lora_rank));
  layer.latent_norm = VectorOf(weights.kv_a_norm);
  if (mla.q_lora_rank == 0) return absl::OkStatus();
  MOEBIUS_RETURN_IF_ERROR(CheckShape("q_a_norm", weights.q_a_norm, 1, mla.q_lora_rank));
  layer.q_a_norm = VectorOf(weights.q_a_norm);
  return absl::OkStatus();
}

absl::Status TakeGroupedVectors(const AttentionFacts& facts, const AttentionLayerWeights& weights,
                                PackedAttentionLayer& layer) {
  const AttentionConfig& config = facts.config;
  const int64_t q = int64_t{config.num_query_heads} * config.qk_head_dim;
  const int64_t k = int64_t{config.num_kv_heads} * config.qk_head_dim;
  const int64_t v = int64_t{config.num_kv_heads} * config.v_head_dim;
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

absl::StatusOr<PackedAttentionLayer> MakeLayer(const AttentionFacts& facts,
                                               const AttentionLayerWeights& weights,
                                               MatrixMaker maker) {
  PackedAttentionLayer layer;
  MOEBIUS_RETURN_IF_ERROR(MakeMatrices(facts, weights, maker, layer));
  MOEBIUS_RETURN_IF_ERROR(facts.config.mla.has_value() ? TakeLatentVectors(facts, weights, layer)
                                                       : TakeGroupedVectors(facts, weights, layer));
  return layer;
}

}  // namespace

absl::StatusOr<PackedAttentionLayer> PackedAttentionLayer::Pack(
    const AttentionFacts& facts, const AttentionLayerWeights& weights, PairOrder order,
    absl::Span<uint8_t> storage) {
  return MakeLayer(
      facts, weights,
      MatrixMaker(MatrixMaker::Mode::kPack, AttentionBlocksOf(weights), order, storage));
}

absl::StatusOr<PackedAttentionLayer> PackedAttentionLayer::View(
    const AttentionFacts& facts, const AttentionLayerWeights& weights,
    const AttentionBlocks& blocks, PairOrder order, absl::Span<uint8_t> storage) {
  return MakeLayer(facts, weights, MatrixMaker(MatrixMaker::Mode::kView, blocks, order, storage));
}

int64_t PackedAttentionLayer::BytesOf(const AttentionFacts& facts, const AttentionBlocks& blocks) {
  PackedAttentionLayer layer;
  MatrixMaker maker(MatrixMaker::Mode::kCount, blocks, PairOrder::kAdjacent, {});
  const absl::Status status = MakeMatrices(facts, AttentionLayerWeights(), maker, layer);
  MOEBIUS_CHECK(status.ok());
  return maker.bytes();
}

int64_t PackedAttentionLayer::bytes() const {
  size_t bytes = input.bytes() + q_b.bytes() + output.bytes();
  for (const LatentHead& head : heads) {
    bytes += head.key_up.bytes() + head.query_down.bytes() + head.value_up.bytes();
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace moebius
