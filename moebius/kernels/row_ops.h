// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "moebius/kernels/kernels.h"
#include "moebius/tensor/rows.h"

/// Element-wise operations on rows. Serial, thread-safe for disjoint outputs, same bits on every
/// tier; on an executor thread.
namespace moebius {

/// out[t] = table[ids[t]] widened to fp32 (the residual's start). ids in [0, table.num_rows).
void GatherRows(Bf16Rows table, absl::Span<const int32_t> ids, MutableFloatRows out);

/// residual[t] += rows[t], fp32.
void AddRows(Bf16Rows rows, MutableFloatRows residual);
void AddRows(FloatRows rows, MutableFloatRows residual);

/// Exact widening, and rounding to nearest even.
void WidenRows(Bf16Rows rows, MutableFloatRows out);
void RoundRows(FloatRows rows, MutableBf16Rows out);

/// out = bf16(values / divisor), the quotient rounded to fp32 first. Sizes equal.
void DivideRow(absl::Span<const float> values, float divisor, absl::Span<Bf16> out);

/// sum[i] = fma(scale, values[i], sum[i]): one term of a combine group. Sizes equal.
void AccumulateScaled(const Kernels& kernels, float scale, absl::Span<const Bf16> values,
                      absl::Span<float> sum);

}  // namespace moebius
