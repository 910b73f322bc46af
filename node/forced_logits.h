// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "moebius/tensor/buffer.h"

namespace moebius {

/// What the gate of one MoE layer chose for every token of a teacher-forced run.
struct ForcedLayer {
  int64_t layer = 0;
  std::vector<int16_t> experts;    // [num_tokens, top_k], ids ascending within a token
  std::vector<float> weights;      // [num_tokens, top_k], in the order of `experts`
  std::vector<float> gate_logits;  // [num_tokens, num_experts], before the score function
};

/// What a model computes for given token ids, whichever path computed it: the fp32 reference
/// (node/reference_model.h) or the fast path (node/embedded.h). Made to be compared and written to
/// a file (node/logits_file.h). A value; moves, never copies.
struct ForcedLogits {
  int64_t num_tokens = 0;
  int64_t num_experts = 0;  // E, routed
  int64_t top_k = 0;
  std::vector<int64_t> rows;        // tokens whose logits are kept, ascending, distinct
  RowBatch<float> logits;           // [rows.size(), vocab_size], fp32, as the head gives them
  std::vector<ForcedLayer> layers;  // MoE layers, ascending
};

}  // namespace moebius
