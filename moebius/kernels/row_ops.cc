// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/row_ops.h"

#include "moebius/base/check.h"
#include "moebius/kernels/cpu/row_vectors.h"

namespace moebius {
namespace {

constexpr int kLanes = RowVector::kLanes;

void WidenRow(const Bf16* in, float* out, int64_t width) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) RowVector::Store(out + i, LoadVector(in + i));
  for (; i < width; ++i) out[i] = ToFloat(in[i]);
}

template <class A, class B>
void CheckSameShape(const Rows<A>& a, const Rows<B>& b) {
  MOEBIUS_CHECK_EQ(a.num_rows, b.num_rows);
  MOEBIUS_CHECK_EQ(a.width, b.width);
}

}  // namespace

void GatherRows(Bf16Rows table, absl::Span<const int32_t> ids, MutableFloatRows out) {
  MOEBIUS_CHECK_EQ(static_cast<int64_t>(ids.size()), out.num_rows);
  MOEBIUS_CHECK_EQ(table.width, out.width);
  for (int64_t t = 0; t < out.num_rows; ++t) {
    WidenRow(table.row(ids[static_cast<size_t>(t)]), out.row(t), out.width);
  }
}

void AddRows(Bf16Rows rows, MutableFloatRows residual) {
  CheckSameShape(rows, residual);
  for (int64_t t = 0; t < rows.num_rows; ++t) {
    const Bf16* const x = rows.row(t);
    float* const sum = residual.row(t);
    int64_t i = 0;
    for (; i + kLanes <= rows.width; i += kLanes) {
      RowVector::Store(sum + i, RowVector::Load(sum + i) + LoadVector(x + i));
    }
    for (; i < rows.width; ++i) sum[i] = sum[i] + ToFloat(x[i]);
  }
}

void AddRows(FloatRows rows, MutableFloatRows residual) {
  CheckSameShape(rows, residual);
  for (int64_t t = 0; t < rows.num_rows; ++t) {
    const float* const x = rows.row(t);
    float* const sum = residual.row(t);
    for (int64_t i = 0; i < rows.width; ++i) sum[i] = sum[i] + x[i];
  }
}

void WidenRows(Bf16Rows rows, MutableFloatRows out) {
  CheckSameShape(rows, out);
  for (int64_t t = 0; t < rows.num_rows; ++t) WidenRow(rows.row(t), out.row(t), rows.width);
}

void RoundRows(FloatRows rows, MutableBf16Rows out) {
  CheckSameShape(rows, out);
  for (int64_t t = 0; t < rows.num_rows; ++t) {
    const float* const x = rows.row(t);
    Bf16* const y = out.row(t);
    int64_t i = 0;
    for (; i + kLanes <= rows.width; i += kLanes) {
      StoreVector(y + i, RowVector::Load(x + i));
    }
    for (; i < rows.width; ++i) y[i] = ToBf16(x[i]);
  }
}

void DivideRow(absl::Span<const float> values, float divisor, absl::Span<Bf16> out) {
  MOEBIUS_CHECK_EQ(values.size(), out.size());
  const int64_t width = static_cast<int64_t>(values.size());
  const float* const x = values.data();
  Bf16* const y = out.data();
  const RowVector::Float divisors = RowVector::Broadcast(divisor);
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) StoreVector(y + i, RowVector::Load(x + i) / divisors);
  for (; i < width; ++i) y[i] = ToBf16(x[i] / divisor);
}

void AccumulateScaled(const Kernels& kernels, float scale, absl::Span<const Bf16> values,
                      absl::Span<float> sum) {
  MOEBIUS_CHECK_EQ(values.size(), sum.size());
  kernels.accumulate_scaled(scale, reinterpret_cast<const uint16_t*>(values.data()), sum.data(),
                            static_cast<int64_t>(sum.size()));
}

}  // namespace moebius
