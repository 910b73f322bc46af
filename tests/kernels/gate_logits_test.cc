// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/gate_logits.h"

#include <vector>

#include "moebius/kernels/math.h"
#include "moebius/kernels/reference/block_sum.h"
#include "moebius/kernels/row_ops.h"
#include "tests/kernels/kernel_data.h"

namespace moebius {
namespace {

using testing::FillNormal;
using testing::FillWholeRange;
using testing::FloatBits;
using testing::GuardedRows;

constexpr int64_t kHidden = 83;
constexpr int64_t kExperts = 37;
constexpr int64_t kRows = 145;

class GateLogitsTest : public testing::TierTest {
 protected:
  template <class Weight>
  void ExpectStatement(const GuardedRows<Bf16>& rows, const GuardedRows<Weight>& weights,
                       const GateMatrix& matrix) {
    std::vector<std::vector<FloatBits>> expected;
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      expected.emplace_back();
      for (int64_t e = 0; e < weights.num_rows; ++e) {
        expected.back().emplace_back(
            reference::BlockSum(rows.rows().span(r), weights.rows().span(e), 0.0f));
      }
    }
    for (const int num_threads : {1, 3}) {
      Executor executor(num_threads);
      for (const int64_t count : {int64_t{0}, int64_t{1}, rows.num_rows - 1, rows.num_rows}) {
        GuardedRows<float> logits(count, weights.num_rows);
        executor.Run([&] {
          GateLogits(executor, kernels(), rows.rows().Slice(0, count), matrix, logits.rows());
        });
        for (int64_t r = 0; r < count; ++r) {
          ASSERT_EQ(testing::BitsOf(logits.rows(), r), expected[static_cast<size_t>(r)])
              << "row " << r << " of " << count << ", " << num_threads << " threads";
        }
        ASSERT_TRUE(logits.GuardsIntact());
      }
    }
  }
};

TEST_P(GateLogitsTest, TakesFp32WeightsWithoutRoundingThem) {
  GuardedRows<Bf16> rows(kRows, kHidden);
  GuardedRows<float> weights(kExperts, kHidden);
  FillNormal(rows.rows(), 1);
  FillNormal(weights.rows(), 2);
  ExpectStatement(rows, weights, GateMatrix::Pack(weights.rows()));
}

TEST_P(GateLogitsTest, SplitsWideGatesOverThreads) {
  GuardedRows<Bf16> rows(3, 1500);
  GuardedRows<float> weights(260, 1500);
  FillNormal(rows.rows(), 3);
  FillNormal(weights.rows(), 4);
  ExpectStatement(rows, weights, GateMatrix::Pack(weights.rows()));
}

TEST_P(GateLogitsTest, IsExactForFp32WeightsOverTheWholeRange) {
  GuardedRows<Bf16> rows(8, kHidden);
  GuardedRows<float> weights(kExperts, kHidden);
  FillWholeRange(rows.rows(), 5);
  Random random(6);
  for (int64_t e = 0; e < kExperts; ++e) {
    for (float& value : weights.rows().span(e)) {
      do {
        value = std::bit_cast<float>(static_cast<uint32_t>(random.Bits()));
      } while (value != value);
    }
  }
  ExpectStatement(rows, weights, GateMatrix::Pack(weights.rows()));
}

TEST_P(GateLogitsTest, TakesBf16Weights) {
  GuardedRows<Bf16> rows(kRows, kHidden);
  GuardedRows<Bf16> weights(kExperts, kHidden);
  FillNormal(rows.rows(), 7);
  FillNormal(weights.rows(), 8);
  ExpectStatement(rows, weights, GateMatrix::Pack(weights.rows(), kernels().pair_order));
}

TEST_P(GateLogitsTest, CountsItsCalls) {
  GuardedRows<Bf16> rows(1, kHidden);
  GuardedRows<float> weights(2, kHidden);
  FillNormal(rows.rows(), 1);
  FillNormal(weights.rows(), 2);
  const uint64_t before = kernels().Executed();
  ExpectStatement(rows, weights, GateMatrix::Pack(weights.rows()));
  EXPECT_GT(kernels().Executed(), before);
}

TEST_P(GateLogitsTest, AccumulatesScaledRowsWithOneRounding) {
  for (const int64_t size : {1, 3, 8, 16, 17, 31, 192}) {
    std::vector<Bf16> values(static_cast<size_t>(size));
    std::vector<float> sum(static_cast<size_t>(size));
    std::vector<FloatBits> expected;
    Random random(static_cast<uint64_t>(size));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = ToBf16(random.Normal());
      sum[i] = random.Normal();
      expected.emplace_back(FusedMultiplyAdd(0.3f, ToFloat(values[i]), sum[i]));
    }
    AccumulateScaled(kernels(), 0.3f, values, absl::MakeSpan(sum));
    EXPECT_EQ(testing::BitsOf(FloatRows(sum.data(), 1, size), 0), expected) << size;
  }
}

MOEBIUS_INSTANTIATE_TIERS(GateLogitsTest);

}  // namespace
}  // namespace moebius
