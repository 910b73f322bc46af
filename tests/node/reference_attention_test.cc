// SPDX-License-Identifier: Apache-2.0
#include "node/reference_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/base/executor.h"
#include "moebius/tensor/buffer.h"

namespace moebius {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kKeyDim = 3, kValueDim = 2;

AttentionConfig SmallConfig() {
  AttentionConfig config;
  config.num_query_heads = kHeads;
  config.num_kv_heads = kKvHeads;
  config.qk_head_dim = kKeyDim;
  config.v_head_dim = kValueDim;
  config.softmax_scale = 0.5f;
  return config;
}

// Values that say where they come from: 1000 · head + position, and its negative.
void PutPosition(ReferenceKvCache& cache, int64_t position, float key) {
  cache.Grow(position + 1);
  for (int64_t head = 0; head < kKvHeads; ++head) {
    const std::vector<float> keys = {key, 0.0f, 0.0f};
    const float value = static_cast<float>(1000 * head + position);
    cache.Put(position, head, keys, std::vector<float>{value, -value});
  }
}

RowBatch<float> Attend(const ReferenceKvCache& cache, int64_t position_begin, int64_t num_rows,
                       float query, int num_threads, int64_t window = 0) {
  RowBatch<float> queries(num_rows, kHeads * kKeyDim), out(num_rows, kHeads * kValueDim);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t head = 0; head < kHeads; ++head) queries.rows().row(row)[head * kKeyDim] = query;
  }
  Executor executor(num_threads);
  executor.Run([&] {
    AttendReference(executor, SmallConfig(), cache, position_begin, /*prompt_end=*/0, window,
                    queries.rows(), out.rows());
  });
  return out;
}

TEST(ReferenceAttentionTest, AveragesAllEarlierValuesOfTheHeadWhenKeysAreEqual) {
  constexpr int64_t kRows = 300;  // three key blocks, the last one partly filled
  ReferenceKvCache cache(SmallConfig());
  for (int64_t position = 0; position < kRows; ++position) PutPosition(cache, position, 1.0f);
  const RowBatch<float> out = Attend(cache, 0, kRows, 1.0f, 2);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t head = 0; head < kHeads; ++head) {
      const float mean = 1000.0f * static_cast<float>(head / 2) + static_cast<float>(row) / 2;
      EXPECT_FLOAT_EQ(out.rows().row(row)[head * kValueDim], mean) << row << ", head " << head;
      EXPECT_FLOAT_EQ(out.rows().row(row)[head * kValueDim + 1], -mean);
    }
  }
}

TEST(ReferenceAttentionTest, AveragesTheValuesOfItsWindowWhenKeysAreEqual) {
  constexpr int64_t kRows = 300;
  ReferenceKvCache cache(SmallConfig());
  for (int64_t position = 0; position < kRows; ++position) PutPosition(cache, position, 1.0f);
  for (const int64_t window : {1, 3, 128, 129, 1000}) {
    const RowBatch<float> out = Attend(cache, 0, kRows, 1.0f, 2, window);
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t first = std::max<int64_t>(0, row - window + 1);
      EXPECT_FLOAT_EQ(out.rows().row(row)[0], static_cast<float>(first + row) / 2)
          << "row " << row << ", window " << window;
    }
  }
}

TEST(ReferenceAttentionTest, WeighsByTheExponentialOfTheScaledScore) {
  ReferenceKvCache cache(SmallConfig());
  PutPosition(cache, 0, 0.0f);
  PutPosition(cache, 1, 1.0f);
  const RowBatch<float> out = Attend(cache, 1, 1, 2.0f, 1);  // scores 0 and 2 · 1 · 0.5
  EXPECT_FLOAT_EQ(out.rows().row(0)[0], std::exp(1.0f) / (1.0f + std::exp(1.0f)));
}

TEST(ReferenceAttentionTest, GivesARowTheSameBitsAloneAndAmongOthers) {
  ReferenceKvCache cache(SmallConfig());
  for (int64_t position = 0; position < 150; ++position) {
    PutPosition(cache, position, std::sin(static_cast<float>(position)));
  }
  const RowBatch<float> all = Attend(cache, 0, 150, 1.5f, 2);
  for (const int64_t row : {0, 7, 127, 128, 149}) {
    const RowBatch<float> alone = Attend(cache, row, 1, 1.5f, 1);
    for (int64_t i = 0; i < kHeads * kValueDim; ++i) {
      EXPECT_EQ(alone.rows().row(0)[i], all.rows().row(row)[i]) << "row " << row;
    }
  }
}

}  // namespace
}  // namespace moebius
