// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/frame/buffer_pool.h"

#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace moebius {
namespace {

constexpr size_t kSize = 64 << 10;

// Filled and shared, as a message is.
SharedBytes Filled(BufferPool& pool, size_t size, uint8_t value) {
  BytesBuilder builder = pool.Make(size);
  if (size > 0) std::memset(builder.data(), value, size);
  return std::move(builder).Share();
}

TEST(BufferPoolTest, WhatNobodyUsesAnyMoreIsFilledAgain) {
  BufferPool pool(1 << 20);
  const uint8_t* first = nullptr;
  {
    const SharedBytes bytes = Filled(pool, kSize, 1);
    first = bytes.data();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % kBytesAlignment, 0u);
    EXPECT_EQ(pool.figures().idle_bytes, 0u);
  }
  EXPECT_EQ(pool.figures().idle_bytes, kSize);
  const SharedBytes again = Filled(pool, kSize, 2);
  EXPECT_EQ(again.data(), first);
  EXPECT_EQ(again.size(), kSize);
  const BufferPoolFigures figures = pool.figures();
  EXPECT_EQ(figures.num_fresh, 1u);
  EXPECT_EQ(figures.num_reused, 1u);
  EXPECT_EQ(figures.idle_bytes, 0u);
}

TEST(BufferPoolTest, WhatSomebodyStillUsesIsLeftAlone) {
  BufferPool pool(1 << 20);
  std::optional<SharedBytes> slice = Filled(pool, kSize, 1).Slice(kSize - 10, kSize);
  const SharedBytes other = Filled(pool, kSize, 2);
  for (const uint8_t byte : slice->span()) EXPECT_EQ(byte, 1);
  EXPECT_EQ(pool.figures().num_fresh, 2u);
  slice.reset();
  EXPECT_EQ(pool.figures().idle_bytes, kSize);
}

TEST(BufferPoolTest, ABufferThatWasNeverSharedComesBackToo) {
  BufferPool pool(1 << 20);
  { const BytesBuilder builder = pool.Make(kSize); }
  EXPECT_EQ(pool.figures().idle_bytes, kSize);
}

TEST(BufferPoolTest, NearlyEqualSizesServeOneAnotherAndOthersDoNot) {
  BufferPool pool(1 << 20);
  Filled(pool, 100000, 1);
  Filled(pool, 110000, 2);
  EXPECT_EQ(pool.figures().num_reused, 1u);
  // A quarter more than was asked for at most.
  Filled(pool, 80000, 3);
  EXPECT_EQ(pool.figures().num_reused, 1u);
  for (size_t size = 16 << 10; size < 200000; size += 777) {
    BufferPool fresh(1 << 20);
    Filled(fresh, size, 4);
    EXPECT_GE(fresh.figures().idle_bytes, size);
    EXPECT_LE(fresh.figures().idle_bytes, size + size / 4);
  }
}

TEST(BufferPoolTest, SmallBuffersAreNotKept) {
  BufferPool pool(1 << 20);
  Filled(pool, 0, 0);
  Filled(pool, 1, 1);
  Filled(pool, 4096, 1);
  const BufferPoolFigures figures = pool.figures();
  EXPECT_EQ(figures.num_fresh + figures.num_reused + figures.idle_bytes, 0u);
}

TEST(BufferPoolTest, KeepsNoMoreThanItsLimitAndForgetsTheLongestIdle) {
  BufferPool pool(4 * kSize);
  std::vector<SharedBytes> used;
  for (int i = 0; i < 6; ++i) used.push_back(Filled(pool, kSize, 1));
  const uint8_t* const last = used.back().data();
  used.clear();
  BufferPoolFigures figures = pool.figures();
  EXPECT_EQ(figures.idle_bytes, 4 * kSize);
  EXPECT_EQ(figures.num_dropped, 2u);
  // The one that came last may still be in the caches.
  EXPECT_EQ(Filled(pool, kSize, 2).data(), last);
  // One of another size takes the room of the oldest two of this one.
  Filled(pool, 2 * kSize, 3);
  figures = pool.figures();
  EXPECT_EQ(figures.idle_bytes, 4 * kSize);
  EXPECT_EQ(figures.num_dropped, 4u);
}

TEST(BufferPoolTest, ABufferAboveTheLimitIsGivenBackAtOnce) {
  BufferPool pool(kSize);
  Filled(pool, kSize, 1);
  Filled(pool, 2 * kSize, 1);
  const BufferPoolFigures figures = pool.figures();
  EXPECT_EQ(figures.idle_bytes, kSize);
  EXPECT_EQ(figures.num_dropped, 1u);
  BufferPool none(0);
  Filled(none, kSize, 1);
  EXPECT_EQ(none.figures().idle_bytes, 0u);
}

TEST(BufferPoolTest, WhatWasIdleForAWholeAgeIsGivenBack) {
  BufferPool pool(1 << 20);
  Filled(pool, kSize, 1);
  pool.Age();
  EXPECT_EQ(pool.figures().idle_bytes, kSize);
  Filled(pool, kSize, 1);  // used in between
  Filled(pool, 2 * kSize, 1);
  pool.Age();
  EXPECT_EQ(pool.figures().idle_bytes, 3 * kSize);
  pool.Age();
  EXPECT_EQ(pool.figures().idle_bytes, 0u);
  EXPECT_EQ(pool.figures().num_dropped, 2u);
  Filled(pool, kSize, 1);
  pool.Clear();
  EXPECT_EQ(pool.figures().idle_bytes, 0u);
}

TEST(BufferPoolTest, BuffersOutliveThePool) {
  auto pool = std::make_unique<BufferPool>(1 << 20);
  Filled(*pool, kSize, 1);
  std::optional<SharedBytes> bytes = Filled(*pool, 2 * kSize, 7);
  pool.reset();
  EXPECT_EQ(bytes->span().back(), 7);
  bytes.reset();
}

TEST(BufferPoolTest, ManyThreadsNeverShareABuffer) {
  BufferPool pool(3 * kSize);
  std::vector<std::thread> threads;
  for (uint8_t value = 1; value <= 4; ++value) {
    threads.emplace_back([&pool, value] {
      for (int i = 0; i < 200; ++i) {
        const SharedBytes bytes = Filled(pool, kSize, value);
        for (size_t at = 0; at < kSize; at += 4096) ASSERT_EQ(bytes.data()[at], value);
        if (i % 50 == 0) pool.Age();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const BufferPoolFigures figures = pool.figures();
  EXPECT_EQ(figures.num_fresh + figures.num_reused, 800u);
  EXPECT_LE(figures.idle_bytes, 3 * kSize);
  EXPECT_EQ(figures.num_fresh - figures.num_dropped, figures.idle_bytes / kSize);
}

}  // namespace
}  // namespace moebius
