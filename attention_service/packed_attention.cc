// SPDX-License-Identifier: Apache-2.0
#include "attention_service/packed_attention.h"

#include <algorithm>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/tensor/weight_arena.h"

namespace moebius {
namespace {

template <typename T>
absl::Status CheckShape(absl::string_view name, const RowBatch<T>& found, int64_t num_rows,
                        int64_t width) {
  if (found.num_rows() == num_rows && found.width() == width) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("attention weights: ", name, " is [",
                                                 found.num_rows(), ", ", found.width(),
                                                 "], expected [", num_rows, ", ", width, "]"));
}

RowBatch<Bf16> Stack(absl::Span<const RowBatch<Bf16>* const> parts) {
  int64_t num_rows = 0;
  for (const RowBatch<Bf16>* part : parts) num_rows += part->num_rows();
  RowBatch<Bf16> stacked(num_rows, parts[0]->width());
  int64_t row = 0;
  for (const RowBatch<Bf16>* part : parts) {
    for (int64_t r = 0; r < part->num_rows(); ++r, ++row) {
      std::copy_n(part->rows().row(r), part->width(), stacked.rows().row(row));
    }
  }
  return stacked;
}

template <typename T>
std::vector<T> VectorOf(const RowBatch<T>& row) {
  if (row.num_rows() == 0) return {};
  return std::vector<T>(row.rows().row(0), row.rows().row(0) + row.width());
}

// Makes the matrices of a layer in their order: by packing, by looking at storage that has them, or
// not at all, to count what they take.
class MatrixMaker {
 public:
  enum class Mode { kPack, kView, kCount };
  MatrixMaker(Mode mode, PairOrder order, absl::Span<uint8_t> storage)
      : mode_(mode), order_(order), has_storage_(!storage.empty()), cursor_(storage) {}

  bool packs() const { return mode_ == Mode::kPack; }
  int64_t bytes() const { return bytes_; }

  // The next matrix [num_outputs, depth]; `rows` gives its weights where it is packed.
  PackedMatrix Next(int64_t num_outputs, int64_t depth, absl::FunctionRef<Bf16Rows()> rows) {
    const int64_t size = PackedMatrix::BytesOf(num_outputs, depth);
    bytes_ += ArenaCursor::Taken(size);
    if (mode_ == Mode::kCount) return PackedMatrix();
    const absl::Span<uint8_t> storage = has_storage_ ? cursor_.Take(size) : absl::Span<uint8_t>();
    return packs() ? PackedMatrix::Pack(rows(), order_, storage)
                   : PackedMatrix::View(num_outputs, depth, order_, storage);
  }

 private:
  const Mode mode_;
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
  const auto key_up = [&] { return Bf16Rows(weights.kv_b.rows()).Slice(begin, begin + nope); };
  RowBatch<Bf16> transposed;
  const auto query_down = [&] {
    const Bf16Rows key = key_up();
    transposed.Reset(rank, nope);
    for (int64_t i = 0; i < nope; ++i) {
      for (int64_t j = 0; j < rank; ++j) transposed.rows().row(j)[i] = key.row(i)[j];
    }
    return Bf16Rows(transposed.rows());
  };
  const auto value_up = [&] {
    return Bf16Rows(weights.kv_b.rows()).Slice(begin + nope, begin + nope + config.v_head_dim);
  };
  LatentHead made;
  made.key_up = maker.Next(nope, rank, key_up);
  made.query_down = maker.Next(rank, nope, query_down);
  made.value_up = maker.Next(config.v_head_dim, rank, value_up);
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
    layer.q_b =
        maker.Next(q_outputs, mla.q_lora_rank, [&] { return Bf16Rows(weights.q_b.rows()); });
  }
  RowBatch<Bf16> stacked;
  layer.input = maker.Next(
      (mla.q_lora_rank > 0 ? mla.q_lora_rank : q_outputs) + mla.kv_lora_rank + mla.qk_rope_dim,
      facts.hidden_size, [&] {
        const RowBatch<Bf16>& q = mla.q_lora_rank > 0 ? weights.q_a : weights.q;
        stacked = Stack({&q, &weights.kv_a});
        return Bf16Rows(stacked.rows());
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
  }
  RowBatch<Bf16> stacked;
  layer.input = maker.Next(q + k + v, facts.hidden_size, [&] {
    stacked = Stack({&weights.q, &weights.k, &weights.v});
    return Bf16Rows(stacked.rows());
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
  layer.output =
      maker.Next(facts.hidden_size, heads_width, [&] { return Bf16Rows(weights.o.rows()); });
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
  return MakeLayer(facts, weights, MatrixMaker(MatrixMaker::Mode::kPack, order, storage));
}

absl::StatusOr<PackedAttentionLayer> PackedAttentionLayer::View(
    const AttentionFacts& facts, const AttentionLayerWeights& weights, PairOrder order,
    absl::Span<uint8_t> storage) {
  return MakeLayer(facts, weights, MatrixMaker(MatrixMaker::Mode::kView, order, storage));
}

int64_t PackedAttentionLayer::BytesOf(const AttentionFacts& facts) {
  PackedAttentionLayer layer;
  MatrixMaker maker(MatrixMaker::Mode::kCount, PairOrder::kAdjacent, {});
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
