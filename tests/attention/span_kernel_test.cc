// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "moebius/kernels/attention.h"
#include "moebius/kernels/reference/attention.h"

namespace moebius {
namespace {

// Keys and values of one span, packed, and queries that see some of them.
class SpanData {
 public:
  SpanData(const SpanShape& shape, int64_t num_keys, int64_t num_rows, uint64_t seed)
      : shape_(shape),
        queries_(Make(seed, num_rows, shape.key_width)),
        keys_(Make(seed + 1, num_keys, shape.key_width)),
        values_(Make(seed + 2, num_keys, shape.value_width)) {}

  // States of rows [begin, end) as one tile.
  struct States {
    RowBatch<float> acc;
    std::vector<float> m, l;
  };
  States Compute(const Kernels& kernels, int64_t begin, int64_t end,
                 absl::Span<const VisibleKeys> visible) const {
    const int64_t num_rows = end - begin;
    States states{RowBatch<float>(num_rows, shape_.value_width),
                  std::vector<float>(static_cast<size_t>(num_rows)),
                  std::vector<float>(static_cast<size_t>(num_rows))};
    const SpanStates view{states.acc.rows(), absl::MakeSpan(states.m), absl::MakeSpan(states.l)};
    ClearStates(view);
    QueryTile tile;
    tile.Prepare(kernels, queries_.rows().Slice(begin, end));
    SpanScratch scratch;
    Array<Bf16> keys(static_cast<size_t>(shape_.key_block_elements()));
    Array<Bf16> values(static_cast<size_t>(shape_.value_block_elements()));
    for (int64_t block = 0; block < keys_.num_rows(); block += shape_.key_block) {
      const int64_t block_end = std::min(keys_.num_rows(), block + shape_.key_block);
      PackKeyBlock(kernels.pair_order, shape_, keys_.rows().Slice(block, block_end), keys.data());
      PackValueBlock(kernels.pair_order, shape_, values_.rows().Slice(block, block_end),
                     values.data());
      std::vector<VisibleKeys> in_block;
      const auto clamp = [&](int64_t key) {
        return static_cast<int32_t>(std::clamp<int64_t>(key - block, 0, shape_.key_block));
      };
      for (int64_t r = begin; r < end; ++r) {
        const VisibleKeys& keys = visible[static_cast<size_t>(r)];
        in_block.push_back({clamp(keys.begin), clamp(keys.end)});
      }
      AccumulateKeyBlock(kernels, shape_, tile, in_block, keys.data(), values.data(), scratch,
                         view);
    }
    return states;
  }

  void ExpectReference(const States& found, int64_t begin,
                       absl::Span<const VisibleKeys> visible) const {
    for (int64_t r = 0; r < found.acc.num_rows(); ++r) {
      std::vector<float> acc(static_cast<size_t>(shape_.value_width));
      const reference::SpanState state =
          reference::ComputeSpanState(queries_.rows().span(begin + r), keys_.rows(), values_.rows(),
                                      visible[static_cast<size_t>(begin + r)], shape_.key_block,
                                      shape_.scale, absl::MakeSpan(acc));
      EXPECT_EQ(state.m, found.m[static_cast<size_t>(r)]);
      EXPECT_EQ(state.l, found.l[static_cast<size_t>(r)]);
      EXPECT_EQ(std::memcmp(acc.data(), found.acc.rows().row(r), acc.size() * sizeof(float)), 0)
          << "row " << r << " of a tile from " << begin;
    }
  }

 private:
  static RowBatch<Bf16> Make(uint64_t seed, int64_t num_rows, int64_t width) {
    Random random(seed);
    RowBatch<Bf16> rows(num_rows, width);
    for (int64_t r = 0; r < num_rows; ++r) {
      for (Bf16& element : rows.rows().span(r)) element = ToBf16(random.Normal());
    }
    return rows;
  }

  SpanShape shape_;
  RowBatch<Bf16> queries_, keys_, values_;
};

TEST(SpanKernelTest, GivesTheScalarBitsForEveryTierShapeAndTile) {
  const struct {
    int64_t key_width, value_width, key_block, num_keys;
  } shapes[] = {{24, 24, 64, 64}, {40, 40, 64, 130},  {128, 128, 128, 200}, {48, 32, 128, 256},
                {80, 64, 32, 70}, {16, 16, 128, 128}, {192, 20, 96, 150},   {576, 512, 32, 33}};
  uint64_t seed = 100;
  for (const auto& [key_width, value_width, key_block, num_keys] : shapes) {
    const SpanShape shape{key_width, value_width, key_block, 0.17f};
    constexpr int64_t kRows = 33;
    const SpanData data(shape, num_keys, kRows, ++seed);
    std::vector<VisibleKeys> visible;
    for (int64_t r = 0; r < kRows; ++r) {
      visible.push_back({0, static_cast<int32_t>(r * (num_keys + 1) / kRows)});
    }
    visible.back().end = static_cast<int32_t>(num_keys);
    for (const Tier tier : HostTiers()) {
      SCOPED_TRACE(TierName(tier));
      const Kernels& kernels = *FindKernels(tier);
      const uint64_t before = kernels.Executed();
      data.ExpectReference(data.Compute(kernels, 0, 32, visible), 0, visible);
      data.ExpectReference(data.Compute(kernels, 1, 4, visible), 1, visible);
      data.ExpectReference(data.Compute(kernels, 32, 33, visible), 32, visible);
      EXPECT_GT(kernels.Executed(), before);
    }
  }
}

// Rows that see the keys of a window: its edges at every place of a vector, of a panel, of a block.
TEST(SpanKernelTest, GivesTheScalarBitsForEveryTierAndWindow) {
  constexpr int64_t kRows = 33;
  for (const int64_t key_block : {32, 96, 128}) {
    const int64_t num_keys = 2 * key_block + 7;
    const SpanShape shape{24, 40, key_block, 0.17f};
    const SpanData data(shape, num_keys, kRows, 50);
    for (const int64_t size : {1, 3, 16, 31, 33, 100}) {
      std::vector<VisibleKeys> visible;
      for (int64_t r = 0; r < kRows; ++r) {
        const int64_t end = 1 + r * (num_keys - 1) / (kRows - 1);
        visible.push_back(
            {static_cast<int32_t>(std::max<int64_t>(0, end - size)), static_cast<int32_t>(end)});
      }
      for (const Tier tier : HostTiers()) {
        SCOPED_TRACE(TierName(tier));
        const Kernels& kernels = *FindKernels(tier);
        data.ExpectReference(data.Compute(kernels, 0, 32, visible), 0, visible);
        data.ExpectReference(data.Compute(kernels, 20, 23, visible), 20, visible);
        data.ExpectReference(data.Compute(kernels, 32, 33, visible), 32, visible);
      }
    }
  }
}

TEST(SpanKernelTest, LeavesARowThatSeesNothingEmpty) {
  const SpanData data({24, 24, 64, 1.0f}, 64, 2, 5);
  const std::vector<VisibleKeys> visible{{0, 0}, {0, 64}};
  const SpanData::States states = data.Compute(BestKernels(), 0, 2, visible);
  EXPECT_EQ(states.m[0], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(states.l[0], 0.0f);
  for (const float element : states.acc.rows().span(0)) EXPECT_EQ(element, 0.0f);
  EXPECT_GT(states.l[1], 0.0f);
}

TEST(SpanKernelTest, LeavesHiddenKeysOutBySelection) {
  const SpanShape shape{16, 16, 32, 1.0f};
  for (const Tier tier : HostTiers()) {
    const Kernels& kernels = *FindKernels(tier);
    Array<Bf16> keys(static_cast<size_t>(shape.key_block_elements()));
    Array<Bf16> values(static_cast<size_t>(shape.value_block_elements()));
    const std::vector<Bf16> one(16, ToBf16(1.0f));
    const std::vector<Bf16> nan(16, Bf16{0x7FC0});
    for (int64_t t = 0; t < 32; ++t) {
      StoreKey(kernels.pair_order, shape, nan.data(), t, keys.data());
    }
    StoreKey(kernels.pair_order, shape, one.data(), 5, keys.data());
    StoreValue(kernels.pair_order, shape, one.data(), 5, values.data());
    std::vector<float> acc(16);
    float m = 0, l = 0;
    const SpanStates states{MutableFloatRows(acc.data(), 1, 16), absl::MakeSpan(&m, 1),
                            absl::MakeSpan(&l, 1)};
    ClearStates(states);
    QueryTile tile;
    tile.Prepare(kernels, Bf16Rows(one.data(), 1, 16));
    SpanScratch scratch;
    const VisibleKeys visible{5, 6};
    AccumulateKeyBlock(kernels, shape, tile, absl::MakeConstSpan(&visible, 1), keys.data(),
                       values.data(), scratch, states);
    EXPECT_EQ(m, 16.0f) << TierName(tier);
    EXPECT_EQ(l, 1.0f) << TierName(tier);
    EXPECT_EQ(acc[15], 1.0f) << TierName(tier);
  }
}

TEST(SpanKernelTest, PacksAWholeBlockAsTokenByToken) {
  const SpanShape shape{40, 24, 64, 1.0f};
  Random random(3);
  RowBatch<Bf16> keys(50, 40), values(50, 24);
  for (int64_t r = 0; r < 50; ++r) {
    for (Bf16& element : keys.rows().span(r)) element = ToBf16(random.Normal());
    for (Bf16& element : values.rows().span(r)) element = ToBf16(random.Normal());
  }
  for (const PairOrder order : {PairOrder::kAdjacent, PairOrder::kWithinChain}) {
    const size_t key_size = static_cast<size_t>(shape.key_block_elements());
    const size_t value_size = static_cast<size_t>(shape.value_block_elements());
    std::vector<Bf16> whole_keys(key_size, Bf16{1}), single_keys(key_size);
    std::vector<Bf16> whole_values(value_size, Bf16{1}), single_values(value_size);
    PackKeyBlock(order, shape, keys.rows(), whole_keys.data());
    PackValueBlock(order, shape, values.rows(), whole_values.data());
    for (int64_t t = 0; t < 50; ++t) {
      StoreKey(order, shape, keys.rows().row(t), t, single_keys.data());
      StoreValue(order, shape, values.rows().row(t), t, single_values.data());
    }
    EXPECT_EQ(whole_keys, single_keys);
    EXPECT_EQ(whole_values, single_values);
  }
}

}  // namespace
}  // namespace moebius
