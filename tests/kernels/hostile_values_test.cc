// SPDX-License-Identifier: Apache-2.0
// Block sums of values that a kernel is likely to get wrong, bit by bit against the scalar
// statement: denormals, signed zeros, both ends of the range, infinities, NaNs, sums that cancel.
#include <cmath>
#include <iterator>
#include <vector>

#include "moebius/kernels/block_gemm.h"
#include "moebius/kernels/reference/block_sum.h"
#include "moebius/kernels/self_test.h"
#include "tests/kernels/kernel_data.h"

namespace moebius {
namespace {

using testing::BitsOf;
using testing::FloatBits;
using testing::GuardedRows;

constexpr uint16_t kHostileFinite[] = {
    0x0000, 0x8000,          // zeros
    0x0001, 0x8001, 0x007F,  // denormals
    0x0080, 0x8080,          // the smallest normal numbers
    0x1F80, 0x9F81, 0x2000,  // factors whose products lie around 2^-126
    0x3F80, 0xBF80, 0x3F81,  // ±1, 1 + 2^-7
    0x5F00, 0xDF01, 0x5F80,  // factors whose products lie around 2^127
    0x7F7F, 0xFF7F,          // the largest numbers
};
constexpr uint16_t kNotFinite[] = {0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81};

class HostileValuesTest : public testing::TierTest {
 protected:
  // Every element of rows · weights.
  void ExpectScalarBits(Bf16Rows rows, Bf16Rows weights) {
    const PackedMatrix matrix = PackedMatrix::Pack(weights, kernels().pair_order);
    GuardedRows<float> out(rows.num_rows, weights.num_rows);
    MatMul(kernels(), rows, matrix, out.rows());
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      std::vector<FloatBits> expected;
      for (int64_t n = 0; n < weights.num_rows; ++n) {
        expected.emplace_back(reference::BlockSum(rows.span(r), weights.span(n), 0.0f));
      }
      ASSERT_EQ(BitsOf(out.rows(), r), expected) << "row " << r;
    }
    EXPECT_TRUE(out.GuardsIntact());
  }
};

// Odd depths, numbers of rows on both sides of every tile.
TEST_P(HostileValuesTest, FiniteOnesInAnyMixture) {
  if (FlushesBeforeRounding()) {
    MOEBIUS_SKIP("this machine is emulated and flushes before rounding");
  }
  uint64_t seed = 1;
  for (const int64_t depth : {1, 2, 31, 33, 97}) {
    for (const int64_t num_rows : {1, 6, 16, 17, 33}) {
      SCOPED_TRACE(seed);
      Random random(seed++);
      GuardedRows<Bf16> rows(num_rows, depth);
      GuardedRows<Bf16> weights(45, depth);
      for (const Rows<Bf16>& target : {rows.rows(), weights.rows()}) {
        for (int64_t r = 0; r < target.num_rows; ++r) {
          for (Bf16& value : target.span(r)) {
            value.bits = kHostileFinite[random.Below(std::size(kHostileFinite))];
          }
        }
      }
      ExpectScalarBits(rows.rows(), weights.rows());
    }
  }
}

TEST_P(HostileValuesTest, InfinitiesAndNansAmongThem) {
  for (uint64_t seed = 100; seed < 104; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    GuardedRows<Bf16> rows(33, 67);
    GuardedRows<Bf16> weights(45, 67);
    for (const Rows<Bf16>& target : {rows.rows(), weights.rows()}) {
      for (int64_t r = 0; r < target.num_rows; ++r) {
        for (Bf16& value : target.span(r)) value = ToBf16(random.Normal());
        // In every third row, so that ordinary sums stand beside.
        if (r % 3 != 0) continue;
        target.span(r)[random.Below(67)].bits = kNotFinite[random.Below(std::size(kNotFinite))];
        target.span(r)[random.Below(67)].bits = kNotFinite[random.Below(std::size(kNotFinite))];
      }
    }
    ExpectScalarBits(rows.rows(), weights.rows());
  }
}

TEST_P(HostileValuesTest, SumsThatCancel) {
  for (uint64_t seed = 200; seed < 204; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    GuardedRows<Bf16> rows(33, 128);
    GuardedRows<Bf16> weights(64, 128);
    // Of every four, the third is nearly the first's negative and the fourth the second's: inside a
    // chain, and from 2^-20 to 2^20.
    for (const Rows<Bf16>& target : {rows.rows(), weights.rows()}) {
      for (int64_t r = 0; r < target.num_rows; ++r) {
        for (int64_t k = 0; k < 128; ++k) {
          const float scale = std::ldexp(1.0f, static_cast<int>(random.Below(41)) - 20);
          target.row(r)[k] = ToBf16(random.Normal() * scale);
          if (k % 4 < 2) continue;
          target.row(r)[k] = target.row(r)[k - 2];
          if (target.num_rows == 33) target.row(r)[k].bits ^= 0x8000;
          if (random.Below(2) == 0) target.row(r)[k].bits ^= 1;
        }
      }
    }
    ExpectScalarBits(rows.rows(), weights.rows());
  }
}

TEST_P(HostileValuesTest, EveryPairOfExponents) {
  if (FlushesBeforeRounding()) {
    MOEBIUS_SKIP("this machine is emulated and flushes before rounding");
  }
  Random random(300);
  // One product, and one that is added to another of the same chain.
  for (const int64_t depth : {1, 3}) {
    GuardedRows<Bf16> rows(256, depth);
    GuardedRows<Bf16> weights(256, depth);
    for (const Rows<Bf16>& target : {rows.rows(), weights.rows()}) {
      for (int64_t r = 0; r < 256; ++r) {
        for (Bf16& value : target.span(r)) {
          value.bits = static_cast<uint16_t>((random.Bits() & 0x807F) | (r << 7));
        }
      }
    }
    ExpectScalarBits(rows.rows(), weights.rows());
  }
}

MOEBIUS_INSTANTIATE_TIERS(HostileValuesTest);

}  // namespace
}  // namespace moebius
