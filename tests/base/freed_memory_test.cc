// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/freed_memory.h"

#include <sys/resource.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

// A sanitizer brings its own allocator.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace moebius {
namespace {

// Page faults of this thread while messages come and go, four at a time, each read in slices, as
// gRPC does, and put together.
int64_t FaultsOf(int num_rounds) {
  constexpr size_t kSliceBytes = 8 << 10, kMessageBytes = 1 << 20;
  struct rusage before = {}, after = {};
  getrusage(RUSAGE_THREAD, &before);
  for (int round = 0; round < num_rounds; ++round) {
    std::vector<std::unique_ptr<char[]>> memory;
    const auto take = [&](size_t size) {
      memory.emplace_back(new char[size]);
      std::memset(memory.back().get(), round, size);
    };
    for (int message = 0; message < 4; ++message) {
      for (size_t at = 0; at < kMessageBytes; at += kSliceBytes) take(kSliceBytes);
      take(kMessageBytes);
    }
  }
  getrusage(RUSAGE_THREAD, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST(FreedMemoryTest, AMessagesMemoryServesTheNextWithoutPageFaults) {
  KeepFreedMemory();
  // In an arena of its own, as a thread of gRPC has.
  std::thread([] {
    FaultsOf(2);
    EXPECT_LT(FaultsOf(100), 200);  // with glibc's defaults tens of thousands
  }).join();
}

}  // namespace
}  // namespace moebius
#endif
