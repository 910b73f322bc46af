// SPDX-License-Identifier: Apache-2.0
#include "router_service/router_weights.h"

#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"

namespace moebius {
namespace {

// True where every value is a bfloat16 that was widened: packing it as bf16 loses nothing.
bool IsBf16(FloatRows rows) {
  uint32_t low_bits = 0;
  for (int64_t index = 0; index < rows.num_rows; ++index) {
    for (const float value : rows.span(index)) low_bits |= std::bit_cast<uint32_t>(value) & 0xFFFF;
  }
  return low_bits == 0;
}

// An expert whose bias is not finite is no candidate, or always one: a row could be left with fewer
// than k to choose from.
absl::Status CheckBias(absl::Span<const float> bias, int32_t layer) {
  for (size_t expert = 0; expert < bias.size(); ++expert) {
    if (std::isfinite(bias[expert])) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layer, ": the correction bias of expert ", expert, " is not finite"));
  }
  return absl::OkStatus();
}

absl::StatusOr<GateWeights> LoadGate(const Checkpoint& checkpoint, int32_t layer,
                                     const Kernels& kernels) {
  GateWeights gate;
  MOEBIUS_ASSIGN_OR_RETURN(const RowBatch<float> stored,
                           checkpoint.LoadFloat({Part::kGate, layer, -1}));
  if (IsBf16(stored.rows())) {
    RowBatch<Bf16> narrow(stored.num_rows(), stored.width());
    for (int64_t row = 0; row < stored.num_rows(); ++row) {
      for (int64_t column = 0; column < stored.width(); ++column) {
        narrow.rows().row(row)[column] = ToBf16(stored.rows().row(row)[column]);
      }
    }
    gate.matrix = GateMatrix::Pack(Bf16Rows(narrow.rows()), kernels.pair_order);
  } else {
    gate.matrix = GateMatrix::Pack(FloatRows(stored.rows()));
  }
  if (checkpoint.config().gate.has_correction_bias) {
    MOEBIUS_ASSIGN_OR_RETURN(const RowBatch<float> bias,
                             checkpoint.LoadFloat({Part::kCorrectionBias, layer, -1}));
    const absl::Span<const float> values = bias.rows().span(0);
    gate.bias.assign(values.begin(), values.end());
    MOEBIUS_RETURN_IF_ERROR(CheckBias(gate.bias, layer));
  }
  return gate;
}

}  // namespace

absl::StatusOr<RouterWeights> RouterWeights::Load(const Checkpoint& checkpoint,
                                                  const Kernels& kernels) {
  const ModelConfig& config = checkpoint.config();
  RouterWeights weights;
  MOEBIUS_ASSIGN_OR_RETURN(weights.embedding, checkpoint.LoadBf16({Part::kEmbedding, -1, -1}));
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    MOEBIUS_ASSIGN_OR_RETURN(RowBatch<Bf16> attention_norm,
                             checkpoint.LoadBf16({Part::kAttentionNorm, layer, -1}));
    weights.attention_norms.push_back(std::move(attention_norm));
    MOEBIUS_ASSIGN_OR_RETURN(RowBatch<Bf16> ffn_norm,
                             checkpoint.LoadBf16({Part::kFfnNorm, layer, -1}));
    weights.ffn_norms.push_back(std::move(ffn_norm));
    GateWeights gate;
    if (config.IsMoeLayer(layer)) {
      MOEBIUS_ASSIGN_OR_RETURN(gate, LoadGate(checkpoint, layer, kernels));
    }
    weights.gates.push_back(std::move(gate));
  }
  MOEBIUS_ASSIGN_OR_RETURN(weights.final_norm, checkpoint.LoadBf16({Part::kFinalNorm, -1, -1}));
  if (config.tied_head) {
    weights.head = PackedMatrix::Pack(weights.embedding.rows(), kernels.pair_order);
  } else {
    MOEBIUS_ASSIGN_OR_RETURN(const RowBatch<Bf16> head, checkpoint.LoadBf16({Part::kHead, -1, -1}));
    weights.head = PackedMatrix::Pack(head.rows(), kernels.pair_order);
  }
  return weights;
}

int64_t RouterWeights::bytes() const {
  const auto bytes_of = [](const RowBatch<Bf16>& batch) {
    return batch.num_rows() * batch.width() * static_cast<int64_t>(sizeof(Bf16));
  };
  int64_t bytes = bytes_of(embedding) + bytes_of(final_norm) + static_cast<int64_t>(head.bytes());
  for (const RowBatch<Bf16>& norm : attention_norms) bytes += bytes_of(norm);
  for (const RowBatch<Bf16>& norm : ffn_norms) bytes += bytes_of(norm);
  for (const GateWeights& gate : gates) {
    bytes += static_cast<int64_t>(gate.matrix.bytes() + gate.bias.size() * sizeof(float));
  }
  return bytes;
}

}  // namespace moebius
