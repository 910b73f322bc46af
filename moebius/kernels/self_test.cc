// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/self_test.h"

#include <bit>
#include <cstdint>
#include <sstream>
#include <vector>

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

std::string RunCase(const Kernels& kernels, const char* name, const Case& test) {
  const PackedMatrix matrix =
      PackedMatrix::Pack(Bf16Rows(test.weights.data(), kNumOutputs, kDepth), kernels.pair_order);
  std::vector<const Bf16*> rows;
  for (int64_t r = 0; r < test.num_rows; ++r) rows.push_back(test.rows.data() + r * kDepth);
  std::vector<float> out(static_cast<size_t>(test.num_rows * kNumOutputs));
  PanelProduct product;
  product.matrix = &matrix;
  product.panel_end = matrix.num_panels();
  product.out = out.data();
  product.out_stride = kNumOutputs;
  RunPanels(kernels, rows, product);
  for (int64_t r = 0; r < test.num_rows; ++r) {
    for (int64_t n = 0; n < kNumOutputs; ++n) {
      const float expected =
          reference::BlockSum(absl::MakeConstSpan(rows[static_cast<size_t>(r)], kDepth),
                              absl::MakeConstSpan(test.weights.data() + n * kDepth, kDepth), 0.0f);
      const float actual = out[static_cast<size_t>(r * kNumOutputs + n)];
      if (SameValue(actual, expected)) continue;
      std::ostringstream text;
      text << name << ", row " << r << ", column " << n << ": " << std::hexfloat << actual
           << " instead of " << expected;
      return text.str();
    }
  }
  return "";
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
  if (failure.empty() && !FlushesBeforeRounding()) {
    failure = RunCase(kernels, "smallest normal number", MakeBoundaryCase(num_rows));
  }
  return failure;
}

}  // namespace moebius
