// SPDX-License-Identifier: Apache-2.0
#include "node/reference_linear.h"

#include <algorithm>
#include <cmath>

#include "moebius/base/check.h"

namespace moebius {
namespace {

// Outputs summed at once: 32 doubles a row, four rows, stay in the first-level cache.
constexpr int64_t kColumns = 32;

int64_t PaddedOutputs(int64_t num_outputs) {
  return (num_outputs + kColumns - 1) / kColumns * kColumns;
}

// sums[r][c] = bias[c] + Σ_i in[r][i] · columns[i][c] for one group of kColumns outputs.
template <int kRows>
void SumColumns(FloatRows in, FloatRows columns, const float* bias, double sums[][kColumns]) {
  for (int r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kColumns; ++c) sums[r][c] = bias[c];
  }
  for (int64_t i = 0; i < columns.num_rows; ++i) {
    const float* column = columns.data + i * columns.stride;
    for (int r = 0; r < kRows; ++r) {
      const double value = in.data[r * in.stride + i];
      for (int64_t c = 0; c < kColumns; ++c) sums[r][c] += value * column[c];
    }
  }
}

template <int kRows>
void ApplyRows(FloatRows in, FloatRows columns, const float* bias, MutableFloatRows out) {
  for (int64_t begin = 0; begin < out.width; begin += kColumns) {
    alignas(64) double sums[kRows][kColumns];
    SumColumns<kRows>(in, columns.Columns(begin, begin + kColumns), bias + begin, sums);
    const int64_t end = std::min(begin + kColumns, out.width);
    for (int r = 0; r < kRows; ++r) {
      for (int64_t c = begin; c < end; ++c) out.row(r)[c] = static_cast<float>(sums[r][c - begin]);
    }
  }
}

}  // namespace

ReferenceLinear::ReferenceLinear(FloatRows weight, absl::Span<const float> bias)
    : num_inputs_(weight.width),
      num_outputs_(weight.num_rows),
      columns_(weight.width, PaddedOutputs(weight.num_rows)),
      bias_(static_cast<size_t>(PaddedOutputs(weight.num_rows))) {
  for (int64_t output = 0; output < num_outputs_; ++output) {
    for (int64_t input = 0; input < num_inputs_; ++input) {
      columns_.rows().row(input)[output] = weight.row(output)[input];
    }
  }
  MOEBIUS_CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == num_outputs_);
  std::copy(bias.begin(), bias.end(), bias_.data());
}

void ReferenceLinear::Apply(FloatRows in, MutableFloatRows out) const {
  MOEBIUS_CHECK_EQ(in.width, num_inputs_);
  MOEBIUS_CHECK_EQ(out.width, num_outputs_);
  MOEBIUS_CHECK_EQ(in.num_rows, out.num_rows);
  int64_t row = 0;
  for (; row + 4 <= in.num_rows; row += 4) {
    ApplyRows<4>(in.Slice(row, row + 4), columns_.rows(), bias_.data(), out.Slice(row, row + 4));
  }
  for (; row < in.num_rows; ++row) {
    ApplyRows<1>(in.Slice(row, row + 1), columns_.rows(), bias_.data(), out.Slice(row, row + 1));
  }
}

void ReferenceRmsNorm(absl::Span<const float> in, absl::Span<const float> weight, double eps,
                      absl::Span<float> out) {
  double sum = 0;
  for (const float value : in) sum += static_cast<double>(value) * value;
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(in.size()) + eps);
  for (size_t i = 0; i < in.size(); ++i) {
    out[i] = static_cast<float>(in[i] * scale) * weight[i];
  }
}

float ReferenceSilu(float x) {
  const double value = x;
  return static_cast<float>(value / (1.0 + std::exp(-value)));
}

}  // namespace moebius
