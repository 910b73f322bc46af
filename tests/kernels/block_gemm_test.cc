// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/block_gemm.h"

#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "moebius/kernels/reference/block_sum.h"
#include "moebius/kernels/self_test.h"
#include "tests/kernels/kernel_data.h"

namespace moebius {
namespace {

using testing::BitsOf;
using testing::FillNormal;
using testing::FillWholeRange;
using testing::FloatBits;
using testing::GuardedRows;
using testing::kInfinity;
using testing::kNan;

constexpr uint64_t kSeed = 3;
constexpr int64_t kMaxRows = 512;
constexpr int64_t kDepth = 97;    // odd: three blocks and a single element
constexpr int64_t kOutputs = 70;  // two panels and six columns

std::vector<int64_t> RowCounts() {
  std::vector<int64_t> counts(50);
  std::iota(counts.begin(), counts.end(), 0);
  for (const int64_t count : {96, 97, 143, 144, 145, 512}) counts.push_back(count);
  return counts;
}

std::vector<FloatBits> ExpectedRow(Bf16Rows rows, int64_t row, Bf16Rows weights, float c = 0) {
  std::vector<FloatBits> expected;
  for (int64_t n = 0; n < weights.num_rows; ++n) {
    expected.emplace_back(reference::BlockSum(rows.span(row), weights.span(n), c));
  }
  return expected;
}

/// Rows, weights and every output by the scalar statement; made once.
struct Fixture {
  Fixture() : rows(kMaxRows, kDepth), weights(kOutputs, kDepth) {
    FillNormal(rows.rows(), kSeed);
    FillNormal(weights.rows(), kSeed + 1, 0.1f);
    for (int64_t r = 0; r < kMaxRows; ++r) {
      expected.push_back(ExpectedRow(rows.rows(), r, weights.rows()));
    }
  }
  static const Fixture& Shared() {
    static const Fixture fixture;
    return fixture;
  }
  GuardedRows<Bf16> rows;
  GuardedRows<Bf16> weights;
  std::vector<std::vector<FloatBits>> expected;
};

class BlockGemmTest : public testing::TierTest {};

TEST_P(BlockGemmTest, GivesTheScalarStatementsBitsForAnyNumberOfRows) {
  SCOPED_TRACE(kSeed);
  const Fixture& fixture = Fixture::Shared();
  const PackedMatrix matrix = PackedMatrix::Pack(fixture.weights.rows(), kernels().pair_order);
  for (const int64_t count : RowCounts()) {
    // The last rows rather than the first: a row's bits depend on its place no more than on others.
    const int64_t first = kMaxRows - count;
    GuardedRows<float> out(count, kOutputs);
    MatMul(kernels(), fixture.rows.rows().Slice(first, kMaxRows), matrix, out.rows());
    for (int64_t r = 0; r < count; ++r) {
      ASSERT_EQ(BitsOf(out.rows(), r), fixture.expected[static_cast<size_t>(first + r)])
          << "row " << r << " of " << count;
    }
    ASSERT_TRUE(out.GuardsIntact()) << count << " rows";
  }
}

TEST_P(BlockGemmTest, RescalesWhatIsThereByTheRowsScale) {
  const Fixture& fixture = Fixture::Shared();
  const PackedMatrix matrix = PackedMatrix::Pack(fixture.weights.rows(), kernels().pair_order);
  constexpr int64_t kBlocks = (kDepth + kBlockDepth - 1) / kBlockDepth;
  for (int64_t count = 1; count <= 64; ++count) {
    std::vector<const uint16_t*> pointers;
    for (int64_t r = 0; r < count; ++r) {
      pointers.push_back(reinterpret_cast<const uint16_t*>(fixture.rows.rows().row(r)));
    }
    Array<uint8_t> prepared(static_cast<size_t>(kBlocks * count) * kernels().prepared_block_bytes);
    kernels().prepare_rows(
        {.rows = pointers.data(), .num_rows = count, .depth = kDepth, .prepared = prepared.data()});
    GuardedRows<float> out(count, kOutputs);
    FillNormal(out.rows(), kSeed + 4);
    std::vector<float> scales;
    bool takes[64];
    std::vector<std::vector<FloatBits>> expected;
    for (int64_t r = 0; r < count; ++r) {
      scales.push_back(static_cast<float>(r) / 7.0f);
      takes[r] = r % 5 != 1;
      std::vector<FloatBits>& row = expected.emplace_back(BitsOf(out.rows(), r));
      for (size_t n = 0; takes[r] && n < row.size(); ++n) {
        const float sum = reference::BlockSum(
            fixture.rows.rows().span(r), fixture.weights.rows().span(static_cast<int64_t>(n)), 0);
        row[n] = FloatBits(std::fma(out.rows().row(r)[n], scales.back(), sum));
      }
    }
    kernels().block_sum({.prepared_rows = prepared.data(),
                         .num_rows = count,
                         .num_blocks = kBlocks,
                         .panels = matrix.panel(0),
                         .num_panels = (kOutputs + kPanelColumns - 1) / kPanelColumns,
                         .num_columns = kOutputs,
                         .epilogue = Epilogue::kRescale,
                         .row_scales = scales.data(),
                         .row_takes = takes,
                         .out = out.rows().data,
                         .out_stride = out.stride});
    for (int64_t r = 0; r < count; ++r) {
      ASSERT_EQ(BitsOf(out.rows(), r), expected[static_cast<size_t>(r)])
          << "row " << r << " of " << count;
    }
    ASSERT_TRUE(out.GuardsIntact()) << count << " rows";
  }
}

TEST_P(BlockGemmTest, GivesTheSameBitsForAnyNumberOfThreads) {
  SCOPED_TRACE(kSeed);
  const Fixture& fixture = Fixture::Shared();
  const PackedMatrix matrix = PackedMatrix::Pack(fixture.weights.rows(), kernels().pair_order);
  for (const int num_threads : {1, 2, 3}) {
    Executor executor(num_threads);
    for (const int64_t count : {1, 145, 512}) {
      GuardedRows<float> out(count, kOutputs);
      executor.Run([&] {
        ParallelMatMul(executor, kernels(), fixture.rows.rows().Slice(0, count), matrix,
                       out.rows());
      });
      for (int64_t r = 0; r < count; ++r) {
        ASSERT_EQ(BitsOf(out.rows(), r), fixture.expected[static_cast<size_t>(r)])
            << "row " << r << " of " << count << ", " << num_threads << " threads";
      }
    }
  }
}

TEST_P(BlockGemmTest, SplitsAWideMatrixOverThreadsForOneRow) {
  constexpr int64_t kWideOutputs = 1201;
  constexpr int64_t kWideDepth = 1000;
  GuardedRows<Bf16> rows(1, kWideDepth);
  GuardedRows<Bf16> weights(kWideOutputs, kWideDepth);
  FillNormal(rows.rows(), kSeed + 2);
  FillNormal(weights.rows(), kSeed + 3);
  ASSERT_GE(kWideOutputs * kWideDepth, kParallelThreshold);
  const PackedMatrix matrix = PackedMatrix::Pack(weights.rows(), kernels().pair_order);
  const std::vector<FloatBits> expected = ExpectedRow(rows.rows(), 0, weights.rows());
  Executor executor(3);
  GuardedRows<float> out(1, kWideOutputs);
  const uint64_t executed = kernels().Executed();
  executor.Run([&] { ParallelMatMul(executor, kernels(), rows.rows(), matrix, out.rows()); });
  EXPECT_EQ(BitsOf(out.rows(), 0), expected);
  EXPECT_GT(kernels().Executed(), executed + 1) << "one task only";
  EXPECT_TRUE(out.GuardsIntact());
}

TEST_P(BlockGemmTest, IsExactWhereProductsOverflowOrVanish) {
  constexpr int64_t kRows = 13;
  for (uint64_t seed = 10; seed < 16; ++seed) {
    SCOPED_TRACE(seed);
    GuardedRows<Bf16> rows(kRows, kDepth);
    GuardedRows<Bf16> weights(kOutputs, kDepth);
    FillWholeRange(rows.rows(), seed);
    FillWholeRange(weights.rows(), seed + 100);
    const PackedMatrix matrix = PackedMatrix::Pack(weights.rows(), kernels().pair_order);
    GuardedRows<float> out(kRows, kOutputs);
    MatMul(kernels(), rows.rows(), matrix, out.rows());
    for (int64_t r = 0; r < kRows; ++r) {
      ASSERT_EQ(BitsOf(out.rows(), r), ExpectedRow(rows.rows(), r, weights.rows())) << "row " << r;
    }
  }
}

TEST_P(BlockGemmTest, IsExactBelowTheSmallestNormalNumber) {
  // Factors near 2^-63: products on both sides of 2^-126, sums of them flushed or not.
  for (uint64_t seed = 20; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    GuardedRows<Bf16> rows(7, 64);
    GuardedRows<Bf16> weights(33, 64);
    for (const Rows<Bf16>& target : {rows.rows(), weights.rows()}) {
      for (int64_t r = 0; r < target.num_rows; ++r) {
        for (Bf16& value : target.span(r)) {
          const uint32_t exponent = 127 - 64 + static_cast<uint32_t>(random.Below(3));
          value.bits = static_cast<uint16_t>((random.Bits() & 0x807F) | (exponent << 7));
        }
      }
    }
    const PackedMatrix matrix = PackedMatrix::Pack(weights.rows(), kernels().pair_order);
    GuardedRows<float> out(7, 33);
    MatMul(kernels(), rows.rows(), matrix, out.rows());
    for (int64_t r = 0; r < 7; ++r) {
      ASSERT_EQ(BitsOf(out.rows(), r), ExpectedRow(rows.rows(), r, weights.rows())) << "row " << r;
    }
  }
}

TEST_P(BlockGemmTest, FlushesAfterRoundingAtTheSmallestNormalNumber) {
  if (FlushesBeforeRounding()) {
    MOEBIUS_SKIP("this machine is emulated and flushes before rounding");
  }
  // 2^-126 - 2^-152 rounds to 2^-126 and stays; 2^-126 - 2^-149 does not round up and is flushed.
  GuardedRows<Bf16> rows(1, 3);
  GuardedRows<Bf16> weights(2, 3);
  for (int64_t n = 0; n < 2; ++n) {
    for (Bf16& value : weights.rows().span(n)) value = Bf16{};
    weights.rows().row(n)[0] = ToBf16(0x1p-63f);
  }
  for (Bf16& value : rows.rows().span(0)) value = ToBf16(0x1p-63f);
  weights.rows().row(0)[2] = ToBf16(-0x1p-89f);
  weights.rows().row(1)[2] = ToBf16(-0x1p-86f);
  const PackedMatrix matrix = PackedMatrix::Pack(weights.rows(), kernels().pair_order);
  GuardedRows<float> out(1, 2);
  MatMul(kernels(), rows.rows(), matrix, out.rows());
  EXPECT_EQ(out.rows().row(0)[0], 0x1p-126f);
  EXPECT_EQ(out.rows().row(0)[1], 0.0f);
}

TEST_P(BlockGemmTest, KeepsInfinitiesAndNansInTheirRowAndColumn) {
  GuardedRows<Bf16> rows(9, kDepth);
  GuardedRows<Bf16> weights(kOutputs, kDepth);
  FillNormal(rows.rows(), kSeed);
  FillNormal(weights.rows(), kSeed + 1);
  rows.rows().row(2)[5] = ToBf16(kNan);
  rows.rows().row(4)[7] = ToBf16(kInfinity);
  rows.rows().row(6)[0] = ToBf16(kInfinity);
  rows.rows().row(6)[2] = ToBf16(-kInfinity);
  weights.rows().row(33)[7] = Bf16{};  // infinity · 0
  weights.rows().row(69)[96] = ToBf16(-kInfinity);
  rows.rows().row(8)[96] = Bf16{};  // 0 · infinity
  const PackedMatrix matrix = PackedMatrix::Pack(weights.rows(), kernels().pair_order);
  GuardedRows<float> out(9, kOutputs);
  MatMul(kernels(), rows.rows(), matrix, out.rows());
  for (int64_t r = 0; r < 9; ++r) {
    ASSERT_EQ(BitsOf(out.rows(), r), ExpectedRow(rows.rows(), r, weights.rows())) << "row " << r;
  }
  EXPECT_TRUE(std::isnan(out.rows().row(4)[33]));
  EXPECT_TRUE(std::isnan(out.rows().row(8)[69]));
  EXPECT_FALSE(std::isnan(out.rows().row(7)[33]));
}

TEST_P(BlockGemmTest, IgnoresWhatFormerCallsLeftInMemory) {
  const Fixture& fixture = Fixture::Shared();
  const PackedMatrix matrix = PackedMatrix::Pack(fixture.weights.rows(), kernels().pair_order);
  // Fills this thread's scratch with NaN, with more rows and more depth than follow.
  GuardedRows<Bf16> nan_rows(96, 4 * kDepth);
  GuardedRows<Bf16> nan_weights(40, 4 * kDepth);
  for (Bf16& value : nan_rows.values) value = ToBf16(kNan);
  for (Bf16& value : nan_weights.values) value = ToBf16(kNan);
  GuardedRows<float> nan_out(96, 40);
  MatMul(kernels(), nan_rows.rows(), PackedMatrix::Pack(nan_weights.rows(), kernels().pair_order),
         nan_out.rows());
  GuardedRows<float> out(5, kOutputs);
  MatMul(kernels(), fixture.rows.rows().Slice(0, 5), matrix, out.rows());
  for (int64_t r = 0; r < 5; ++r) {
    ASSERT_EQ(BitsOf(out.rows(), r), fixture.expected[static_cast<size_t>(r)]);
  }
}

TEST_P(BlockGemmTest, WritesOnlyTheAskedPanels) {
  const Fixture& fixture = Fixture::Shared();
  const PackedMatrix matrix = PackedMatrix::Pack(fixture.weights.rows(), kernels().pair_order);
  GuardedRows<float> out(3, kOutputs);
  for (int64_t r = 0; r < 3; ++r) {
    for (float& value : out.rows().span(r)) value = -7.0f;
  }
  MatMul(kernels(), fixture.rows.rows().Slice(0, 3), matrix, 1, 2, out.rows());
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t n = 0; n < kOutputs; ++n) {
      const FloatBits expected =
          n >= 32 && n < 64 ? fixture.expected[static_cast<size_t>(r)][static_cast<size_t>(n)]
                            : FloatBits(-7.0f);
      ASSERT_EQ(FloatBits(out.rows().row(r)[n]), expected) << r << ", " << n;
    }
  }
}

TEST_P(BlockGemmTest, AddsTheBiasInFp32AndRoundsOnce) {
  const Fixture& fixture = Fixture::Shared();
  const PackedMatrix matrix = PackedMatrix::Pack(fixture.weights.rows(), kernels().pair_order);
  std::vector<float> bias(kOutputs);
  Random random(kSeed);
  for (float& value : bias) value = random.Normal();
  for (const bool has_bias : {false, true}) {
    GuardedRows<Bf16> out(8, kOutputs);
    MatMulBf16(kernels(), fixture.rows.rows().Slice(0, 8), matrix,
               has_bias ? absl::MakeConstSpan(bias) : absl::Span<const float>(), out.rows());
    for (int64_t r = 0; r < 8; ++r) {
      for (int64_t n = 0; n < kOutputs; ++n) {
        const float sum =
            reference::BlockSum(fixture.rows.rows().span(r), fixture.weights.rows().span(n), 0.0f);
        const Bf16 expected = ToBf16(has_bias ? sum + bias[static_cast<size_t>(n)] : sum);
        ASSERT_EQ(out.rows().row(r)[n], expected) << r << ", " << n;
      }
    }
    EXPECT_TRUE(out.GuardsIntact());
  }
}

TEST_P(BlockGemmTest, AccumulatesOntoWhatIsThere) {
  const Fixture& fixture = Fixture::Shared();
  const PackedMatrix matrix = PackedMatrix::Pack(fixture.weights.rows(), kernels().pair_order);
  for (const int64_t count : {1, 17, 33}) {
    Array<std::byte> prepared(static_cast<size_t>(count * matrix.num_blocks()) *
                              kernels().prepared_block_bytes);
    std::vector<const uint16_t*> rows;
    GuardedRows<float> out(count, kOutputs);
    for (int64_t r = 0; r < count; ++r) {
      rows.push_back(reinterpret_cast<const uint16_t*>(fixture.rows.rows().row(r)));
      for (float& sum : out.rows().span(r)) sum = 0.75f + static_cast<float>(r);
    }
    kernels().prepare_rows(PrepareRowsCall{
        .rows = rows.data(), .num_rows = count, .depth = kDepth, .prepared = prepared.data()});
    kernels().block_sum(BlockSumCall{.prepared_rows = prepared.data(),
                                     .num_rows = count,
                                     .num_blocks = matrix.num_blocks(),
                                     .panels = matrix.panel(0),
                                     .num_panels = matrix.num_panels(),
                                     .num_columns = kOutputs,
                                     .epilogue = Epilogue::kAccumulate,
                                     .out = out.rows().data,
                                     .out_stride = out.stride});
    for (int64_t r = 0; r < count; ++r) {
      ASSERT_EQ(BitsOf(out.rows(), r), ExpectedRow(fixture.rows.rows(), r, fixture.weights.rows(),
                                                   0.75f + static_cast<float>(r)))
          << "row " << r << " of " << count;
    }
    EXPECT_TRUE(out.GuardsIntact());
  }
}

TEST_P(BlockGemmTest, CountsInTheKernelThatRan) {
  const Fixture& fixture = Fixture::Shared();
  const PackedMatrix matrix = PackedMatrix::Pack(fixture.weights.rows(), kernels().pair_order);
  std::vector<uint64_t> before;
  for (const Tier tier : HostTiers()) before.push_back(FindKernels(tier)->Executed());
  const uint64_t own = kernels().Executed();
  GuardedRows<float> out(2, kOutputs);
  MatMul(kernels(), fixture.rows.rows().Slice(0, 2), matrix, out.rows());
  EXPECT_EQ(kernels().Executed() - own, 1u);
  for (size_t i = 0; i < before.size(); ++i) {
    const Kernels& other = *FindKernels(HostTiers()[i]);
    EXPECT_EQ(other.Executed() - before[i], &other == &kernels() ? 1u : 0u) << TierName(other.tier);
  }
}

TEST_P(BlockGemmTest, MakesEveryNanOfALogitTheSameNan) {
  GuardedRows<Bf16> rows(2, 32);
  GuardedRows<Bf16> weights(3, 32);
  FillNormal(rows.rows(), kSeed);
  FillNormal(weights.rows(), kSeed);
  weights.rows().row(1)[4] = Bf16{0xFFC1};
  const PackedMatrix head = PackedMatrix::Pack(weights.rows(), kernels().pair_order);
  GuardedRows<float> out(2, 3);
  Executor executor(1);
  executor.Run([&] { ParallelLogits(executor, kernels(), rows.rows(), head, out.rows()); });
  EXPECT_EQ(std::bit_cast<uint32_t>(out.rows().row(0)[1]), 0x7FC00000u);
  EXPECT_EQ(FloatBits(out.rows().row(1)[2]),
            FloatBits(reference::BlockSum(rows.rows().span(1), weights.rows().span(2), 0.0f)));
}

MOEBIUS_INSTANTIATE_TIERS(BlockGemmTest);

TEST(BlockSumTest, AddsTwoChainsPerBlock) {
  // 2^24 + 1 is lost in one chain; the other chain's 1s meet before they meet 2^24.
  std::vector<Bf16> ones(8, ToBf16(1.0f));
  std::vector<Bf16> weights(8, Bf16{});
  weights[0] = ToBf16(0x1p24f);
  weights[1] = ToBf16(1.0f);
  weights[2] = ToBf16(1.0f);  // even chain: 2^24 + 1 rounds to 2^24
  weights[3] = ToBf16(1.0f);  // odd chain: 1 + 1
  EXPECT_EQ(reference::BlockSum(ones, weights, 0.0f), 0x1p24f + 2.0f);
  // Across blocks: 2^24, then 1, then 1, each rounded away.
  ones.assign(96, ToBf16(1.0f));
  weights.assign(96, Bf16{});
  weights[0] = ToBf16(0x1p24f);
  weights[32] = weights[64] = ToBf16(1.0f);
  EXPECT_EQ(reference::BlockSum(ones, weights, 0.0f), 0x1p24f);
}

TEST(PackedMatrixTest, PadsWithPositiveZeroAndKeepsEveryWeightOnce) {
  for (const PairOrder order : {PairOrder::kAdjacent, PairOrder::kWithinChain}) {
    GuardedRows<Bf16> weights(33, 35);
    uint16_t next = 1;
    for (int64_t n = 0; n < 33; ++n) {
      for (Bf16& value : weights.rows().span(n)) value.bits = next++;
    }
    const PackedMatrix matrix = PackedMatrix::Pack(weights.rows(), order);
    ASSERT_EQ(matrix.num_panels(), 2);
    ASSERT_EQ(matrix.num_blocks(), 2);
    EXPECT_EQ(matrix.bytes(), 2u * 2 * kPanelBlockSize * 2);
    int64_t num_nonzero = 0;
    for (int64_t p = 0; p < 2; ++p) {
      for (int64_t i = 0; i < 2 * kPanelBlockSize; ++i) num_nonzero += matrix.panel(p)[i] != 0;
    }
    EXPECT_EQ(num_nonzero, 33 * 35);
    for (int64_t n = 0; n < 33; ++n) {
      for (int64_t k = 0; k < 35; ++k) {
        ASSERT_EQ(matrix.panel(
                      n / 32)[k / 32 * kPanelBlockSize + PanelBlockOffset(order, k % 32, n % 32)],
                  weights.rows().row(n)[k].bits);
      }
    }
  }
}

TEST(TierTest, NamesRoundTrip) {
  for (const TierReport& report : TierReports()) {
    EXPECT_EQ(ParseTier(TierName(report.tier)), report.tier);
    EXPECT_EQ(report.usable, report.reason.empty());
  }
  EXPECT_EQ(ParseTier("AVX2"), std::nullopt);
}

TEST(TierTest, TheBestTierIsTheExpectedOne) {
  const char* const expected = std::getenv("MOEBIUS_EXPECT_BEST_TIER");

  if (expected != nullptr) {
    EXPECT_EQ(TierName(BestKernels().tier), expected);
  }
}

TEST(TierTest, TheBestTierIsTheLastUsableOneAndSaysSo) {
  EXPECT_EQ(BestKernels().tier, HostTiers().back());
  EXPECT_EQ(HostTiers().front(), Tier::kPortable);
  EXPECT_THAT(KernelInfo(BestKernels()),
              ::testing::HasSubstr(std::string(TierName(HostTiers().back()))));
}

}  // namespace
}  // namespace moebius
