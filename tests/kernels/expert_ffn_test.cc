// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/expert_ffn.h"

#include <memory>
#include <numeric>
#include <vector>

#include "moebius/kernels/block_gemm.h"
#include "moebius/kernels/reference/block_sum.h"
#include "tests/kernels/kernel_data.h"

namespace moebius {
namespace {

using testing::BitsOf;
using testing::FillNormal;
using testing::FloatBits;
using testing::GuardedRows;

constexpr int64_t kHidden = 72;        // not a multiple of 32
constexpr int64_t kIntermediate = 41;  // neither of 16 nor even

struct Expert {
  explicit Expert(uint64_t seed, int64_t intermediate = kIntermediate)
      : gate(intermediate, kHidden), up(intermediate, kHidden), down(kHidden, intermediate) {
    FillNormal(gate.rows(), seed, 0.3f);
    FillNormal(up.rows(), seed + 1, 0.3f);
    FillNormal(down.rows(), seed + 2, 0.3f);
  }
  PackedExpert Pack(PairOrder order) const {
    return PackedExpert::Pack(gate.rows(), up.rows(), down.rows(), order);
  }
  /// The scalar statement of one row.
  std::vector<FloatBits> Expected(absl::Span<const Bf16> row) const {
    std::vector<Bf16> products;
    for (int64_t i = 0; i < gate.num_rows; ++i) {
      products.push_back(reference::SwiGlu(reference::BlockSum(row, gate.rows().span(i), 0.0f),
                                           reference::BlockSum(row, up.rows().span(i), 0.0f)));
    }
    std::vector<FloatBits> expected;
    for (int64_t h = 0; h < kHidden; ++h) {
      expected.emplace_back(
          ToFloat(ToBf16(reference::BlockSum(products, down.rows().span(h), 0.0f))));
    }
    return expected;
  }
  GuardedRows<Bf16> gate;
  GuardedRows<Bf16> up;
  GuardedRows<Bf16> down;
};

class ExpertFfnTest : public testing::TierTest {};

TEST_P(ExpertFfnTest, FusedGivesTheBitsOfTheSeparateSteps) {
  const Expert expert(1);
  GuardedRows<Bf16> rows(64, kHidden);
  FillNormal(rows.rows(), 9);
  const PackedExpert packed = expert.Pack(kernels().pair_order);
  const PackedMatrix gate = PackedMatrix::Pack(expert.gate.rows(), kernels().pair_order);
  const PackedMatrix up = PackedMatrix::Pack(expert.up.rows(), kernels().pair_order);
  GuardedRows<float> g(64, kIntermediate);
  GuardedRows<float> u(64, kIntermediate);
  MatMul(kernels(), rows.rows(), gate, g.rows());
  MatMul(kernels(), rows.rows(), up, u.rows());
  GuardedRows<Bf16> products(64, kIntermediate);
  MatMulSwiGlu(kernels(), rows.rows(), packed.gate_up, products.rows());
  for (int64_t r = 0; r < 64; ++r) {
    for (int64_t i = 0; i < kIntermediate; ++i) {
      ASSERT_EQ(products.rows().row(r)[i],
                reference::SwiGlu(g.rows().row(r)[i], u.rows().row(r)[i]))
          << r << ", " << i;
    }
  }
  EXPECT_TRUE(products.GuardsIntact());
}

TEST_P(ExpertFfnTest, GivesTheScalarStatementForAnyBatchAndThreads) {
  // Row counts per expert: none, one, around a tile, beyond one kernel call.
  const std::vector<int64_t> counts = {0, 1, 5, 6, 7, 100, 300};
  std::vector<Expert> experts;
  std::vector<PackedExpert> packed;
  for (size_t e = 0; e < counts.size(); ++e) {
    experts.emplace_back(100 + 10 * e, e == 3 ? 16 : kIntermediate);  // a shorter slice
    packed.push_back(experts.back().Pack(kernels().pair_order));
  }
  GuardedRows<Bf16> rows(300, kHidden);
  FillNormal(rows.rows(), 77);
  std::vector<std::vector<int32_t>> indices(counts.size());
  std::vector<std::vector<std::vector<FloatBits>>> expected(counts.size());
  for (size_t e = 0; e < counts.size(); ++e) {
    for (int64_t i = 0; i < counts[e]; ++i) {
      indices[e].push_back(static_cast<int32_t>((i * 7 + static_cast<int64_t>(e)) % 300));
      expected[e].push_back(experts[e].Expected(rows.rows().span(indices[e].back())));
    }
  }
  for (const int num_threads : {1, 2, 3}) {
    Executor executor(num_threads);
    ExpertScratch scratch;
    std::vector<std::unique_ptr<GuardedRows<Bf16>>> outs;
    std::vector<ExpertBatch> batches;
    for (size_t e = 0; e < counts.size(); ++e) {
      outs.push_back(std::make_unique<GuardedRows<Bf16>>(counts[e], kHidden));
      batches.push_back(ExpertBatch{&packed[e], indices[e], outs.back()->rows()});
    }
    executor.Run([&] { ForwardExperts(executor, kernels(), batches, rows.rows(), scratch); });
    for (size_t e = 0; e < counts.size(); ++e) {
      for (int64_t i = 0; i < counts[e]; ++i) {
        ASSERT_EQ(BitsOf(outs[e]->rows(), i), expected[e][static_cast<size_t>(i)])
            << "expert " << e << ", row " << i << ", " << num_threads << " threads";
      }
      EXPECT_TRUE(outs[e]->GuardsIntact());
    }
  }
}

TEST_P(ExpertFfnTest, InPiecesItGivesTheSameBitsAndSoDoesWhatRunsBetweenThem) {
  const std::vector<int64_t> counts = {3, 160, 0, 1, 100};
  constexpr int64_t kMaxWork = 600000;  // more than one panel of one call
  constexpr int64_t kWide = 200;        // so that an expert has many panels
  GuardedRows<Bf16> gate(kWide, kHidden), up(kWide, kHidden), down(kHidden, kWide);
  FillNormal(gate.rows(), 1, 0.3f);
  FillNormal(up.rows(), 2, 0.3f);
  FillNormal(down.rows(), 3, 0.3f);
  const PackedExpert packed =
      PackedExpert::Pack(gate.rows(), up.rows(), down.rows(), kernels().pair_order);
  GuardedRows<Bf16> rows(160, kHidden);
  FillNormal(rows.rows(), 78);
  std::vector<int32_t> indices(160);
  std::iota(indices.begin(), indices.end(), 0);
  for (const int num_threads : {1, 2}) {
    Executor executor(num_threads);
    ExpertScratch scratch, between;
    const auto forward = [&](ExpertScratch& with, const ForwardPieces* pieces) {
      std::vector<std::unique_ptr<GuardedRows<Bf16>>> outs;
      std::vector<ExpertBatch> batches;
      for (const int64_t count : counts) {
        outs.push_back(std::make_unique<GuardedRows<Bf16>>(count, kHidden));
        batches.push_back({&packed, absl::MakeConstSpan(indices).first(static_cast<size_t>(count)),
                           outs.back()->rows()});
      }
      executor.Run(
          [&] { ForwardExperts(executor, kernels(), batches, rows.rows(), with, pieces); });
      std::vector<std::vector<FloatBits>> bits;
      for (size_t b = 0; b < counts.size(); ++b) {
        EXPECT_TRUE(outs[b]->GuardsIntact());
        for (int64_t i = 0; i < counts[b]; ++i) bits.push_back(BitsOf(outs[b]->rows(), i));
      }
      return bits;
    };
    const std::vector<std::vector<FloatBits>> whole = forward(scratch, nullptr);
    int num_pieces = 0, num_last = 0;
    const auto after = [&](int64_t work, bool is_last) {
      EXPECT_GT(work, 0);
      EXPECT_LE(work, kMaxWork);
      EXPECT_EQ(num_last, 0);
      num_last += is_last ? 1 : 0;
      if (++num_pieces % 8 == 1) {
        EXPECT_EQ(forward(between, nullptr), whole);
      }
    };
    const ForwardPieces pieces{kMaxWork, after};
    EXPECT_EQ(forward(scratch, &pieces), whole);
    // 276 rows (few count as eight) of 3 · 200 · 72 multiply-adds, and more with whole panels.
    EXPECT_GT(num_pieces, 276 * 3 * kWide * kHidden / kMaxWork);
    EXPECT_EQ(num_last, 1);
    // What fits is one piece, whose work is that of its batches.
    const auto once = [&](int64_t work, bool is_last) {
      EXPECT_EQ(work,
                (8 + 160 + 8 + 100) * WorkOf(ExpertBatch{&packed, indices, rows.rows()}) / 160);
      EXPECT_TRUE(is_last);
      ++num_last;
    };
    const ForwardPieces one{int64_t{1} << 40, once};
    EXPECT_EQ(forward(scratch, &one), whole);
    EXPECT_EQ(num_last, 2);
  }
}

TEST_P(ExpertFfnTest, TakesNoBatchesAndNoRows) {
  Executor executor(2);
  ExpertScratch scratch;
  GuardedRows<Bf16> rows(0, kHidden);
  executor.Run([&] { ForwardExperts(executor, kernels(), {}, rows.rows(), scratch); });
}

TEST_P(ExpertFfnTest, SaturatesWithoutNan) {
  // Gates far beyond the exponential's range: silu is 0 or the gate itself.
  Expert expert(5);
  for (int64_t i = 0; i < kIntermediate; ++i) {
    for (int64_t k = 0; k < kHidden; ++k) {
      expert.gate.rows().row(i)[k] = ToBf16(i % 2 == 0 ? -100.0f : 100.0f);
    }
  }
  GuardedRows<Bf16> rows(1, kHidden);
  for (Bf16& value : rows.rows().span(0)) value = ToBf16(1.0f);
  GuardedRows<Bf16> out(1, kHidden);
  GuardedRows<Bf16> products(1, kIntermediate);
  const PackedExpert packed = expert.Pack(kernels().pair_order);
  MatMulSwiGlu(kernels(), rows.rows(), packed.gate_up, products.rows());
  EXPECT_EQ(ToFloat(products.rows().row(0)[0]), 0.0f);
  const float up = reference::BlockSum(rows.rows().span(0), expert.up.rows().span(1), 0.0f);
  EXPECT_EQ(products.rows().row(0)[1], ToBf16(7200.0f * up));
}

MOEBIUS_INSTANTIATE_TIERS(ExpertFfnTest);

}  // namespace
}  // namespace moebius
