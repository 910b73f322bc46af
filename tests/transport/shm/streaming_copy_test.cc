// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/streaming_copy.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace moebius {
namespace {

constexpr uint8_t kUntouched = 0xee;

TEST(StreamingCopyTest, CopiesEverySizeFromAndToEveryAlignmentAndNothingBeside) {
  for (const size_t size : {0, 1, 63, 64, 4096, 16383, 16384, 16385, 16447, 65536, 100001}) {
    for (const size_t from : {0, 1, 16, 63}) {
      for (const size_t to : {0, 1, 15, 16, 63}) {
        // Of the exact sizes, so that the address sanitizer sees every byte too far.
        std::vector<uint8_t> source(from + size);
        for (size_t i = 0; i < source.size(); ++i)
          source[i] = static_cast<uint8_t>(i * 7 + i / 251);
        std::vector<uint8_t> target(to + size, kUntouched);
        StreamingCopy(target.data() + to, source.data() + from, size);
        for (size_t i = 0; i < to; ++i) ASSERT_EQ(target[i], kUntouched);
        for (size_t i = 0; i < size; ++i) {
          ASSERT_EQ(target[to + i], source[from + i]) << size << " " << from << " " << to;
        }
      }
    }
  }
}

}  // namespace
}  // namespace moebius
