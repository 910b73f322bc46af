// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

#include "moebius/model/model_config.h"
#include "moebius/tensor/rows.h"
#include "node/reference_linear.h"

namespace moebius {

/// One feed-forward network: down(silu(gate(x)) · up(x)).
struct ReferenceFfn {
  ReferenceLinear gate, up, down;

  /// `in` [T, hidden_size]; adds `weight` times its output to `sums` [T, hidden_size].
  void AddTo(FloatRows in, float weight, MutableFloatRows sums) const;
};

/// The feed-forward part of one layer: dense, or a gate with experts and a merged shared expert.
struct ReferenceFfnWeights {
  std::optional<ReferenceFfn> dense;   // set in dense layers, alone
  ReferenceLinear gate;                // [E, hidden_size]
  std::vector<float> correction_bias;  // [E] or empty
  std::vector<ReferenceFfn> experts;   // [E]
  std::optional<ReferenceFfn> shared;  // every token, weight 1
};

/// Where the choices of a MoE layer go: row i of each belongs to row i of the input.
struct ReferenceChoices {
  Rows<float> gate_logits;  // [T, E]
  Rows<int16_t> experts;    // [T, k], ascending
  Rows<float> weights;      // [T, k]
};

/// `normed` [T, hidden_size] → `out` [T, hidden_size], overwritten. `choices` is filled in MoE
/// layers and ignored in dense ones. Serial; any number of threads at once over different rows.
void ApplyReferenceFfn(const GateConfig& config, GroupFill group_fill,
                       const ReferenceFfnWeights& weights, FloatRows normed,
                       const ReferenceChoices& choices, MutableFloatRows out);

}  // namespace moebius
