// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/spare_memory.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace moebius {
namespace {

bool IsAligned(const void* block) {
  return reinterpret_cast<uintptr_t>(block) % kSpareBlockAlignment == 0;
}

TEST(SpareMemoryTest, GivesABlockAgainForEverySizeOfItsClass) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{64}, size_t{65}, size_t{100}, size_t{4097},
                            kMaxSpareBlockBytes}) {
    void* const first = TakeSpareBlock(size);
    EXPECT_TRUE(IsAligned(first)) << size;
    std::memset(first, 0x5a, size);
    PutSpareBlock(first, size);
    const uint64_t fresh = GetSpareMemoryFigures().num_fresh;
    const uint64_t reused = GetSpareMemoryFigures().num_reused;
    void* const again = TakeSpareBlock(size);
    EXPECT_EQ(again, first) << size;
    std::memset(again, 0x5a, size);
    EXPECT_EQ(GetSpareMemoryFigures().num_fresh, fresh);
    EXPECT_EQ(GetSpareMemoryFigures().num_reused, reused + 1);
    PutSpareBlock(again, size);
  }
  // 65 and 128 bytes are of one class, 64 and 129 of others.
  void* const block = TakeSpareBlock(65);
  PutSpareBlock(block, 65);
  void* const smaller = TakeSpareBlock(64);
  void* const larger = TakeSpareBlock(129);
  void* const same = TakeSpareBlock(128);
  EXPECT_NE(smaller, block);
  EXPECT_NE(larger, block);
  EXPECT_EQ(same, block);
  PutSpareBlock(smaller, 64);
  PutSpareBlock(larger, 129);
  PutSpareBlock(same, 128);
}

TEST(SpareMemoryTest, BlocksInUseAreApart) {
  std::set<uintptr_t> begins;
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) {
    blocks.push_back(TakeSpareBlock(200));
    begins.insert(reinterpret_cast<uintptr_t>(blocks.back()));
  }
  EXPECT_EQ(begins.size(), blocks.size());
  uintptr_t previous = 0;
  for (const uintptr_t begin : begins) {
    if (previous != 0) EXPECT_GE(begin - previous, 256u);
    previous = begin;
  }
  for (void* const block : blocks) PutSpareBlock(block, 200);
}

TEST(SpareMemoryTest, KeepsNoMoreThanItsLimit) {
  constexpr size_t kSize = 16 << 10;
  std::vector<void*> blocks;
  for (size_t i = 0; i < 3 * kMaxIdleBytesPerClass / kSize; ++i) {
    blocks.push_back(TakeSpareBlock(kSize));
  }
  const uint64_t before = GetSpareMemoryFigures().idle_bytes;
  for (void* const block : blocks) PutSpareBlock(block, kSize);
  // All of this class were in use, so that it grew by exactly what it may keep.
  EXPECT_EQ(GetSpareMemoryFigures().idle_bytes - before, kMaxIdleBytesPerClass);
}

TEST(SpareMemoryTest, LargeBlocksAreNotKept) {
  const uint64_t idle = GetSpareMemoryFigures().idle_bytes;
  void* const block = TakeSpareBlock(kMaxSpareBlockBytes + 1);
  EXPECT_TRUE(IsAligned(block));
  PutSpareBlock(block, kMaxSpareBlockBytes + 1);
  EXPECT_EQ(GetSpareMemoryFigures().idle_bytes, idle);
}

TEST(SpareMemoryTest, ContainersLiveInBlocks) {
  SpareDeque<int> queue;
  SpareMap<int, int> map;
  SpareSet<int> set;
  const auto pass = [&] {
    for (int i = 0; i < 1000; ++i) {
      queue.push_back(i);
      map[i % 7] = i;
      set.insert(i % 5);
      EXPECT_EQ(queue.front(), i);
      queue.pop_front();
      map.erase(i % 7);
      set.erase(i % 5);
    }
  };
  pass();
  const uint64_t fresh = GetSpareMemoryFigures().num_fresh;
  const uint64_t reused = GetSpareMemoryFigures().num_reused;
  pass();
  EXPECT_EQ(GetSpareMemoryFigures().num_fresh, fresh);
  EXPECT_GT(GetSpareMemoryFigures().num_reused, reused + 1000);
  const auto shared = std::allocate_shared<std::pair<int, int>>(SpareAllocator<char>(), 3, 4);
  EXPECT_EQ(shared->second, 4);
}

TEST(SpareMemoryTest, BlocksMayComeBackOnOtherThreads) {
  constexpr int kThreads = 4;
  constexpr int kBlocks = 500;
  std::vector<std::vector<void*>> given(kThreads);
  for (const bool takes : {true, false}) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        // What another thread took.
        std::vector<void*>& blocks = given[static_cast<size_t>((thread + (takes ? 0 : 1)) % 4)];
        for (int i = 0; i < kBlocks; ++i) {
          if (takes) {
            blocks.push_back(TakeSpareBlock(300));
            std::memset(blocks.back(), thread, 300);
          } else {
            PutSpareBlock(blocks[static_cast<size_t>(i)], 300);
          }
          void* const own = TakeSpareBlock(300);
          std::memset(own, 0xff, 300);
          PutSpareBlock(own, 300);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (!takes) continue;
    for (int thread = 0; thread < kThreads; ++thread) {
      for (void* const block : given[static_cast<size_t>(thread)]) {
        EXPECT_EQ(static_cast<uint8_t*>(block)[299], thread);
      }
    }
  }
}

}  // namespace
}  // namespace moebius
