// SPDX-License-Identifier: Apache-2.0
// Against the definition in fp64, and properties that need no oracle.
#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/attention/merge.h"
#include "moebius/kernels/attention.h"
#include "moebius/kernels/packed_matrix.h"
#include "tests/attention_service/attention_fixture.h"
#include "tests/attention_service/double_reference.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::MakeCaseWithOpenHeads;
using testing::MakePipeline;
using testing::MakeRows;

// Layer 0 of a session of 300 prompt rows against fp64.
void ExpectWithinTwiceTheOnePassError(const AttentionCase& model) {
  const RowBatch<Bf16> rows = MakeRows(5, 300, model.facts.hidden_size);
  Executor executor(2);
  const auto pipeline = MakePipeline(model, BestKernels(), executor);
  const RowBatch<Bf16> found = testing::RunStep(*pipeline, SessionId(1), rows.rows(), 0, 300, 300);
  const testing::HeadError error =
      testing::CompareHeadsWithDouble(model, rows.rows(), found.rows());
  EXPECT_LE(error.max_error, error.bound())
      << model.name << ", window " << model.facts.config.WindowOf(0);
  EXPECT_GT(error.max_value, 0.5) << model.name;
}

TEST(AttentionAccuracyTest, OfEveryHeadStaysWithinTwiceTheOnePassError) {
  for (const char* name : {"gqa", "mqa", "mha", "mla", "mla_yarn"}) {
    ExpectWithinTwiceTheOnePassError(MakeCaseWithOpenHeads(name, 64));
  }
}

TEST(AttentionAccuracyTest, OfEveryHeadInAWindowStaysWithinTwiceTheOnePassError) {
  for (const char* name : {"gqa", "mqa", "mha", "mla", "mla_yarn"}) {
    AttentionCase model = MakeCaseWithOpenHeads(name, 64);
    for (const int64_t size : {1, 3, 63, 64, 65, 1000}) {
      model.facts.config.windows = {size, 0};
      ExpectWithinTwiceTheOnePassError(model);
    }
  }
}

TEST(AttentionAccuracyTest, OfTheAbsorbedFormIsThatOfTheExpandedOne) {
  const AttentionCase model = MakeCaseWithOpenHeads("mla", 64);
  const RowBatch<Bf16> rows = MakeRows(6, 200, model.facts.hidden_size);
  Executor executor(2);
  const auto pipeline = MakePipeline(model, BestKernels(), executor);
  const RowBatch<Bf16> expanded =
      testing::RunStep(*pipeline, SessionId(1), rows.rows(), 0, 200, 200);
  const RowBatch<Bf16> absorbed = testing::RunStep(*pipeline, SessionId(2), rows.rows(), 0, 200, 0);
  double max_error = 0, max_value = 0;
  bool differs = false;
  for (int64_t t = 0; t < 200; ++t) {
    for (int64_t c = 0; c < rows.width(); ++c) {
      const double a = ToFloat(expanded.rows().row(t)[c]);
      const double b = ToFloat(absorbed.rows().row(t)[c]);
      max_error = std::max(max_error, std::abs(a - b));
      max_value = std::max(max_value, std::abs(a));
      differs = differs || a != b;
    }
  }
  EXPECT_TRUE(differs);  // else the role was ignored
  EXPECT_LE(max_error, 0.03 * max_value);
}

// Keys that only one query direction meets, values that say which key they belong to: a wrong
// pairing of positions gives another integer.
TEST(AttentionAccuracyTest, PairsEveryKeyWithItsOwnValue) {
  constexpr int64_t kBlock = 64;
  constexpr int64_t kKeys = 200;
  const SpanShape shape{.key_width = 48, .value_width = 24, .key_block = kBlock, .scale = 1.0f};
  for (const Tier tier : HostTiers()) {
    const Kernels& kernels = *FindKernels(tier);
    for (int64_t target = 0; target < kKeys; target += 7) {
      Array<Bf16> keys(static_cast<size_t>(shape.key_block_elements()));
      Array<Bf16> values(static_cast<size_t>(shape.value_block_elements()));
      std::vector<float> acc(24);
      float m = 0, l = 0;
      SpanStates states{MutableFloatRows(acc.data(), 1, 24), absl::MakeSpan(&m, 1),
                        absl::MakeSpan(&l, 1)};
      ClearStates(states);
      std::vector<Bf16> query(48);
      query[static_cast<size_t>(target % 40)] = ToBf16(16.0f);
      query[static_cast<size_t>(40 + target / 40)] = ToBf16(16.0f);
      QueryTile tile;
      tile.Prepare(kernels, Bf16Rows(query.data(), 1, 48));
      SpanScratch scratch;
      for (int64_t begin = 0; begin < kKeys; begin += kBlock) {
        for (int64_t t = 0; t < kBlock; ++t) {
          const int64_t position = begin + t;
          std::vector<Bf16> key(48), value(24);
          key[static_cast<size_t>(position % 40)] = ToBf16(4.0f);
          // Two marks, as digits of the position: only the target has both of the query's.
          key[static_cast<size_t>(40 + position / 40)] = ToBf16(4.0f);
          for (int64_t i = 0; i < 24; ++i) {
            value[static_cast<size_t>(i)] = ToBf16(static_cast<float>(position + 1 + (i % 2)));
          }
          StoreKey(kernels.pair_order, shape, key.data(), t, keys.data());
          StoreValue(kernels.pair_order, shape, position < kKeys ? value.data() : nullptr, t,
                     values.data());
        }
        const VisibleKeys visible{0, static_cast<int32_t>(std::min(kBlock, kKeys - begin))};
        AccumulateKeyBlock(kernels, shape, tile, absl::MakeConstSpan(&visible, 1), keys.data(),
                           values.data(), nullptr, scratch, states);
      }
      // Scores 128 and at most 64: every other key weighs nothing in fp32.
      EXPECT_EQ(acc[0] / l, static_cast<float>(target + 1)) << TierName(tier);
      EXPECT_EQ(acc[1] / l, static_cast<float>(target + 2)) << TierName(tier);
    }
  }
}

}  // namespace
}  // namespace moebius
