// SPDX-License-Identifier: Apache-2.0
#include "moebius/tensor/rows.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace moebius {
namespace {

// 4 rows of 3 values in memory rows of 5: the value at (r, c) is 5r + c.
class RowsTest : public testing::Test {
 protected:
  RowsTest() { std::iota(memory_.begin(), memory_.end(), 0.0f); }
  std::vector<float> memory_ = std::vector<float>(20);
  MutableFloatRows rows_{memory_.data(), 4, 3, 5};
};

TEST_F(RowsTest, StepsByItsStride) {
  EXPECT_EQ(rows_.row(0)[0], 0.0f);
  EXPECT_EQ(rows_.row(3)[2], 17.0f);
  EXPECT_EQ(rows_.span(1).size(), 3u);
  EXPECT_EQ(rows_.span(1)[2], 7.0f);
}

TEST_F(RowsTest, SliceKeepsWidthAndStride) {
  const MutableFloatRows slice = rows_.Slice(1, 3);
  EXPECT_EQ(slice.num_rows, 2);
  EXPECT_EQ(slice.width, 3);
  EXPECT_EQ(slice.row(1)[0], 10.0f);
  EXPECT_EQ(rows_.Slice(4, 4).num_rows, 0);
}

TEST_F(RowsTest, ColumnsAreAViewOfEveryRow) {
  const MutableFloatRows columns = rows_.Columns(1, 3);
  EXPECT_EQ(columns.num_rows, 4);
  EXPECT_EQ(columns.width, 2);
  EXPECT_EQ(columns.row(2)[1], 12.0f);
  columns.row(2)[1] = -1.0f;
  EXPECT_EQ(memory_[12], -1.0f);
}

TEST_F(RowsTest, AMutableViewConvertsToAReadOnlyOne) {
  const FloatRows read_only = rows_;
  EXPECT_EQ(read_only.row(1), rows_.row(1));
  static_assert(!std::is_convertible_v<FloatRows, MutableFloatRows>);
}

TEST_F(RowsTest, ZeroRowsNeedNoMemory) {
  const Bf16Rows none(nullptr, 0, 8);
  EXPECT_EQ(none.Slice(0, 0).num_rows, 0);
  EXPECT_EQ(FloatRows().num_rows, 0);
}

#ifdef MOEBIUS_CHECKS
TEST(RowsDeathTest, RefusesAnIndexOutside) {
  float memory[4] = {};
  const FloatRows rows(memory, 2, 2);
  EXPECT_DEATH(rows.row(2), "index >= 0 && index < num_rows");
  EXPECT_DEATH(rows.row(-1), "index >= 0 && index < num_rows");
  EXPECT_DEATH(rows.Slice(1, 3), "end <= num_rows");
  EXPECT_DEATH(rows.Columns(2, 1), "begin <= end");
}
#endif

}  // namespace
}  // namespace moebius
