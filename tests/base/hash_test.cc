// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/hash.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace moebius {
namespace {

std::vector<uint8_t> Pattern(size_t size) {
  std::vector<uint8_t> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(i * 131 + 7);
  return bytes;
}

struct Vector {
  size_t size;
  uint64_t hash;
};

// XXH3-64 with seed 0 of Pattern(size), from an independent build of the algorithm. The sizes lie
// on both sides of each of its branches (3, 8, 16, 128 and 240 bytes, one block of 1,024).
constexpr Vector kVectors[] = {
    {0, 0x2d06800538d394c2},    {1, 0x4c5cca45d0f4811f},    {3, 0x6e3e2670e61106ac},
    {4, 0x5c4c63133443d03f},    {8, 0xf9fd4dd0b04d78f5},    {9, 0x7c20df9712c26edf},
    {16, 0x86abf6baccea0858},   {17, 0xb58bf5dc5022d071},   {64, 0x1291d2d4042330dd},
    {128, 0x10d17f72c0ccba41},  {129, 0x1648bdc3db49d1a2},  {240, 0xb6cfaf343fab81e6},
    {241, 0x956cae592c67279e},  {1024, 0x70bd377d9574f4bb}, {1025, 0x66c4487c41e127a7},
    {5000, 0xe4007929540f095c},
};

TEST(Hash64Test, IsXxh3WithSeedZero) {
  for (const Vector& vector : kVectors) {
    const std::vector<uint8_t> bytes = Pattern(vector.size);
    EXPECT_EQ(Hash64(bytes.data(), bytes.size()), vector.hash) << vector.size << " bytes";
  }
  EXPECT_EQ(Hash64("moebius", 7), 0x3f758e771808fb13);
}

TEST(StreamingHash64Test, GivesTheSameForAnyCutIntoPieces) {
  for (const Vector& vector : kVectors) {
    const std::vector<uint8_t> bytes = Pattern(vector.size);
    for (const size_t piece : {1, 3, 64, 255, 4096}) {
      StreamingHash64 hash;
      for (size_t begin = 0; begin < bytes.size(); begin += piece) {
        hash.Update(bytes.data() + begin, std::min(piece, bytes.size() - begin));
      }
      EXPECT_EQ(hash.Digest(), vector.hash) << vector.size << " bytes in pieces of " << piece;
    }
  }
}

TEST(StreamingHash64Test, DigestDoesNotEndTheStream) {
  StreamingHash64 hash;
  hash.Update("moe", 3);
  EXPECT_EQ(hash.Digest(), Hash64("moe", 3));
  hash.Update("bius", 4);
  EXPECT_EQ(hash.Digest(), Hash64("moebius", 7));
}

TEST(StreamingHash64Test, MovesWithItsState) {
  StreamingHash64 hash;
  hash.Update("moe", 3);
  StreamingHash64 moved = std::move(hash);
  moved.Update("bius", 4);
  EXPECT_EQ(moved.Digest(), 0x3f758e771808fb13);
}

TEST(FormatHashTest, PrintsLeadingZeros) {
  EXPECT_EQ(FormatHash64(0xab), "00000000000000ab");
  EXPECT_EQ(FormatHash64(0xFEDCBA9876543210), "fedcba9876543210");
  EXPECT_EQ(FormatHash32(0xFEDCBA9800000001), "00000001");
}

}  // namespace
}  // namespace moebius
