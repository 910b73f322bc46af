// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "moebius/kernels/attention.h"
#include "moebius/kernels/attention_calls.h"
#include "moebius/kernels/pack_tiles.h"
#include "moebius/kernels/packed_matrix.h"
#include "moebius/kernels/reference/attention.h"
#include "tests/kernels/kernel_data.h"

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
      const bool is_last = block_end == keys_.num_rows();
      AccumulateKeyBlock(kernels, shape_, tile, in_block, keys.data(), values.data(),
                         is_last ? nullptr : keys.data(), scratch, view);
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

class SpanKernelTest : public testing::TierTest {
 protected:
  // Calls so far of what a key block's step may go through.
  uint64_t Executed() const {
    const uint64_t* const attended = kernels().attention->attended;
    return kernels().Executed() +
           (attended != nullptr ? __atomic_load_n(attended, __ATOMIC_RELAXED) : 0);
  }
};

TEST_P(SpanKernelTest, GivesTheScalarBitsForEveryShapeAndTile) {
  const struct {
    int64_t key_width, value_width, key_block, num_keys;
  } shapes[] = {{24, 24, 64, 64}, {40, 40, 64, 130},  {128, 128, 128, 200}, {48, 32, 128, 256},
                {80, 64, 32, 70}, {16, 16, 128, 128}, {192, 20, 96, 150},   {576, 512, 32, 33}};
  uint64_t seed = 100;
  for (const auto& [key_width, value_width, key_block, num_keys] : shapes) {
    const SpanShape shape{key_width, value_width, key_block, 0.17f};
    constexpr int64_t kRows = kMaxTileRows + 1;
    const SpanData data(shape, num_keys, kRows, ++seed);
    std::vector<VisibleKeys> visible;
    for (int64_t r = 0; r < kRows; ++r) {
      visible.push_back({0, static_cast<int32_t>(r * (num_keys + 1) / kRows)});
    }
    visible.back().end = static_cast<int32_t>(num_keys);
    const uint64_t before = Executed();
    // Whole tiles; few rows; numbers of rows that AMX cuts into tiles which share some.
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, kMaxTileRows),
                                     {1, 4},
                                     {1, 35},
                                     {10, 60},
                                     {kMaxTileRows, kRows}}) {
      data.ExpectReference(data.Compute(kernels(), begin, end, visible), begin, visible);
    }
    EXPECT_GT(Executed(), before);
  }
}

// Rows that see the keys of a window: its edges at every place of a vector, of a panel, of a block.
TEST_P(SpanKernelTest, GivesTheScalarBitsForEveryWindow) {
  constexpr int64_t kRows = kMaxTileRows + 1;
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
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, kMaxTileRows),
                                       {20, 23},
                                       {20, 54},
                                       {kMaxTileRows, kRows}}) {
        data.ExpectReference(data.Compute(kernels(), begin, end, visible), begin, visible);
      }
    }
  }
}

TEST_P(SpanKernelTest, LeavesARowThatSeesNothingEmpty) {
  const SpanData data({24, 24, 64, 1.0f}, 64, 2, 5);
  const std::vector<VisibleKeys> visible{{0, 0}, {0, 64}};
  const SpanData::States states = data.Compute(kernels(), 0, 2, visible);
  EXPECT_EQ(states.m[0], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(states.l[0], 0.0f);
  for (const float element : states.acc.rows().span(0)) EXPECT_EQ(element, 0.0f);
  EXPECT_GT(states.l[1], 0.0f);
}

// P in each form that a block sum reads, from each instruction set.
TEST_P(SpanKernelTest, WeighsIntoEveryFormOfRows) {
  constexpr int64_t kRows = 19, kKeys = 96;
  constexpr int64_t kValues = kRows * kKeys;
  Random random(9);
  std::vector<float> scores(kValues);
  for (float& score : scores) score = 9.0f * random.Normal();
  std::vector<VisibleKeys> visible;
  for (int32_t r = 0; r < kRows; ++r) visible.push_back({r % 3 * 20, r % 5 * 24});
  const auto weigh = [&](const Kernels& kernels, RowForm form, void* weights) {
    std::vector<float> overwritten = scores, m(kRows, -1.0f), l(kRows, 0.5f), alphas(kRows);
    kernels.attention->weigh_block({.scores = overwritten.data(),
                                    .num_rows = kRows,
                                    .key_block = kKeys,
                                    .scale = 0.3f,
                                    .visible = visible.data(),
                                    .m = m.data(),
                                    .l = l.data(),
                                    .alphas = alphas.data(),
                                    .form = form,
                                    .weights = weights});
    m.insert(m.end(), l.begin(), l.end());
    m.insert(m.end(), alphas.begin(), alphas.end());
    return m;
  };
  std::vector<uint16_t> expected(kValues);
  const std::vector<float> states =
      weigh(*FindKernels(Tier::kPortable), RowForm::kBf16, expected.data());
  std::vector<uint16_t> plain(kValues, 1), within_chain(kValues, 1);
  std::vector<float> widened(kValues, 1.0f);
  EXPECT_EQ(weigh(kernels(), RowForm::kBf16, plain.data()), states);
  EXPECT_EQ(weigh(kernels(), RowForm::kBf16WithinChain, within_chain.data()), states);
  EXPECT_EQ(weigh(kernels(), RowForm::kFloat, widened.data()), states);
  EXPECT_EQ(plain, expected);
  constexpr size_t kOrder[] = {2, 0, 3, 1};
  for (size_t i = 0; i < kValues; ++i) {
    ASSERT_EQ(within_chain[i], expected[i / 4 * 4 + kOrder[i % 4]]) << i;
    ASSERT_EQ(widened[i], ToFloat(Bf16{expected[i]})) << i;
  }
}

TEST_P(SpanKernelTest, LeavesHiddenKeysOutBySelection) {
  const SpanShape shape{16, 16, 32, 1.0f};
  Array<Bf16> keys(static_cast<size_t>(shape.key_block_elements()));
  Array<Bf16> values(static_cast<size_t>(shape.value_block_elements()));
  const std::vector<Bf16> one(16, ToBf16(1.0f));
  const std::vector<Bf16> nan(16, Bf16{0x7FC0});
  for (int64_t t = 0; t < 32; ++t) {
    StoreKey(kernels().pair_order, shape, nan.data(), t, keys.data());
  }
  StoreKey(kernels().pair_order, shape, one.data(), 5, keys.data());
  StoreValue(kernels().pair_order, shape, one.data(), 5, values.data());
  std::vector<float> acc(16);
  float m = 0, l = 0;
  const SpanStates states{MutableFloatRows(acc.data(), 1, 16), absl::MakeSpan(&m, 1),
                          absl::MakeSpan(&l, 1)};
  ClearStates(states);
  QueryTile tile;
  tile.Prepare(kernels(), Bf16Rows(one.data(), 1, 16));
  SpanScratch scratch;
  const VisibleKeys visible{5, 6};
  AccumulateKeyBlock(kernels(), shape, tile, absl::MakeConstSpan(&visible, 1), keys.data(),
                     values.data(), nullptr, scratch, states);
  EXPECT_EQ(m, 16.0f);
  EXPECT_EQ(l, 1.0f);
  EXPECT_EQ(acc[15], 1.0f);
}

MOEBIUS_INSTANTIATE_TIERS(SpanKernelTest);

TEST(SpanBlockTest, PacksAWholeBlockAsTokenByToken) {
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

// By every instruction set that this CPU has, whichever it chooses.
TEST(SpanBlockTest, PacksTilesElementByElement) {
  std::vector<const PackTiles*> instruction_sets = {&kBaselinePackTiles};
  if (__builtin_cpu_supports("avx512bw")) instruction_sets.push_back(&kAvx512PackTiles);
  constexpr int64_t kStride = 101;  // no multiple of a vector
  constexpr int64_t kTiles = 3;
  std::vector<uint16_t> rows(static_cast<size_t>(1 + kTiles * 32 * kStride));
  Random random(5);
  for (uint16_t& value : rows) value = static_cast<uint16_t>(random.Below(65536));
  for (const PairOrder order : {PairOrder::kAdjacent, PairOrder::kWithinChain}) {
    for (const int64_t tile_step : {int64_t{32}, 32 * kStride}) {
      std::vector<uint16_t> keys(kTiles * kPanelBlockSize), values(kTiles * kPanelBlockSize);
      for (int64_t i = 0; i < kTiles; ++i) {
        for (int64_t r = 0; r < 32; ++r) {
          for (int64_t c = 0; c < 32; ++c) {
            const uint16_t value = rows[static_cast<size_t>(1 + i * tile_step + r * kStride + c)];
            const int64_t tile = i * kPanelBlockSize;
            keys[static_cast<size_t>(tile + PanelBlockOffset(order, c, r))] = value;
            values[static_cast<size_t>(tile + PanelBlockOffset(order, r, c))] = value;
          }
        }
      }
      for (const PackTiles* pack : instruction_sets) {
        Array<uint16_t> tiles;
        tiles.Resize(kTiles * kPanelBlockSize);
        const PackTilesCall call{.rows = rows.data() + 1,
                                 .row_stride = kStride,
                                 .tile_step = tile_step,
                                 .num_tiles = kTiles,
                                 .within_chain = order == PairOrder::kWithinChain,
                                 .tiles = tiles.data()};
        pack->keys(call);
        EXPECT_TRUE(std::equal(keys.begin(), keys.end(), tiles.data()));
        pack->values(call);
        EXPECT_TRUE(std::equal(values.begin(), values.end(), tiles.data()));
      }
    }
  }
}

TEST(SpanBlockTest, UnpacksAnyTokensOfABlock) {
  Random random(4);
  for (const SpanShape& shape : {SpanShape{40, 24, 64, 1.0f}, SpanShape{32, 96, 96, 1.0f}}) {
    RowBatch<Bf16> keys(shape.key_block, shape.key_width);
    RowBatch<Bf16> values(shape.key_block, shape.value_width);
    for (int64_t r = 0; r < shape.key_block; ++r) {
      for (Bf16& element : keys.rows().span(r)) element = ToBf16(random.Normal());
      for (Bf16& element : values.rows().span(r)) element = ToBf16(random.Normal());
    }
    for (const PairOrder order : {PairOrder::kAdjacent, PairOrder::kWithinChain}) {
      std::vector<Bf16> packed_keys(static_cast<size_t>(shape.key_block_elements()));
      std::vector<Bf16> packed_values(static_cast<size_t>(shape.value_block_elements()));
      PackKeyBlock(order, shape, keys.rows(), packed_keys.data());
      PackValueBlock(order, shape, values.rows(), packed_values.data());
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, shape.key_block),
                                       {0, 1},
                                       {31, 33},
                                       {5, 64},
                                       {32, 64},
                                       {40, 40}}) {
        // Wider rows, whose other elements nobody writes.
        const Bf16 untouched{0x1234};
        const int64_t width = shape.key_width + shape.value_width + 3;
        std::vector<Bf16> rows(static_cast<size_t>((end - begin) * width), untouched);
        const MutableBf16Rows out(rows.data(), end - begin, width);
        UnpackKeys(order, shape, packed_keys.data(), begin, out.Columns(1, 1 + shape.key_width));
        UnpackValues(order, shape, packed_values.data(), begin,
                     out.Columns(2 + shape.key_width, width - 1));
        for (int64_t r = 0; r < end - begin; ++r) {
          const absl::Span<const Bf16> row = out.span(r);
          const auto key_width = static_cast<size_t>(shape.key_width);
          const auto value_width = static_cast<size_t>(shape.value_width);
          EXPECT_EQ(row.subspan(1, key_width), keys.rows().span(begin + r));
          EXPECT_EQ(row.subspan(2 + key_width, value_width), values.rows().span(begin + r));
          for (const size_t gap : {size_t{0}, 1 + key_width, row.size() - 1}) {
            EXPECT_EQ(row[gap], untouched);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace moebius
