// SPDX-License-Identifier: Apache-2.0
#include "moebius/tensor/weight_arena.h"

#include <algorithm>
#include <utility>

#include "gtest/gtest.h"

#include "moebius/tensor/buffer.h"

namespace moebius {
namespace {

TEST(WeightArenaTest, IsZeroAlignedAndAsLargeAsAskedFor) {
  for (const int64_t size : {int64_t{1}, int64_t{4097}, kHugePageBytes, 3 * kHugePageBytes + 64}) {
    const auto arena = WeightArena::Make(size);
    ASSERT_TRUE(arena.ok()) << arena.status();
    const absl::Span<uint8_t> bytes = (*arena)->bytes();
    EXPECT_EQ(bytes.size(), static_cast<size_t>(size));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % kHugePageBytes, uintptr_t{0});
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; }));
    std::fill(bytes.begin(), bytes.end(), uint8_t{7});
    (*arena)->Clear();
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; }));
  }
  ASSERT_TRUE(WeightArena::Make(0).ok());
}

TEST(WeightArenaTest, CountsItsOwnHugePagesOnly) {
  const auto other = *WeightArena::Make(4 * kHugePageBytes);
  std::fill(other->bytes().begin(), other->bytes().end(), uint8_t{1});
  const auto arena = *WeightArena::Make(4 * kHugePageBytes + 64);
  EXPECT_EQ(arena->huge_pages().asked_bytes, 4 * kHugePageBytes);
  EXPECT_EQ(arena->huge_pages().got_bytes, 0) << "nothing was written yet";
  std::fill(arena->bytes().begin(), arena->bytes().end(), uint8_t{1});
  // What the kernel gave is the host's affair; more than was asked for would be a neighbour's.
  EXPECT_LE(arena->huge_pages().got_bytes, 4 * kHugePageBytes);
  EXPECT_EQ(arena->huge_pages().got_bytes % kHugePageBytes, 0);
}

TEST(WeightArenaTest, RefusesWhatNoHostHas) {
  const auto arena = WeightArena::Make(int64_t{1} << 55);
  EXPECT_TRUE(absl::IsResourceExhausted(arena.status())) << arena.status();
}

TEST(ArenaCursorTest, HandsOutAlignedPieces) {
  const auto arena = *WeightArena::Make(256);
  ArenaCursor cursor(arena->bytes());
  EXPECT_EQ(cursor.Take(65).data(), arena->bytes().data());
  EXPECT_EQ(cursor.Take(64).data(), arena->bytes().data() + 128);
  EXPECT_EQ(ArenaCursor::Taken(65), 128);
  EXPECT_DEATH(cursor.Take(65), "vs");
}

TEST(BorrowedBufferTest, LeavesTheBytesToTheirOwner) {
  const auto arena = *WeightArena::Make(128);
  arena->bytes()[64] = 9;
  {
    Buffer view = Buffer::Borrow(arena->Range(64, 64));
    EXPECT_EQ(view.size_bytes(), 64u);
    Buffer moved = std::move(view);
    moved = Buffer(64);  // an own one in its place
    Buffer again = Buffer::Borrow(arena->Range(64, 64));
    EXPECT_EQ(static_cast<const uint8_t*>(again.data())[0], 9);
  }
  EXPECT_EQ(arena->bytes()[64], 9);
}

}  // namespace
}  // namespace moebius
