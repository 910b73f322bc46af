// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/utf8.h"

#include "gtest/gtest.h"

namespace moebius {
namespace {

TEST(Utf8Test, CountsTheBytesOfAWellFormedCharacter) {
  EXPECT_EQ(Utf8CharacterBytes("a"), 1u);
  EXPECT_EQ(Utf8CharacterBytes("öx"), 2u);
  EXPECT_EQ(Utf8CharacterBytes("€x"), 3u);
  EXPECT_EQ(Utf8CharacterBytes("\xF0\x9F\x98\x80x"), 4u);
  EXPECT_EQ(Utf8CharacterBytes("\xF4\x8F\xBF\xBF"), 4u);  // U+10FFFF
}

TEST(Utf8Test, FindsNoneInWhatIsIllFormed) {
  for (const absl::string_view text : {
           absl::string_view(""),
           absl::string_view("\x80"),              // a continuation first
           absl::string_view("\xC0\x80"),          // overlong
           absl::string_view("\xE0\x9F\xBF"),      // overlong
           absl::string_view("\xED\xA0\x80"),      // a surrogate
           absl::string_view("\xF4\x90\x80\x80"),  // beyond U+10FFFF
           absl::string_view("\xFF"),
           absl::string_view("\xC3"),      // cut short
           absl::string_view("\xE2\x82"),  // cut short
           absl::string_view("\xE2\x82z"),
       }) {
    EXPECT_EQ(Utf8CharacterBytes(text), 0u) << text.size();
  }
}

}  // namespace
}  // namespace moebius
