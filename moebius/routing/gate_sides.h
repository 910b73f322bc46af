// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "moebius/base/gate_config.h"
#include "moebius/tensor/bf16.h"
#include "moebius/tensor/rows.h"

namespace moebius {

// What lies on either side of the choice (gate.h) in families that have it: a bias on the logits,
// the shared experts' own gate, and weights that multiply what an expert is given. Pure,
// thread-safe; all but UseWeight runs in the executor's float environment.

/// Adds a gate's linear bias [E] to its logits [T, E], one fp32 addition each. SelectExperts comes
/// after it: the bias is part of the logits, for the choice and for the weights.
void AddLogitBias(absl::Span<const float> bias, MutableFloatRows logits);

/// What the shared experts weigh in each row: 1, or the sigmoid of the row's logit under the shared
/// gate [1, H], which is made as the other gate's are (GateLogits). `logits` fp32 [T, 1], not read
/// where the weight is 1; `weights` [T]. A row whose logit is not finite gets 0 and is appended to
/// `refused_rows`, ascending; no other row changes.
void WeighSharedExperts(const GateConfig& config, FloatRows logits, absl::Span<float> weights,
                        std::vector<int64_t>* refused_rows);

/// Where an assignment's weight goes: what multiplies the row that the expert is given, and what
/// multiplies its output. One of the two is 1.
struct WeightUse {
  float input = 1;
  float output = 1;
  friend bool operator==(const WeightUse&, const WeightUse&) = default;
};
WeightUse UseWeight(const GateConfig& config, float weight);

/// The row that an expert is given: bf16(weight · x), rounded once; as it is for a weight of 1.
/// `row` and `out` [H] may be the same memory.
void WeighRow(float weight, absl::Span<const Bf16> row, absl::Span<Bf16> out);

}  // namespace moebius
