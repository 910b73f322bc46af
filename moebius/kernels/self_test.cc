// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/self_test.h"

#include <bit>
#include <cstdint>
#include <sstream>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

#include "moebius/base/float_environment.h"
#include "moebius/base/random.h"
#include "moebius/kernels/packed_matrix.h"
#include "moebius/kernels/reference/block_sum.h"
#include "moebius/kernels/row_panels.h"
#include "moebius/tensor/rows.h"

namespace moebius {
namespace {

constexpr int64_t kNumOutputs = 64;
constexpr int64_t kDepth = 96;

constexpr uint64_t kSeed = 20260701;  // the test is the same in every process

enum class Values { kOrdinary, kWholeRange };

Bf16 MakeValue(Values values, Random& random) {
  const uint32_t bits = static_cast<uint32_t>(random.Bits());
  // Sign and mantissa from the low bits; the exponent from [2^-8, 2^8), or from all there are.
  const uint32_t low = bits & 0x807F;
  if (values == Values::kOrdinary)
    return Bf16{static_cast<uint16_t>(low | ((119 + (bits >> 16) % 16) << 7))};
  // Mostly pairs whose products are near either end of the range.
  static constexpr uint32_t kExponents[] = {0, 1, 63, 64, 65, 127, 190, 191, 254};
  const uint32_t pick = (bits >> 16) % 64;
  if (pick == 0) return Bf16{static_cast<uint16_t>((bits & 0x8000) | 0x7F80)};
  return Bf16{static_cast<uint16_t>(low | (kExponents[pick % 9] << 7))};
}

struct Case {
  explicit Case(int64_t num_rows)
      : num_rows(num_rows),
        rows(static_cast<size_t>(num_rows * kDepth)),
        weights(static_cast<size_t>(kNumOutputs * kDepth)) {}
  int64_t num_rows;
  std::vector<Bf16> rows;
  std::vector<Bf16> weights;
};

Case MakeCase(int64_t num_rows, Values values) {
  Random random(kSeed);
  Case result(num_rows);
  for (Bf16& value : result.rows) value = MakeValue(values, random);
  for (Bf16& value : result.weights) value = MakeValue(values, random);
  return result;
}

// Column n: 2^-126 from element 0, less 2^-148 … 2^-155 from element 2 (even columns), or the same
// in the odd chain: below half a unit of rounding the result is still 2^-126, above it is flushed.
Case MakeBoundaryCase(int64_t num_rows) {
  Case result(num_rows);
  for (int64_t r = 0; r < num_rows; ++r) {
    Bf16* const row = result.rows.data() + r * kDepth;
    for (const int64_t k : {0, 1, 2, 3}) row[k] = ToBf16(r % 2 == 0 ? 0x1p-63f : -0x1p-63f);
  }
  for (int64_t n = 0; n < kNumOutputs; ++n) {
    Bf16* const column = result.weights.data() + n * kDepth;
    const int64_t chain = n % 2;
    const int exponent = -(85 + static_cast<int>(n / 2) % 8);
    column[chain] = ToBf16(0x1p-63f);
    column[chain + 2] = ToBf16(-std::bit_cast<float>(static_cast<uint32_t>(127 + exponent) << 23));
  }
  return result;
}

bool SameValue(float a, float b) {
  if (a != a && b != b) return true;  // which NaN is not promised
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Products of `rows` with a packed matrix, [rows, kNumOutputs], each compared with `expected`.
std::string CompareProducts(const Kernels& kernels, const char* name,
                            const std::vector<const Bf16*>& rows, const PackedMatrix& matrix,
                            absl::FunctionRef<float(const Bf16* row, int64_t output)> expected) {
  std::vector<float> out(rows.size() * kNumOutputs);
  PanelProduct product;
  product.matrix = &matrix;
  product.panel_end = matrix.num_panels();
  product.out = out.data();
  product.out_stride = kNumOutputs;
  RunPanels(kernels, rows, product);
  for (size_t r = 0; r < rows.size(); ++r) {
    for (int64_t n = 0; n < kNumOutputs; ++n) {
      const float wanted = expected(rows[r], n);
      const float actual = out[r * kNumOutputs + static_cast<size_t>(n)];
      if (SameValue(actual, wanted)) continue;
      std::ostringstream text;
      text << name << ", row " << r << ", column " << n << ": " << std::hexfloat << actual
           << " instead of " << wanted;
      return text.str();
    }
  }
  return "";
}

std::string RunCase(const Kernels& kernels, const char* name, const Case& test) {
  const PackedMatrix matrix =
      PackedMatrix::Pack(Bf16Rows(test.weights.data(), kNumOutputs, kDepth), kernels.pair_order);
  std::vector<const Bf16*> rows;
  for (int64_t r = 0; r < test.num_rows; ++r) rows.push_back(test.rows.data() + r * kDepth);
  return CompareProducts(kernels, name, rows, matrix, [&](const Bf16* row, int64_t output) {
    return reference::BlockSum(absl::MakeConstSpan(row, kDepth),
                               absl::MakeConstSpan(test.weights.data() + output * kDepth, kDepth),
                               0.0f);
  });
}

// Every finite code, in groups of K of which none is whole blocks.
std::string RunFp8Case(const Kernels& kernels, int64_t num_rows) {
  constexpr int64_t kGroupDepth = 40;
  constexpr int64_t kNumGroups = 3;
  Random random(kSeed);
  const Case test = MakeCase(num_rows, Values::kOrdinary);
  std::vector<uint8_t> codes(kNumOutputs * kDepth);
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint8_t>(i % 256);
    if (!IsFiniteFp8(codes[i])) codes[i] = 0x01;
  }
  std::vector<float> scales(kNumOutputs * kNumGroups);
  for (float& scale : scales) scale = ToFloat(MakeValue(Values::kOrdinary, random));
  Fp8Rows weights;
  weights.codes = Rows<const uint8_t>(codes.data(), kNumOutputs, kDepth);
  weights.scales = FloatRows(scales.data(), kNumOutputs, kNumGroups);
  weights.block_columns = kGroupDepth;
  const PackedMatrix matrix = PackedMatrix::Pack(weights, kernels.pair_order);
  std::vector<const Bf16*> rows;
  for (int64_t r = 0; r < num_rows; ++r) rows.push_back(test.rows.data() + r * kDepth);
  return CompareProducts(
      kernels, "FP8 weights", rows, matrix, [&](const Bf16* row, int64_t output) {
        return reference::Fp8BlockSum(absl::MakeConstSpan(row, kDepth), weights, output, 0.0f);
      });
}

}  // namespace

bool FlushesBeforeRounding() {
  const ScopedFloatEnvironment environment;
  // Their product is (1 - 2^-26) · 2^-126; it rounds to 2^-126.
  volatile float a = (1 + 0x1p-13f) * 0x1p-63f;
  volatile float b = (1 - 0x1p-13f) * 0x1p-63f;
  volatile float product = a * b;
  return product == 0.0f;
}

std::string SelfTestBlockSum(const Kernels& kernels) {
  const ScopedFloatEnvironment environment;
  const int64_t num_rows = kernels.tile_rows + 1;  // a full register tile and one row more
  std::string failure = RunCase(kernels, "ordinary values", MakeCase(num_rows, Values::kOrdinary));
  if (failure.empty()) {
    failure = RunCase(kernels, "whole range", MakeCase(num_rows, Values::kWholeRange));
  }
  if (failure.empty()) failure = RunFp8Case(kernels, num_rows);
  if (failure.empty() && !FlushesBeforeRounding()) {
    failure = RunCase(kernels, "smallest normal number", MakeBoundaryCase(num_rows));
  }
  return failure;
}

}  // namespace moebius
