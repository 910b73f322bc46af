// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "moebius/kernels/kernels.h"
#include "moebius/tensor/bf16.h"
#include "moebius/tensor/rows.h"
#include "tests/kernels/emulated_tiers.h"
#include "tests/support/skip.h"

/// Data and comparisons of the kernel tests. Every test prints its seed with SCOPED_TRACE.
namespace moebius::testing {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Owned rows with a stride wider than the width: the gap is NaN, as is a guard row behind.
template <class T>
struct GuardedRows {
  GuardedRows(int64_t num_rows, int64_t width)
      : num_rows(num_rows), width(width), stride(width + 5) {
    values.assign(static_cast<size_t>((num_rows + 1) * stride), Nan());
  }
  static T Nan() {
    if constexpr (std::is_same_v<T, Bf16>) {
      return ToBf16(kNan);
    } else {
      return kNan;
    }
  }
  Rows<T> rows() { return Rows<T>(values.data(), num_rows, width, stride); }
  Rows<const T> rows() const { return Rows<const T>(values.data(), num_rows, width, stride); }
  /// True when nobody wrote outside the rows.
  bool GuardsIntact() const {
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / stride;
      const int64_t column = static_cast<int64_t>(i) % stride;
      if (row < num_rows && column < width) continue;
      if (values[i] == values[i] && !(std::is_same_v<T, Bf16> && values[i] == Nan())) return false;
    }
    return true;
  }

  int64_t num_rows;
  int64_t width;
  int64_t stride;
  std::vector<T> values;
};

/// Ordinary data: approximately normal.
template <class T>
void FillNormal(Rows<T> rows, uint64_t seed, float scale = 1.0f) {
  Random random(seed);
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    for (T& value : rows.span(r)) {
      if constexpr (std::is_same_v<T, Bf16>) {
        value = ToBf16(random.Normal() * scale);
      } else {
        value = random.Normal() * scale;
      }
    }
  }
}

/// Finite bf16 values over the whole range, half of them near exponents whose products leave the
/// range of fp32 or fall below its smallest normal number; denormals included.
inline void FillWholeRange(Rows<Bf16> rows, uint64_t seed) {
  Random random(seed);
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    for (Bf16& value : rows.span(r)) {
      const uint32_t bits = static_cast<uint32_t>(random.Bits());
      const uint32_t near_edges[] = {0, 1, 62, 63, 64, 65, 66, 127, 190, 191};
      const uint32_t exponent = (bits & 0x10000) != 0 ? near_edges[random.Below(10)]
                                                      : static_cast<uint32_t>(random.Below(255));
      value = Bf16{static_cast<uint16_t>((bits & 0x807F) | (exponent << 7))};
    }
  }
}

/// An fp32 compared bit by bit; all NaNs are equal (which NaN is not promised).
struct FloatBits {
  uint32_t bits = 0;
  explicit FloatBits(float value)
      : bits(value != value ? 0x7FC00000 : std::bit_cast<uint32_t>(value)) {}
  friend bool operator==(FloatBits, FloatBits) = default;
  friend void PrintTo(FloatBits value, std::ostream* out) {
    *out << std::hexfloat << std::bit_cast<float>(value.bits);
  }
};

inline std::vector<FloatBits> BitsOf(FloatRows rows, int64_t row) {
  std::vector<FloatBits> bits;
  for (const float value : rows.span(row)) bits.emplace_back(value);
  return bits;
}
inline std::vector<FloatBits> BitsOf(Bf16Rows rows, int64_t row) {
  std::vector<FloatBits> bits;
  for (const Bf16 value : rows.span(row)) bits.emplace_back(ToFloat(value));
  return bits;
}

/// Kernels under test: a tier of this host, or one of the emulated tiers.
struct TestedKernels {
  const char* name;
  Tier tier;
  const Kernels& (*emulated)() = nullptr;  // null: the host's
};

/// Tests that run once for every tier, with `kernels()`; a tier that the host lacks is a skip.
class TierTest : public ::testing::TestWithParam<TestedKernels> {
 protected:
  void SetUp() override {
    if (GetParam().emulated != nullptr) {
      kernels_ = &GetParam().emulated();
      return;
    }
    const TierReport& report = TierReports()[static_cast<size_t>(GetParam().tier)];
    if (!report.usable) {
      MOEBIUS_SKIP("tier " + std::string(TierName(report.tier)) +
                   " cannot run on this host: " + report.reason);
    }
    kernels_ = FindKernels(GetParam().tier);
    ASSERT_NE(kernels_, nullptr);
  }
  const Kernels& kernels() const { return *kernels_; }

 private:
  const Kernels* kernels_ = nullptr;
};

inline std::string TierTestName(const ::testing::TestParamInfo<TestedKernels>& info) {
  return info.param.name;
}

#define MOEBIUS_INSTANTIATE_TIERS(suite)                                              \
  INSTANTIATE_TEST_SUITE_P(                                                           \
      Tiers, suite,                                                                   \
      ::testing::Values(                                                              \
          ::moebius::testing::TestedKernels{"portable", Tier::kPortable},             \
          ::moebius::testing::TestedKernels{"avx2", Tier::kAvx2},                     \
          ::moebius::testing::TestedKernels{"avx512", Tier::kAvx512},                 \
          ::moebius::testing::TestedKernels{"avx512bf16", Tier::kAvx512Bf16},         \
          ::moebius::testing::TestedKernels{"amx", Tier::kAmx},                       \
          ::moebius::testing::TestedKernels{"emulated_avx512", Tier::kAvx512,         \
                                            ::moebius::testing::EmulatedAvx512},      \
          ::moebius::testing::TestedKernels{"emulated_avx512bf16", Tier::kAvx512Bf16, \
                                            ::moebius::testing::EmulatedAvx512Bf16},  \
          ::moebius::testing::TestedKernels{"emulated_amx", Tier::kAmx,               \
                                            ::moebius::testing::EmulatedAmx}),        \
      ::moebius::testing::TierTestName)

}  // namespace moebius::testing
