// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "moebius/kernels/gate_logits.h"
#include "moebius/kernels/kernels.h"
#include "moebius/kernels/packed_matrix.h"
#include "moebius/model/checkpoint.h"
#include "moebius/tensor/buffer.h"

namespace moebius {

/// The gate of one MoE layer.
struct GateWeights {
  GateMatrix matrix;        // [num_experts, hidden_size], never rounded below what is stored
  std::vector<float> bias;  // [num_experts] correction bias, fp32; empty where there is none
};

/// What a row owner computes with: everything but attention and feed-forward weights.
/// Immutable after Load; safe to read from many threads. Moves, never copies.
struct RouterWeights {
  RowBatch<Bf16> embedding;                     // [vocab_size, hidden_size]
  std::vector<RowBatch<Bf16>> attention_norms;  // per layer [1, hidden_size]
  std::vector<RowBatch<Bf16>> ffn_norms;        // per layer [1, hidden_size]
  std::vector<GateWeights> gates;               // per layer; empty for dense layers
  RowBatch<Bf16> final_norm;                    // [1, hidden_size]
  PackedMatrix head;                            // [vocab_size, hidden_size]; of a tied head too

  /// Reads only the router's tensors. Failures name the tensor.
  static absl::StatusOr<RouterWeights> Load(const Checkpoint& checkpoint, const Kernels& kernels);

  int64_t bytes() const;
};

}  // namespace moebius
