// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "moebius/base/float_environment.h"
#include "moebius/kernels/block_gemm.h"
#include "moebius/kernels/cpu/tiers.h"
#include "moebius/kernels/expert_ffn.h"
#include "moebius/kernels/reference/block_sum.h"
#include "moebius/kernels/row_panels.h"
#include "tests/kernels/kernel_data.h"

namespace moebius {
namespace {

using testing::BitsOf;
using testing::FillNormal;
using testing::FloatBits;
using testing::GuardedRows;

constexpr uint64_t kSeed = 8;

struct Blocks {
  int64_t rows;
  int64_t columns;
  int64_t row_offset = 0;
  int64_t column_offset = 0;
};

void PrintTo(const Blocks& blocks, std::ostream* out) {
  *out << blocks.rows << "x" << blocks.columns << " from " << blocks.row_offset << ", "
       << blocks.column_offset;
}

// Codes uniform over the finite ones, scales over two decades.
WeightMatrix RandomFp8(int64_t num_rows, int64_t width, const Blocks& blocks, uint64_t seed) {
  Fp8Rows shape;
  shape.block_rows = blocks.rows;
  shape.block_columns = blocks.columns;
  shape.row_offset = blocks.row_offset;
  shape.column_offset = blocks.column_offset;
  WeightMatrix matrix = WeightMatrix::MakeFp8(num_rows, width, shape);
  Random random(seed);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (uint8_t& code : matrix.codes().span(r)) {
      do {
        code = static_cast<uint8_t>(random.Bits());
      } while (!IsFiniteFp8(code));
    }
  }
  for (int64_t r = 0; r < matrix.scales().num_rows; ++r) {
    for (float& scale : matrix.scales().span(r)) {
      scale = 1e-3f * (1.0f + static_cast<float>(random.Below(1000)) / 10.0f);
    }
  }
  return matrix;
}

std::vector<FloatBits> ExpectedRow(absl::Span<const Bf16> row, const WeightRows& weights,
                                   float c = 0) {
  std::vector<FloatBits> expected;
  for (int64_t n = 0; n < weights.num_rows(); ++n) {
    expected.emplace_back(reference::Fp8BlockSum(row, weights.fp8, n, c));
  }
  return expected;
}

// Every decoder that this CPU can run.
std::vector<std::pair<const char*, DecodeFp8>> Decoders() {
  std::vector<std::pair<const char*, DecodeFp8>> decoders = {{"portable", DecodeFp8Portable}};
  if (__builtin_cpu_supports("avx2")) decoders.emplace_back("avx2", DecodeFp8Avx2);
  if (__builtin_cpu_supports("avx512bw")) {
    decoders.emplace_back("avx512", DecodeFp8Avx512);
    if (__builtin_cpu_supports("avx512vbmi")) decoders.emplace_back("vbmi", DecodeFp8Vbmi);
  }
  return decoders;
}

TEST(Fp8DecoderTest, GivesEveryCodeAtEveryPlaceOfABlock) {
  constexpr int64_t kBlocks = 3;
  alignas(64) uint8_t codes[kBlocks * kPanelBlockSize];
  alignas(64) uint16_t values[kBlocks * kPanelBlockSize];
  for (const auto& [name, decode] : Decoders()) {
    for (int shift = 0; shift < 256; ++shift) {
      for (int64_t i = 0; i < kBlocks * kPanelBlockSize; ++i) {
        const auto code = static_cast<uint8_t>(i + shift);
        codes[Fp8CodeOffset(i)] = IsFiniteFp8(code) ? code : 0x80;
      }
      decode(DecodeFp8Call{codes, kBlocks, 0, values});
      for (int64_t i = 0; i < kBlocks * kPanelBlockSize; ++i) {
        ASSERT_EQ(values[i], Fp8ToBf16(codes[Fp8CodeOffset(i)]).bits)
            << name << ", code " << int{codes[Fp8CodeOffset(i)]} << " at " << i;
      }
    }
  }
}

class Fp8ProductTest : public testing::TierTest {};

TEST_P(Fp8ProductTest, GivesTheScalarStatementsBitsForAnyBlocks) {
  const std::vector<Blocks> all_blocks = {
      {1, 1},       {1, 7},   {32, 32},       {64, 48},           {128, 128},      {16, 33},
      {1000, 1000}, {48, 96}, {24, 31, 5, 8}, {128, 128, 96, 32}, {8, 160, 3, 159}};
  const std::vector<std::pair<int64_t, int64_t>> shapes = {{70, 97}, {33, 320}, {1, 1}, {64, 256}};
  for (const auto& [num_outputs, depth] : shapes) {
    for (const Blocks& blocks : all_blocks) {
      SCOPED_TRACE(::testing::PrintToString(blocks) + " of [" + std::to_string(num_outputs) + ", " +
                   std::to_string(depth) + "], seed " + std::to_string(kSeed));
      const WeightMatrix weights = RandomFp8(num_outputs, depth, blocks, kSeed);
      GuardedRows<Bf16> rows(18, depth);
      FillNormal(rows.rows(), kSeed + 1);
      const PackedMatrix matrix = PackedMatrix::Pack(weights.rows(), kernels().pair_order);
      EXPECT_EQ(matrix.bytes(),
                PackedLayout::Of(num_outputs, depth, weights.rows().blocks(), kernels().pair_order)
                    .bytes());
      EXPECT_EQ(matrix.bytes() % 64, 0u);
      std::vector<std::vector<FloatBits>> expected;
      for (int64_t r = 0; r < rows.num_rows; ++r) {
        expected.push_back(ExpectedRow(rows.rows().span(r), weights.rows()));
      }
      for (const int64_t count : {1, 2, 6, 17, 18}) {
        GuardedRows<float> out(count, num_outputs);
        MatMul(kernels(), rows.rows().Slice(0, count), matrix, out.rows());
        for (int64_t r = 0; r < count; ++r) {
          ASSERT_EQ(BitsOf(out.rows(), r), expected[static_cast<size_t>(r)])
              << "row " << r << " of " << count;
        }
        ASSERT_TRUE(out.GuardsIntact());
      }
    }
  }
}

TEST_P(Fp8ProductTest, GivesTheSameBitsForAnyNumberOfRowsAndThreads) {
  SCOPED_TRACE(kSeed);
  constexpr int64_t kRows = 200;
  const WeightMatrix weights = RandomFp8(90, 300, {128, 128}, kSeed);
  GuardedRows<Bf16> rows(kRows, 300);
  FillNormal(rows.rows(), kSeed + 2);
  const PackedMatrix matrix = PackedMatrix::Pack(weights.rows(), kernels().pair_order);
  GuardedRows<float> expected(kRows, 90);
  for (int64_t r = 0; r < kRows; ++r) {
    MatMul(kernels(), rows.rows().Slice(r, r + 1), matrix, expected.rows().Slice(r, r + 1));
  }
  for (const int num_threads : {1, 3}) {
    Executor executor(num_threads);
    for (const int64_t count : {97, 143, 200}) {
      GuardedRows<float> out(count, 90);
      executor.Run([&] {
        ParallelMatMul(executor, kernels(), rows.rows().Slice(0, count), matrix, out.rows());
      });
      for (int64_t r = 0; r < count; ++r) {
        ASSERT_EQ(BitsOf(out.rows(), r), BitsOf(expected.rows(), r)) << r << " of " << count;
      }
    }
  }
}

TEST_P(Fp8ProductTest, IsCloseToTheDequantisedWeightsInFp64) {
  SCOPED_TRACE(kSeed);
  const WeightMatrix weights = RandomFp8(70, 576, {128, 128}, kSeed);
  GuardedRows<Bf16> rows(3, 576);
  FillNormal(rows.rows(), kSeed + 3);
  GuardedRows<float> out(3, 70);
  MatMul(kernels(), rows.rows(), PackedMatrix::Pack(weights.rows(), kernels().pair_order),
         out.rows());
  const Fp8Rows view = weights.rows().fp8;
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t n = 0; n < 70; ++n) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t k = 0; k < 576; ++k) {
        const double term = static_cast<double>(ToFloat(rows.rows().row(r)[k])) *
                            static_cast<double>(Fp8ToFloat(view.codes.row(n)[k])) *
                            static_cast<double>(view.scale(n, k));
        sum += term;
        magnitude += std::fabs(term);
      }
      // Sixteen additions in a chain, four blocks, five groups: some 2^-24 each.
      EXPECT_NEAR(out.rows().row(r)[n], sum, magnitude * 25 * 0x1p-24) << r << ", " << n;
    }
  }
}

TEST_P(Fp8ProductTest, AccumulatesOntoWhatIsThere) {
  const WeightMatrix weights = RandomFp8(40, 100, {32, 64}, kSeed);
  GuardedRows<Bf16> rows(20, 100);
  FillNormal(rows.rows(), kSeed + 4);
  const PackedMatrix matrix = PackedMatrix::Pack(weights.rows(), kernels().pair_order);
  std::vector<float> out(20 * 40);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(i) * 0.25f;
  std::vector<const Bf16*> pointers;
  for (int64_t r = 0; r < 20; ++r) pointers.push_back(rows.rows().row(r));
  PanelProduct product;
  product.matrix = &matrix;
  product.panel_end = matrix.num_panels();
  product.epilogue = Epilogue::kAccumulate;
  product.out = out.data();
  product.out_stride = 40;
  RunPanels(kernels(), pointers, product);
  for (int64_t r = 0; r < 20; ++r) {
    for (int64_t n = 0; n < 40; ++n) {
      const auto index = static_cast<size_t>(r * 40 + n);
      EXPECT_EQ(FloatBits(out[index]),
                FloatBits(reference::Fp8BlockSum(rows.rows().span(r), weights.rows().fp8, n,
                                                 static_cast<float>(index) * 0.25f)));
    }
  }
}

// Packed into storage, and looked at in a copy of it, a matrix is what it is by itself.
TEST_P(Fp8ProductTest, LiesInStorageAsInItsOwnMemory) {
  const std::vector<Blocks> all_blocks = {{128, 128}, {24, 31, 5, 8}, {8, 160, 3, 159}};
  for (const Blocks& blocks : all_blocks) {
    SCOPED_TRACE(::testing::PrintToString(blocks));
    const WeightMatrix weights = RandomFp8(70, 97, blocks, kSeed);
    GuardedRows<Bf16> rows(3, 97);
    FillNormal(rows.rows(), kSeed + 7);
    const PairOrder order = kernels().pair_order;
    const PackedLayout layout = PackedLayout::Of(70, 97, weights.rows().blocks(), order);
    Array<uint8_t> storage(layout.bytes());
    Array<uint8_t> copy(layout.bytes());
    const PackedMatrix alone = PackedMatrix::Pack(weights.rows(), order);
    const PackedMatrix packed = PackedMatrix::Pack(weights.rows(), order, storage.span());
    std::copy(storage.span().begin(), storage.span().end(), copy.data());
    const PackedMatrix viewed = PackedMatrix::View(layout, copy.span());
    EXPECT_EQ(packed.panel_codes(0), storage.data());
    EXPECT_EQ(viewed.bytes(), alone.bytes());
    EXPECT_EQ(std::memcmp(alone.panel_codes(0), copy.data(), layout.bytes()), 0);
    GuardedRows<float> expected(3, 70);
    GuardedRows<float> out(3, 70);
    MatMul(kernels(), rows.rows(), alone, expected.rows());
    MatMul(kernels(), rows.rows(), viewed, out.rows());
    for (int64_t r = 0; r < 3; ++r) EXPECT_EQ(BitsOf(out.rows(), r), BitsOf(expected.rows(), r));
  }
}

TEST(PackedLayoutTest, NamesTypesAndOrders) {
  EXPECT_EQ(PackedLayoutName("bf16", PairOrder::kAdjacent), "bf16-32x32-adjacent-1");
  EXPECT_EQ(PackedLayoutName("fp8-128x64", PairOrder::kWithinChain),
            "fp8-128x64-32x32-within-chain-1");
}

TEST_P(Fp8ProductTest, StackedMatricesKeepTheirOwnScales) {
  const WeightMatrix top = RandomFp8(21, 80, {16, 48}, kSeed);
  const WeightMatrix bottom = RandomFp8(30, 80, {7, 48}, kSeed + 1);
  GuardedRows<Bf16> rows(2, 80);
  FillNormal(rows.rows(), kSeed + 5);
  const WeightRows parts[] = {top.rows(), bottom.rows()};
  GuardedRows<float> out(2, 51);
  MatMul(kernels(), rows.rows(), PackedMatrix::PackStack(parts, kernels().pair_order), out.rows());
  for (int64_t r = 0; r < 2; ++r) {
    std::vector<FloatBits> expected = ExpectedRow(rows.rows().span(r), parts[0]);
    for (const FloatBits bits : ExpectedRow(rows.rows().span(r), parts[1])) {
      expected.push_back(bits);
    }
    EXPECT_EQ(BitsOf(out.rows(), r), expected);
  }
}

TEST_P(Fp8ProductTest, AnExpertGivesTheScalarStatement) {
  constexpr int64_t kHidden = 200;
  constexpr int64_t kWidth = 75;
  // The last slice of a dense layer: its columns of down begin inside a block.
  const WeightMatrix gate = RandomFp8(kWidth, kHidden, {64, 64, 22, 0}, kSeed);
  const WeightMatrix up = RandomFp8(kWidth, kHidden, {64, 64, 22, 0}, kSeed + 1);
  const WeightMatrix down = RandomFp8(kHidden, kWidth, {64, 64, 0, 22}, kSeed + 2);
  const PackedExpert packed =
      PackedExpert::Pack(gate.rows(), up.rows(), down.rows(), kernels().pair_order);
  const ExpertShape shape = {kWidth, kHidden, gate.rows().blocks(), down.rows().blocks()};
  EXPECT_EQ(static_cast<int64_t>(packed.bytes()), PackedExpert::BytesOf(shape));
  Array<uint8_t> storage(packed.bytes());
  PackedExpert::Pack(gate.rows(), up.rows(), down.rows(), kernels().pair_order, storage.span());
  const PackedExpert viewed = PackedExpert::View(shape, kernels().pair_order, storage.span());
  ASSERT_EQ(viewed.gate_up.bytes(), packed.gate_up.bytes());
  EXPECT_EQ(std::memcmp(viewed.gate_up.panel_codes(0), packed.gate_up.panel_codes(0),
                        packed.gate_up.bytes()),
            0);
  ASSERT_EQ(viewed.down.bytes(), packed.down.bytes());
  EXPECT_EQ(
      std::memcmp(viewed.down.panel_codes(0), packed.down.panel_codes(0), packed.down.bytes()), 0);
  for (const int64_t count : {1, 40}) {
    GuardedRows<Bf16> rows(count, kHidden);
    FillNormal(rows.rows(), kSeed + 6, 0.01f);
    GuardedRows<Bf16> out(count, kHidden);
    std::vector<int32_t> indices;
    for (int32_t r = 0; r < count; ++r) indices.push_back(r);
    Executor executor(2);
    ExpertScratch scratch;
    executor.Run([&] {
      const ExpertBatch batch{&packed, indices, out.rows()};
      ForwardExperts(executor, kernels(), absl::MakeConstSpan(&batch, 1), rows.rows(), scratch);
    });
    const ScopedFloatEnvironment environment;
    for (int64_t r = 0; r < count; ++r) {
      std::vector<Bf16> products;
      for (int64_t i = 0; i < kWidth; ++i) {
        const absl::Span<const Bf16> row = rows.rows().span(r);
        products.push_back(reference::SwiGlu(reference::Fp8BlockSum(row, gate.rows().fp8, i, 0.0f),
                                             reference::Fp8BlockSum(row, up.rows().fp8, i, 0.0f)));
      }
      for (int64_t h = 0; h < kHidden; ++h) {
        ASSERT_EQ(out.rows().row(r)[h],
                  ToBf16(reference::Fp8BlockSum(products, down.rows().fp8, h, 0.0f)))
            << r << ", " << h;
      }
    }
  }
}

MOEBIUS_INSTANTIATE_TIERS(Fp8ProductTest);

}  // namespace
}  // namespace moebius
