// SPDX-License-Identifier: Apache-2.0
#include "attention_service/kv_layout.h"

#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/attention_service/attention_fixture.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::MakeAttentionCase;

// Memory of foreign keys is used again and is never cleared before: what it held is gone.
TEST(KvLayoutTest, WritingABlockMakesThePositionsBehindItsRowsZero) {
  constexpr int64_t kPresent = 3;
  for (const std::string name : {"gqa", "mla"}) {
    const AttentionCase model = MakeAttentionCase(name, 64);
    for (const PairOrder order : {PairOrder::kAdjacent, PairOrder::kWithinChain}) {
      const KvLayout layout(model.facts, order);
      const Bf16 nan = ToBf16(std::numeric_limits<float>::quiet_NaN());
      std::vector<Bf16> block(static_cast<size_t>(layout.layer_elements()), nan);
      RowBatch<Bf16> rows(kPresent, layout.row_width());
      for (int64_t r = 0; r < kPresent; ++r) {
        for (int64_t c = 0; c < rows.width(); ++c) {
          rows.rows().row(r)[c] = ToBf16(static_cast<float>(1 + (r * 5 + c) % 50));
        }
      }
      layout.WriteBlock(rows.rows(), layout.all_heads(), block.data());
      RowBatch<Bf16> read(model.facts.key_block, layout.row_width());
      layout.ReadRows(block.data(), 0, layout.all_heads(), read.rows());
      for (int64_t r = 0; r < model.facts.key_block; ++r) {
        for (int64_t c = 0; c < rows.width(); ++c) {
          const uint16_t expected = r < kPresent ? rows.rows().row(r)[c].bits : 0;
          ASSERT_EQ(read.rows().row(r)[c].bits, expected) << name << ", row " << r << ", " << c;
        }
      }
    }
  }
}

}  // namespace
}  // namespace moebius
