// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/tokenizer.h"

#include "gtest/gtest.h"

namespace moebius {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

std::unique_ptr<Tokenizer> DemoTokenizer() {
  ModelConfig config;
  config.vocab_size = 259;
  config.bos_token_id = 256;
  config.eos_token_ids = {257};
  return MakeByteTokenizer(config);
}

std::vector<std::string> Pieces(const std::vector<int64_t>& ids) {
  const std::unique_ptr<Tokenizer> tokenizer = DemoTokenizer();
  const std::unique_ptr<StreamingDecoder> decoder = tokenizer->MakeDecoder();
  std::vector<std::string> pieces;
  for (const int64_t id : ids) pieces.push_back(decoder->Append(id));
  pieces.push_back(decoder->Finish());
  return pieces;
}

TEST(ByteTokenizerTest, EncodesEveryByteAsItself) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  const std::vector<int64_t> ids = DemoTokenizer()->Encode(text);
  ASSERT_EQ(ids.size(), 256u);
  for (int64_t byte = 0; byte < 256; ++byte) EXPECT_EQ(ids[static_cast<size_t>(byte)], byte);
}

TEST(ByteTokenizerTest, EmitsACharacterWithItsLastByteOnly) {
  using P = std::vector<std::string>;
  EXPECT_EQ(Pieces({'a', 0xC3, 0xA9}), (P{"a", "", "é", ""}));
  EXPECT_EQ(Pieces({0xE2, 0x82, 0xAC}), (P{"", "", "€", ""}));
  EXPECT_EQ(Pieces({0xF0, 0x9F, 0x98, 0x80}), (P{"", "", "", "😀", ""}));
}

TEST(ByteTokenizerTest, AnUnfinishedCharacterEndsAsOneReplacement) {
  using P = std::vector<std::string>;
  EXPECT_EQ(Pieces({0xF0, 0x9F}), (P{"", "", kReplacement}));
  EXPECT_EQ(Pieces({0xE2, 0x82, 'a'}), (P{"", "", std::string(kReplacement) + "a", ""}));
  EXPECT_EQ(Pieces({0xC3, 257}), (P{"", kReplacement, ""}));
}

TEST(ByteTokenizerTest, BytesThatBeginNothingBecomeReplacements) {
  using P = std::vector<std::string>;
  EXPECT_EQ(Pieces({0x80}), (P{kReplacement, ""}));
  EXPECT_EQ(Pieces({0xFF}), (P{kReplacement, ""}));
  EXPECT_EQ(Pieces({0xC0, 0xAF}), (P{kReplacement, kReplacement, ""}));
  // A surrogate and an overlong form are not characters.
  EXPECT_EQ(Pieces({0xED, 0xA0, 0x80}),
            (P{"", std::string(kReplacement) + kReplacement, kReplacement, ""}));
  EXPECT_EQ(Pieces({0xE0, 0x80}), (P{"", std::string(kReplacement) + kReplacement, ""}));
}

TEST(ByteTokenizerTest, EverySequenceDecodesToValidUtf8) {
  const std::unique_ptr<Tokenizer> tokenizer = DemoTokenizer();
  // All pairs of a first byte and a follower: each piece alone must be whole characters.
  for (int64_t first = 0; first < 259; ++first) {
    for (int64_t second = 0; second < 256; ++second) {
      const std::string text = tokenizer->Decode({first, second, 'z'});
      EXPECT_EQ(text.back(), 'z');
      for (size_t i = 0; i < text.size();) {
        const unsigned char byte = static_cast<unsigned char>(text[i]);
        const size_t length = byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
        ASSERT_NE(byte & 0xC0, 0x80) << first << " " << second;
        for (size_t j = 1; j < length; ++j) {
          ASSERT_LT(i + j, text.size());
          ASSERT_EQ(static_cast<unsigned char>(text[i + j]) & 0xC0, 0x80);
        }
        i += length;
      }
    }
  }
}

TEST(ByteTokenizerTest, SpecialTokensGiveNoText) {
  EXPECT_EQ(DemoTokenizer()->Decode({256, 'h', 'i', 257, 258}), "hi");
}

TEST(ByteTokenizerTest, DescribesTokensForTables) {
  const std::unique_ptr<Tokenizer> tokenizer = DemoTokenizer();
  EXPECT_EQ(tokenizer->Describe('A'), "A");
  EXPECT_EQ(tokenizer->Describe('\n'), "\\n");
  EXPECT_EQ(tokenizer->Describe(' '), "␠");
  EXPECT_EQ(tokenizer->Describe(0xC3), "\\xC3");
  EXPECT_EQ(tokenizer->Describe(256), "⟨bos⟩");
  EXPECT_EQ(tokenizer->Describe(257), "⟨eos⟩");
  EXPECT_EQ(tokenizer->Describe(258), "⟨258⟩");
}

}  // namespace
}  // namespace moebius
