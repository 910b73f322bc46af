// SPDX-License-Identifier: Apache-2.0
#include "router_service/stop_matcher.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Tokens sent after each token of an answer, as long as it goes on.
struct Answer {
  std::vector<int64_t> released;
  std::string stop;
};

Answer RunIds(const StopRules& rules, const std::vector<int64_t>& ids) {
  StopMatcher matcher(rules);
  Answer answer;
  for (const int64_t id : ids) {
    matcher.Push(id, "");
    answer.released.push_back(matcher.num_released());
    if (matcher.stopped()) break;
  }
  if (!matcher.stopped()) {
    matcher.ReleaseAll();
    answer.released.push_back(matcher.num_released());
  }
  answer.stop = matcher.matched_stop();
  return answer;
}

Answer RunText(const StopRules& rules, const std::vector<std::string>& pieces) {
  StopMatcher matcher(rules);
  Answer answer;
  for (const std::string& piece : pieces) {
    matcher.Push(0, piece);
    answer.released.push_back(matcher.num_released());
    if (matcher.stopped()) break;
  }
  if (!matcher.stopped()) {
    matcher.ReleaseAll();
    answer.released.push_back(matcher.num_released());
  }
  answer.stop = matcher.matched_stop();
  return answer;
}

const StopRules kTwoSequences = {{2}, {{5, 6}, {5, 6, 7}}, {}};

TEST(StopMatcherTest, HoldsBackAPossibleStopAndReleasesItWhenItIsNone) {
  const Answer answer = RunIds(kTwoSequences, {5, 8});
  EXPECT_THAT(answer.released, ElementsAre(0, 2, 2));
  EXPECT_EQ(answer.stop, "");
}

TEST(StopMatcherTest, NeverSendsAPartOfTheStop) {
  const Answer answer = RunIds(kTwoSequences, {9, 5, 6, 7});
  EXPECT_THAT(answer.released, ElementsAre(1, 1, 1));
  EXPECT_EQ(answer.stop, "tokens 5 6");
}

TEST(StopMatcherTest, AnEndMarkerReleasesWhatWasHeldAndBelongsToTheAnswer) {
  const Answer answer = RunIds(kTwoSequences, {5, 2});
  EXPECT_THAT(answer.released, ElementsAre(0, 2));
  EXPECT_EQ(answer.stop, "eos 2");
}

TEST(StopMatcherTest, ASingleStopTokenIsNotInTheAnswer) {
  const Answer answer = RunIds({{}, {{5}}, {}}, {1, 5});
  EXPECT_THAT(answer.released, ElementsAre(1, 1));
  EXPECT_EQ(answer.stop, "token 5");
}

TEST(StopMatcherTest, PromptTokensDoNotCount) {
  // The prompt ended in 5; only generated ids are pushed.
  EXPECT_EQ(RunIds(kTwoSequences, {6, 7}).stop, "");
}

TEST(StopMatcherTest, RestartsInsideAFailedMatch) {
  const Answer answer = RunIds({{}, {{5, 5, 6}}, {}}, {5, 5, 5, 6});
  EXPECT_THAT(answer.released, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(answer.stop, "tokens 5 5 6");
}

TEST(StopMatcherTest, FindsAStringAcrossTokens) {
  const Answer answer = RunText({{}, {}, {"END"}}, {"a", "E", "N", "x", "EN", "D"});
  EXPECT_THAT(answer.released, ElementsAre(1, 1, 1, 4, 4, 4));
  EXPECT_EQ(answer.stop, "END");
}

TEST(StopMatcherTest, FindsAStringInsideAToken) {
  const Answer answer = RunText({{}, {}, {"END"}}, {"ab", "cENDd"});
  EXPECT_THAT(answer.released, ElementsAre(1, 1)) << "no byte of the token's may be sent";
  EXPECT_EQ(answer.stop, "END");
}

TEST(StopMatcherTest, OfStopsCompleteAtOnePlaceTheLongestWins) {
  EXPECT_EQ(RunText({{}, {}, {"c", "bc", "abc"}}, {"a", "b", "c"}).stop, "abc");
  EXPECT_THAT(RunText({{}, {}, {"c", "bc", "abc"}}, {"a", "b", "c"}).released,
              ElementsAre(0, 0, 0));
  EXPECT_EQ(RunText({{}, {}, {"bcd", "abc"}}, {"abcd"}).stop, "abc") << "complete first";
}

TEST(StopMatcherTest, HoldsBackSpecialTokensBehindAnOpenStop) {
  StopMatcher matcher({{}, {}, {"ab"}});
  matcher.Push(1, "a");
  matcher.Push(2, "");
  EXPECT_EQ(matcher.num_released(), 0);
  matcher.Push(3, "b");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.num_released(), 0);
}

TEST(StopMatcherTest, BytesAboveAsciiMatchAsBytes) {
  const Answer answer = RunText({{}, {}, {"é"}}, {"x", "\xC3", "\xA9"});
  EXPECT_THAT(answer.released, ElementsAre(1, 1, 1));
  EXPECT_EQ(answer.stop, "é");
}

TEST(StopRulesTest, RefusesWhatCanNeverMatch) {
  EXPECT_TRUE(ValidateStopRules({{2}, {{5, 6}}, {"x"}}, 97).ok());
  EXPECT_THAT(std::string(ValidateStopRules({{97}, {}, {}}, 97).message()),
              HasSubstr("eos_token_ids has token 97"));
  EXPECT_THAT(std::string(ValidateStopRules({{}, {{-1}}, {}}, 97).message()),
              HasSubstr("stop_token_ids has token -1"));
  EXPECT_THAT(std::string(ValidateStopRules({{}, {{}}, {}}, 97).message()), HasSubstr("empty"));
  EXPECT_THAT(std::string(ValidateStopRules({{}, {}, {""}}, 97).message()), HasSubstr("empty"));
}

TEST(StopMatcherPropertyTest, StopsWhereAPlainSearchDoesAndSendsNothingBehind) {
  const uint64_t seed = 12;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  const auto text = [&](uint64_t max_length) {
    std::string out;
    const uint64_t length = 1 + random.Below(max_length);
    for (uint64_t i = 0; i < length; ++i) out += static_cast<char>('a' + random.Below(2));
    return out;
  };
  for (int trial = 0; trial < 3000; ++trial) {
    StopRules rules;
    for (uint64_t i = random.Below(4); i > 0; --i) rules.strings.push_back(text(6));
    std::vector<std::string> pieces;
    std::string whole;
    for (int i = 0; i < 12; ++i) {
      pieces.push_back(random.Below(5) == 0 ? "" : text(3));
      whole += pieces.back();
    }
    // The stop that is complete first; among equals the longest.
    size_t stop_end = std::string::npos, stop_begin = 0;
    for (const std::string& stop : rules.strings) {
      const size_t begin = whole.find(stop);
      if (begin == std::string::npos) continue;
      const size_t end = begin + stop.size();
      if (end < stop_end || (end == stop_end && begin < stop_begin)) {
        stop_end = end;
        stop_begin = begin;
      }
    }
    int64_t expected = 0;
    size_t bytes = 0;
    const size_t limit = stop_end == std::string::npos ? whole.size() : stop_begin;
    for (const std::string& piece : pieces) {
      bytes += piece.size();
      if (bytes > limit) break;
      ++expected;
    }
    const Answer answer = RunText(rules, pieces);
    EXPECT_EQ(answer.stop.empty(), stop_end == std::string::npos);
    if (!answer.stop.empty())
      EXPECT_EQ(answer.stop, whole.substr(stop_begin, stop_end - stop_begin));
    ASSERT_EQ(answer.released.back(), expected) << "trial " << trial << " " << whole;
    for (size_t i = 1; i < answer.released.size(); ++i) {
      ASSERT_GE(answer.released[i], answer.released[i - 1]);
    }
  }
}

}  // namespace
}  // namespace moebius
