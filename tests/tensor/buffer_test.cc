// SPDX-License-Identifier: Apache-2.0
#include "moebius/tensor/buffer.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "gtest/gtest.h"

namespace moebius {
namespace {

bool IsAligned(const void* data, uintptr_t to) {
  return reinterpret_cast<uintptr_t>(data) % to == 0;
}

TEST(BufferTest, IsZeroedAndAlignedToACacheLine) {
  for (const size_t size : {1, 63, 64, 65, 4097}) {
    const Buffer buffer(size);
    ASSERT_EQ(buffer.size_bytes(), size);
    EXPECT_TRUE(IsAligned(buffer.data(), 64));
    for (size_t i = 0; i < size; ++i) ASSERT_EQ(static_cast<const uint8_t*>(buffer.data())[i], 0);
  }
}

TEST(BufferTest, LargeOnesAreAlignedForHugePages) {
  const Buffer buffer((size_t{2} << 20) + 1);
  EXPECT_TRUE(IsAligned(buffer.data(), size_t{2} << 20));
  EXPECT_EQ(static_cast<const uint8_t*>(buffer.data())[size_t{2} << 20], 0);
}

TEST(BufferTest, EmptyOnesHaveNoMemory) {
  EXPECT_EQ(Buffer().data(), nullptr);
  EXPECT_EQ(Buffer(0).data(), nullptr);
  EXPECT_EQ(Buffer(0).size_bytes(), 0u);
}

TEST(BufferTest, MoveTakesTheMemoryAndLeavesNothing) {
  Buffer source(100);
  std::memset(source.data(), 7, 100);
  void* const data = source.data();
  Buffer target(50);
  target = std::move(source);
  EXPECT_EQ(target.data(), data);
  EXPECT_EQ(target.size_bytes(), 100u);
  EXPECT_EQ(static_cast<uint8_t*>(target.data())[99], 7);
  EXPECT_EQ(source.data(), nullptr);
  EXPECT_EQ(source.size_bytes(), 0u);
}

TEST(BufferTest, SelfMoveKeepsTheMemory) {
  Buffer buffer(10);
  Buffer& same = buffer;
  buffer = std::move(same);
  EXPECT_EQ(buffer.size_bytes(), 10u);
  EXPECT_NE(buffer.data(), nullptr);
}

TEST(ArrayTest, KeepsItsMemoryWhenItShrinks) {
  Array<int32_t> array(100);
  const int32_t* const data = array.data();
  array[5] = 17;
  array.Resize(10);
  EXPECT_EQ(array.size(), 10u);
  EXPECT_EQ(array.data(), data);
  EXPECT_EQ(array[5], 17);
  array.Resize(100);
  EXPECT_EQ(array.data(), data);
}

TEST(ArrayTest, GrowsToZeros) {
  Array<float> array;
  EXPECT_EQ(array.size(), 0u);
  array.Resize(1000);
  for (const float value : array.span()) ASSERT_EQ(value, 0.0f);
}

TEST(ArrayTest, ClearLeavesAnEmptySpan) {
  Array<float> array(4);
  array.Clear();
  EXPECT_TRUE(array.span().empty());
}

TEST(RowBatchTest, OwnsRowsOfItsShape) {
  RowBatch<float> batch(3, 5);
  EXPECT_EQ(batch.num_rows(), 3);
  EXPECT_EQ(batch.width(), 5);
  for (int64_t row = 0; row < 3; ++row) batch.rows().row(row)[4] = static_cast<float>(row);
  const RowBatch<float>& read_only = batch;
  EXPECT_EQ(read_only.rows().row(2)[4], 2.0f);
  EXPECT_EQ(read_only.rows().stride, 5);
}

TEST(RowBatchTest, ResetKeepsMemoryThatIsLargeEnough) {
  RowBatch<float> batch(8, 16);
  const float* const data = batch.rows().data;
  batch.Reset(2, 64);
  EXPECT_EQ(batch.rows().data, data);
  EXPECT_EQ(batch.rows().num_rows, 2);
  EXPECT_EQ(batch.rows().width, 64);
  batch.Reset(0, 64);
  EXPECT_EQ(batch.num_rows(), 0);
}

}  // namespace
}  // namespace moebius
