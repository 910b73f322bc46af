// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "moebius/base/executor.h"
#include "moebius/kernels/kernels.h"
#include "moebius/kernels/packed_matrix.h"
#include "moebius/tensor/buffer.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// A gate's weights [E, H], packed as stored: bf16, or fp32 (never rounded down). Immutable and
/// thread-safe after construction; moves, never copies.
class GateMatrix {
 public:
  GateMatrix() = default;
  static GateMatrix Pack(Bf16Rows weights, PairOrder order);
  static GateMatrix Pack(FloatRows weights);

  int64_t num_experts() const { return num_experts_; }
  int64_t hidden_size() const { return hidden_size_; }
  size_t bytes() const { return bf16_.bytes() + float_panels_.size() * sizeof(float); }

 private:
  friend void GateLogits(Executor&, const Kernels&, Bf16Rows, const GateMatrix&, MutableFloatRows);
  int64_t num_experts_ = 0;
  int64_t hidden_size_ = 0;
  PackedMatrix bf16_;
  Array<float> float_panels_;  // [ceil(E/32)][ceil(H/32)][32 K][32 columns]
};

/// logits fp32 [T, E] = rows bf16 [T, H] · weights, each a block sum from +0 whose fused
/// multiply-adds take the weight as stored. Must run on an executor thread; inline when small.
void GateLogits(Executor& executor, const Kernels& kernels, Bf16Rows rows,
                const GateMatrix& weights, MutableFloatRows logits);

}  // namespace moebius
