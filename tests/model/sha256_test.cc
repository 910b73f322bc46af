// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/sha256.h"

#include "gtest/gtest.h"

namespace moebius {
namespace {

std::string HashInPieces(const std::string& text, size_t piece) {
  Sha256 hash;
  for (size_t i = 0; i < text.size(); i += piece) {
    const std::string part = text.substr(i, piece);
    hash.Update(part.data(), part.size());
  }
  return hash.HexDigest();
}

// FIPS 180-4's examples, and a million letters.
TEST(Sha256Test, GivesThePublishedDigests) {
  EXPECT_EQ(Sha256().HexDigest(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HashInPieces("abc", 3),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HashInPieces("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 7),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(HashInPieces(std::string(1'000'000, 'a'), 9973),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, DoesNotDependOnThePieces) {
  const std::string text(257, 'x');
  for (const size_t piece : {1, 55, 56, 63, 64, 65, 128, 257}) {
    EXPECT_EQ(HashInPieces(text, piece), HashInPieces(text, 3)) << piece;
  }
}

}  // namespace
}  // namespace moebius
