// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/trace/trace_context.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"

namespace moebius {
namespace {

// The recommendation's own example.
constexpr char kTraceparent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceContextTest, ReadsTheExampleOfTheRecommendationAndWritesItBack) {
  const auto context = ParseTraceparent(kTraceparent);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace.high, 0x4bf92f3577b34da6u);
  EXPECT_EQ(context->trace.low, 0xa3ce929d0e0e4736u);
  EXPECT_EQ(context->parent, TraceSpanId(0x00f067aa0ba902b7u));
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(FormatTraceparent(*context), kTraceparent);
  EXPECT_EQ(FormatTraceId(context->trace), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(FormatTraceSpanId(context->parent), "00f067aa0ba902b7");
}

TEST(TraceContextTest, LooksAtTheSampledBitAlone) {
  const std::string ids(kTraceparent, 53);
  for (const auto& [flags, sampled] : std::initializer_list<std::pair<const char*, bool>>{
           {"00", false}, {"01", true}, {"02", false}, {"03", true}, {"fe", false}, {"ff", true}}) {
    const auto context = ParseTraceparent(ids + flags);
    ASSERT_TRUE(context.has_value()) << flags;
    EXPECT_EQ(context->sampled, sampled) << flags;
  }
}

TEST(TraceContextTest, ReadsLaterVersionsByTheirFirstFiftyFiveCharacters) {
  const std::string later = absl::StrCat("cc", kTraceparent + 2);
  EXPECT_EQ(ParseTraceparent(later), ParseTraceparent(kTraceparent));
  EXPECT_EQ(ParseTraceparent(later + "-what the future will be like"),
            ParseTraceparent(kTraceparent));
  EXPECT_FALSE(ParseTraceparent(later + ".").has_value()) << "no dash";
  EXPECT_FALSE(ParseTraceparent(later.substr(0, 54)).has_value());
}

TEST(TraceContextTest, TakesWhatIsMalformedAsAbsent) {
  const std::string good = kTraceparent;
  EXPECT_FALSE(ParseTraceparent("").has_value());
  EXPECT_FALSE(ParseTraceparent(good + "-00").has_value()) << "version 00 says no more";
  EXPECT_FALSE(ParseTraceparent(" " + good).has_value());
  EXPECT_FALSE(ParseTraceparent(good + " ").has_value());
  EXPECT_FALSE(ParseTraceparent("ff" + good.substr(2)).has_value());
  EXPECT_FALSE(
      ParseTraceparent("00-00000000000000000000000000000000-00f067aa0ba902b7-01").has_value());
  EXPECT_FALSE(
      ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01").has_value());
  // Any one character that is wrong: not hexadecimal, uppercase, or no dash.
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char wrong : {'g', 'A', ' ', '\0', '\xff'}) {
      std::string text = good;
      text[at] = wrong;
      EXPECT_FALSE(ParseTraceparent(text).has_value()) << at << " " << wrong;
    }
    EXPECT_FALSE(ParseTraceparent(good.substr(0, at)).has_value()) << at;
  }
}

TEST(TraceContextTest, SamplesTheShareOfTracesThatTheRatioSays) {
  Random random(20260101);
  int sampled = 0;
  for (int i = 0; i < 10000; ++i) {
    const TraceId trace = {random.Bits(), random.Bits()};
    EXPECT_TRUE(IsInSample(trace, 1));
    EXPECT_FALSE(IsInSample(trace, 0));
    const bool in_sample = IsInSample(trace, 0.25);
    sampled += in_sample ? 1 : 0;
    // Who samples more has all that another samples.
    EXPECT_TRUE(!in_sample || IsInSample(trace, 0.5));
  }
  EXPECT_NEAR(sampled, 2500, 200);
  EXPECT_TRUE(IsInSample({1, ~uint64_t{0}}, 1)) << "the largest";
  EXPECT_FALSE(IsInSample({1, 0}, 0)) << "the smallest";
}

}  // namespace
}  // namespace moebius
