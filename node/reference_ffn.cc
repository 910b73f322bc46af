// SPDX-License-Identifier: Apache-2.0
#include "node/reference_ffn.h"

#include <algorithm>

#include "moebius/tensor/buffer.h"
#include "node/reference_gate.h"

namespace moebius {

void ReferenceFfn::AddTo(FloatRows in, float weight, MutableFloatRows sums) const {
  RowBatch<float> gated(in.num_rows, gate.num_outputs());
  RowBatch<float> linear(in.num_rows, up.num_outputs());
  RowBatch<float> output(in.num_rows, down.num_outputs());
  gate.Apply(in, gated.rows());
  up.Apply(in, linear.rows());
  for (int64_t row = 0; row < in.num_rows; ++row) {
    const absl::Span<float> product = gated.rows().span(row);
    for (size_t i = 0; i < product.size(); ++i) {
      product[i] = ReferenceSilu(product[i]) * linear.rows().row(row)[i];
    }
  }
  down.Apply(gated.rows(), output.rows());
  for (int64_t row = 0; row < in.num_rows; ++row) {
    for (int64_t i = 0; i < sums.width; ++i) sums.row(row)[i] += weight * output.rows().row(row)[i];
  }
}

void ApplyReferenceFfn(const GateConfig& config, GroupFill group_fill,
                       const ReferenceFfnWeights& weights, FloatRows normed,
                       const ReferenceChoices& choices, MutableFloatRows out) {
  for (int64_t row = 0; row < out.num_rows; ++row) {
    std::fill_n(out.row(row), out.width, 0.0f);
  }
  if (weights.dense.has_value()) {
    weights.dense->AddTo(normed, 1.0f, out);
    return;
  }
  weights.gate.Apply(normed, choices.gate_logits);
  for (int64_t row = 0; row < normed.num_rows; ++row) {
    ChooseReferenceExperts(config, group_fill, choices.gate_logits.span(row),
                           weights.correction_bias, choices.experts.span(row),
                           choices.weights.span(row));
    for (int32_t choice = 0; choice < config.top_k; ++choice) {
      const auto expert = static_cast<size_t>(choices.experts.row(row)[choice]);
      weights.experts[expert].AddTo(normed.Slice(row, row + 1), choices.weights.row(row)[choice],
                                    out.Slice(row, row + 1));
    }
  }
  if (weights.shared.has_value()) weights.shared->AddTo(normed, 1.0f, out);
}

}  // namespace moebius
