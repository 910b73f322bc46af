// SPDX-License-Identifier: Apache-2.0
// Experts of the shapes that models have, and batches as routing makes them.
#include <cstring>
#include <memory>
#include <vector>

#include "moebius/kernels/expert_ffn.h"
#include "moebius/kernels/reference/block_sum.h"
#include "tests/kernels/kernel_data.h"

namespace moebius {
namespace {

using testing::GuardedRows;

constexpr uint64_t kSeed = 11;

// Numbers in ±[2^-4, 2), quickly.
RowBatch<Bf16> MakeWeights(int64_t num_rows, int64_t width, uint64_t seed) {
  RowBatch<Bf16> weights(num_rows, width);
  Random random(seed);
  Bf16* const values = weights.rows().data;
  for (int64_t i = 0; i < num_rows * width; ++i) {
    const uint32_t bits = static_cast<uint32_t>(random.Bits());
    values[i].bits = static_cast<uint16_t>((bits & 0x807F) | ((123 + (bits >> 16) % 5) << 7));
  }
  return weights;
}

struct Expert {
  Expert(int64_t hidden, int64_t intermediate, uint64_t seed)
      : gate(MakeWeights(intermediate, hidden, seed)),
        up(MakeWeights(intermediate, hidden, seed + 1)),
        down(MakeWeights(hidden, intermediate, seed + 2)) {}
  PackedExpert Pack(PairOrder order) const {
    return PackedExpert::Pack(gate.rows(), up.rows(), down.rows(), order);
  }
  // Output h of each, by the scalar statement.
  std::vector<Bf16> Outputs(absl::Span<const Bf16> row, const std::vector<int64_t>& columns) const {
    std::vector<Bf16> products;
    for (int64_t i = 0; i < gate.num_rows(); ++i) {
      products.push_back(reference::SwiGlu(reference::BlockSum(row, gate.rows().span(i), 0.0f),
                                           reference::BlockSum(row, up.rows().span(i), 0.0f)));
    }
    std::vector<Bf16> outputs;
    for (const int64_t h : columns) {
      outputs.push_back(ToBf16(reference::BlockSum(products, down.rows().span(h), 0.0f)));
    }
    return outputs;
  }
  RowBatch<Bf16> gate;
  RowBatch<Bf16> up;
  RowBatch<Bf16> down;
};

// Batches of row indices that share one packed expert or have one each, and their outputs.
struct Batches {
  Batches(const std::vector<const PackedExpert*>& experts,
          const std::vector<std::vector<int32_t>>& indices, int64_t hidden) {
    for (size_t b = 0; b < indices.size(); ++b) {
      outs.push_back(
          std::make_unique<GuardedRows<Bf16>>(static_cast<int64_t>(indices[b].size()), hidden));
      batches.push_back(ExpertBatch{experts[b], indices[b], outs[b]->rows()});
    }
  }
  std::vector<std::unique_ptr<GuardedRows<Bf16>>> outs;
  std::vector<ExpertBatch> batches;
};

std::vector<int32_t> Indices(int32_t count, int32_t step, int32_t num_rows) {
  std::vector<int32_t> indices;
  for (int32_t i = 0; i < count; ++i) indices.push_back(i * step % num_rows);
  return indices;
}

TEST(ExpertShapesTest, AllTiersAgreeOnTheShapesOfModels) {
  SCOPED_TRACE(kSeed);
  const struct {
    int64_t hidden, intermediate;
  } kShapes[] = {{64, 48},     {100, 768},   {2048, 1024}, {2880, 1408},
                 {3584, 2048}, {7168, 2048}, {64, 2048},   {7168, 48}};
  constexpr int32_t kRows = 23;
  // No row, one, more than a tile, and all of them.
  const std::vector<std::vector<int32_t>> indices = {
      {}, {7}, Indices(17, 5, kRows), {}, Indices(kRows, 1, kRows)};
  for (const auto& shape : kShapes) {
    SCOPED_TRACE(::testing::Message() << "H " << shape.hidden << ", I " << shape.intermediate);
    const bool is_large = shape.hidden * shape.intermediate > 3'000'000;
    const Expert expert(shape.hidden, shape.intermediate, kSeed);
    const RowBatch<Bf16> rows = MakeWeights(kRows, shape.hidden, kSeed + 9);
    std::unique_ptr<Batches> first;
    for (const Tier tier : HostTiers()) {
      // The portable tier is for the shapes that it computes in time.
      if (is_large && tier == Tier::kPortable && HostTiers().size() > 1) continue;
      const Kernels& kernels = *FindKernels(tier);
      const PackedExpert packed = expert.Pack(kernels.pair_order);
      auto found = std::make_unique<Batches>(
          std::vector<const PackedExpert*>(indices.size(), &packed), indices, shape.hidden);
      Executor executor(2);
      ExpertScratch scratch;
      executor.Run(
          [&] { ForwardExperts(executor, kernels, found->batches, rows.rows(), scratch); });
      if (first == nullptr) {
        first = std::move(found);
        continue;
      }
      for (size_t b = 0; b < indices.size(); ++b) {
        ASSERT_EQ(std::memcmp(found->outs[b]->values.data(), first->outs[b]->values.data(),
                              found->outs[b]->values.size() * sizeof(Bf16)),
                  0)
            << TierName(tier) << ", batch " << b;
      }
    }
    if (is_large) continue;
    const std::vector<int64_t> columns = {0, 1, shape.hidden / 2, shape.hidden - 1};
    const std::vector<Bf16> expected = expert.Outputs(rows.rows().span(7), columns);
    for (size_t c = 0; c < columns.size(); ++c) {
      EXPECT_EQ(first->outs[1]->rows().row(0)[columns[c]], expected[c]) << columns[c];
    }
  }
}

class ExpertBatchesTest : public testing::TierTest {};

TEST_P(ExpertBatchesTest, AnyNumberOfExpertsWithAnyShareOfTheRows) {
  constexpr int64_t kHidden = 64;
  constexpr int32_t kRows = 40;
  SCOPED_TRACE(kSeed);
  const Expert expert(kHidden, 48, kSeed);
  const PackedExpert packed = expert.Pack(kernels().pair_order);
  const RowBatch<Bf16> rows = MakeWeights(kRows, kHidden, kSeed + 9);
  std::vector<int64_t> columns;
  for (int64_t h = 0; h < kHidden; ++h) columns.push_back(h);
  std::vector<std::vector<Bf16>> expected;
  for (int32_t r = 0; r < kRows; ++r) {
    expected.push_back(expert.Outputs(rows.rows().span(r), columns));
  }
  for (const int32_t num_experts : {1, 32, 33, 64, 257}) {
    // All rows to one and none to the others; then 0 … 8 rows each.
    for (const bool all_to_one : {true, false}) {
      std::vector<std::vector<int32_t>> indices;
      for (int32_t e = 0; e < num_experts; ++e) {
        const int32_t all = e == num_experts / 2 ? kRows : 0;
        indices.push_back(Indices(all_to_one ? all : e * 5 % 9, 3, kRows));
      }
      Batches found(std::vector<const PackedExpert*>(indices.size(), &packed), indices, kHidden);
      Executor executor(2);
      ExpertScratch scratch;
      executor.Run(
          [&] { ForwardExperts(executor, kernels(), found.batches, rows.rows(), scratch); });
      for (size_t e = 0; e < indices.size(); ++e) {
        for (size_t i = 0; i < indices[e].size(); ++i) {
          const std::vector<Bf16>& wanted = expected[static_cast<size_t>(indices[e][i])];
          ASSERT_EQ(std::memcmp(found.outs[e]->rows().row(static_cast<int64_t>(i)), wanted.data(),
                                kHidden * sizeof(Bf16)),
                    0)
              << num_experts << " experts, expert " << e << ", row " << i;
        }
        ASSERT_TRUE(found.outs[e]->GuardsIntact());
      }
    }
  }
}

MOEBIUS_INSTANTIATE_TIERS(ExpertBatchesTest);

}  // namespace
}  // namespace moebius
