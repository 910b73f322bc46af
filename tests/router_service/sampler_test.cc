// SPDX-License-Identifier: Apache-2.0
#include "router_service/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<int64_t> Draw(const std::vector<float>& logits, const SamplingParams& params, int count,
                          const TokenCounts* counts = nullptr) {
  EXPECT_TRUE(ValidateSamplingParams(params, static_cast<int64_t>(logits.size())).ok());
  Sampler sampler;
  std::vector<int64_t> ids;
  for (int position = 0; position < count; ++position) {
    const absl::StatusOr<SampledToken> token = sampler.Sample(logits, params, counts, position);
    EXPECT_TRUE(token.ok()) << token.status();
    ids.push_back(token->token_id);
  }
  return ids;
}

std::map<int64_t, int> Histogram(const std::vector<int64_t>& ids) {
  std::map<int64_t, int> histogram;
  for (const int64_t id : ids) ++histogram[id];
  return histogram;
}

std::set<int64_t> Distinct(const std::vector<int64_t>& ids) { return {ids.begin(), ids.end()}; }

// Probabilities 0.4, 0.3, 0.2, 0.1 at temperature 1.
const std::vector<float> kFour = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};

TEST(SamplerTest, GreedyTakesTheLowestIdAmongTheLargest) {
  EXPECT_THAT(Draw({1, 3, 2, 3}, {}, 3), ElementsAre(1, 1, 1));
  EXPECT_THAT(Draw({1, 3, 2, 3}, {.temperature = 2, .top_k = 1}, 3), ElementsAre(1, 1, 1));
}

TEST(SamplerTest, DrawsByProbability) {
  const int draws = 40000;
  std::map<int64_t, int> seen = Histogram(Draw(kFour, {.temperature = 1, .seed = 11}, draws));
  // Five standard deviations of a binomial.
  const double expected[] = {0.1, 0.4, 0.2, 0.3};
  for (int id = 0; id < 4; ++id) {
    const double deviation = std::sqrt(draws * expected[id] * (1 - expected[id]));
    EXPECT_NEAR(seen[id], draws * expected[id], 5 * deviation) << id;
  }
}

TEST(SamplerTest, SeedAndPositionDecideAlone) {
  const SamplingParams seven = {.temperature = 1, .seed = 7};
  const SamplingParams eight = {.temperature = 1, .seed = 8};
  EXPECT_EQ(Draw(kFour, seven, 50), Draw(kFour, seven, 50));
  EXPECT_NE(Draw(kFour, seven, 50), Draw(kFour, eight, 50));
  // Whatever was drawn before, by whomever.
  Sampler sampler;
  ASSERT_TRUE(sampler.Sample(std::vector<float>(97, 1.0f), eight, nullptr, 3).ok());
  EXPECT_EQ(sampler.Sample(kFour, seven, nullptr, 42)->token_id, Draw(kFour, seven, 50)[42]);
}

TEST(SamplerTest, HighTemperatureIsFlatterAndLowIsSharper) {
  const auto share = [](double temperature) {
    return Histogram(Draw(kFour, {.temperature = temperature, .seed = 3}, 4000))[1] / 4000.0;
  };
  EXPECT_NEAR(share(5), 0.288, 0.04);  // 0.4^0.2 over the sum of all four
  EXPECT_NEAR(share(0.25), 0.722, 0.04);
  EXPECT_EQ(share(0.01), 1);
}

TEST(SamplerTest, KeepsACandidateAtAnyTemperatureAndTopP) {
  const std::vector<float> logits = {0.5f, 2, -1, 2, 1.999f};
  for (const double temperature : {0.0, 5e-324, 1e-310, 1e-38, 1e-6, 1e-4}) {
    for (const double top_p : {0.0, 1e-9, 1.0}) {
      for (const int64_t top_k : {0, 1}) {
        const std::set<int64_t> seen = Distinct(Draw(
            logits, {.temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = 1}, 100));
        const bool both = temperature > 0 && top_p == 1 && top_k == 0;
        EXPECT_EQ(seen, both ? (std::set<int64_t>{1, 3}) : std::set<int64_t>{1})
            << temperature << " " << top_p << " " << top_k;
      }
    }
  }
}

TEST(SamplerTest, TopKKeepsTheBestAndBreaksTiesByLowestId) {
  const auto seen = [](int64_t top_k) {
    return Distinct(Draw({1, 2, 1, 0, 2}, {.temperature = 2, .top_k = top_k, .seed = 5}, 300));
  };
  EXPECT_EQ(seen(2), (std::set<int64_t>{1, 4}));
  EXPECT_EQ(seen(3), (std::set<int64_t>{0, 1, 4}));
}

TEST(SamplerTest, TopKOfTheVocabularyOrMoreIsOff) {
  std::vector<float> logits(97);
  for (size_t id = 0; id < logits.size(); ++id) logits[id] = static_cast<float>(id % 10) * 0.1f;
  const auto draw = [&](int64_t top_k) {
    return Draw(logits, {.temperature = 1, .top_k = top_k, .seed = 9}, 200);
  };
  const std::vector<int64_t> off = draw(0);
  for (const int64_t top_k : {97, 98, 9999999}) EXPECT_EQ(draw(top_k), off);
  EXPECT_EQ(draw(int64_t{4294967295}), off);
  EXPECT_NE(draw(10), off);
}

TEST(SamplerTest, TopPKeepsTheShortestPrefixWithTheMass) {
  const auto seen = [](double top_p) {
    return Distinct(Draw(kFour, {.temperature = 1, .top_p = top_p, .seed = 5}, 300));
  };
  EXPECT_EQ(seen(0), std::set<int64_t>{1});
  EXPECT_EQ(seen(0.39), std::set<int64_t>{1});
  EXPECT_EQ(seen(0.41), (std::set<int64_t>{1, 3}));
  EXPECT_EQ(seen(0.69), (std::set<int64_t>{1, 3}));
  EXPECT_EQ(seen(0.89), (std::set<int64_t>{1, 2, 3}));
  EXPECT_EQ(seen(0.99), (std::set<int64_t>{0, 1, 2, 3}));
}

TEST(SamplerTest, TopPIsOfTheMassThatTopKLeaves) {
  // Of 0.4 and 0.3 the first has 0.571.
  const auto seen = [](double top_p) {
    return Distinct(Draw(kFour, {.temperature = 1, .top_k = 2, .top_p = top_p, .seed = 5}, 300));
  };
  EXPECT_EQ(seen(0.56), std::set<int64_t>{1});
  EXPECT_EQ(seen(0.58), (std::set<int64_t>{1, 3}));
}

TEST(SamplerTest, MinPIsAShareOfTheBest) {
  const auto seen = [](double min_p) {
    return Distinct(Draw(kFour, {.temperature = 1, .min_p = min_p, .seed = 5}, 300));
  };
  EXPECT_EQ(seen(0.2), (std::set<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(seen(0.3), (std::set<int64_t>{1, 2, 3}));
  EXPECT_EQ(seen(0.6), (std::set<int64_t>{1, 3}));
  EXPECT_EQ(seen(1), std::set<int64_t>{1});
}

TEST(SamplerTest, PenaltiesSeeWhatTheyShould) {
  TokenCounts counts;
  counts.AddPrompt(std::vector<int64_t>{0, 0, 3});
  counts.AddGenerated(1);
  counts.AddGenerated(1);
  counts.AddGenerated(1);
  // Repetition: prompt and answer. 4/2 = 2 for id 0, 3.5/2 for id 1; -1·2 for id 3.
  EXPECT_THAT(Draw({4, 3.5f, 2.1f, -1}, {.repetition_penalty = 2}, 1, &counts), ElementsAre(2));
  EXPECT_THAT(Draw({4, 3.5f, 1.9f, -1}, {.repetition_penalty = 2}, 1, &counts), ElementsAre(0));
  // Frequency and presence: the answer alone. 3.5 - 3·0.5 - 0 = 2, 3.5 - 1.6 = 1.9.
  EXPECT_THAT(Draw({1, 3.5f, 2.1f, 1}, {.frequency_penalty = 0.5}, 1, &counts), ElementsAre(2));
  EXPECT_THAT(Draw({1, 3.5f, 1.9f, 1}, {.frequency_penalty = 0.5}, 1, &counts), ElementsAre(1));
  EXPECT_THAT(Draw({1, 3.5f, 2, 1}, {.presence_penalty = 1.6}, 1, &counts), ElementsAre(2));
  EXPECT_THAT(Draw({4, 3.5f, 2, 1}, {.presence_penalty = 1.6}, 1, &counts), ElementsAre(0));
  ASSERT_EQ(counts.entries().size(), 3u);
  EXPECT_EQ(counts.entries()[1].generated, 3);
}

TEST(SamplerTest, LogitBiasCanForbidAndForce) {
  EXPECT_THAT(Draw({1, 3, 2}, {.logit_bias = {{1, -100}}}, 1), ElementsAre(2));
  EXPECT_THAT(Draw({1, 3, 2}, {.logit_bias = {{0, 100}}}, 1), ElementsAre(0));
}

TEST(SamplerTest, RanksByTheModelsOwnProbabilities) {
  Sampler sampler;
  SamplingParams params;
  params.num_logprobs = 2;
  params.logit_bias = {{0, 100}};
  const SampledToken token = *sampler.Sample(kFour, params, nullptr, 0);
  EXPECT_EQ(token.token_id, 0);
  EXPECT_NEAR(token.logprob, std::log(0.1), 1e-5);
  ASSERT_EQ(token.ranked.size(), 2u);
  EXPECT_EQ(token.ranked[0].token_id, 1);
  EXPECT_NEAR(token.ranked[0].logprob, std::log(0.4), 1e-5);
  EXPECT_EQ(token.ranked[1].token_id, 3);
  params.num_logprobs = 98;
  EXPECT_EQ(sampler.Sample(kFour, params, nullptr, 0)->ranked.size(), 4u);
}

TEST(SamplerTest, RefusesLogitsThatAreNotFinite) {
  Sampler sampler;
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(), static_cast<float>(kNan)}) {
    const auto token = sampler.Sample(std::vector<float>{0, bad}, {}, nullptr, 0);
    EXPECT_EQ(token.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(token.status().message()), HasSubstr("token 1"));
  }
}

TEST(SamplingParamsTest, RefusalsNameTheField) {
  const auto message = [](const SamplingParams& params) {
    const absl::Status status = ValidateSamplingParams(params, 97);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({.temperature = -0.1}), HasSubstr("temperature is -0.1"));
  EXPECT_THAT(message({.temperature = kNan}), HasSubstr("temperature is nan"));
  EXPECT_THAT(message({.temperature = 1e9}), HasSubstr("temperature is 1e+09"));
  EXPECT_THAT(message({.top_k = -1}), HasSubstr("top_k is -1"));
  EXPECT_THAT(message({.top_p = 1.1}), HasSubstr("top_p is 1.1"));
  EXPECT_THAT(message({.top_p = kNan}), HasSubstr("top_p is nan"));
  EXPECT_THAT(message({.top_p = 1.0000001}), HasSubstr("top_p is 1.0000001; it must be in [0, 1]"));
  EXPECT_THAT(message({.repetition_penalty = 0}), HasSubstr("in [0.01, 100]"));
  EXPECT_THAT(message({.min_p = -1}), HasSubstr("min_p is -1"));
  EXPECT_THAT(message({.repetition_penalty = 0}), HasSubstr("repetition_penalty is 0"));
  EXPECT_THAT(message({.presence_penalty = 2.5}), HasSubstr("presence_penalty is 2.5"));
  EXPECT_THAT(message({.frequency_penalty = -3}), HasSubstr("frequency_penalty is -3"));
  EXPECT_THAT(message({.logit_bias = {{97, 1}}}), HasSubstr("token 97"));
  EXPECT_THAT(message({.logit_bias = {{5, 101}}}), HasSubstr("logit_bias is 101"));
  EXPECT_THAT(message({.logit_bias = {{5, 1}, {5, 2}}}), HasSubstr("token 5 twice"));
  EXPECT_THAT(message({.num_logprobs = -1}), HasSubstr("logprobs is -1"));
}

// The steps of the header in their own words, with full sorts.
int64_t DrawSlowly(const std::vector<float>& logits, const SamplingParams& params,
                   int64_t position) {
  std::vector<int64_t> order;
  for (size_t id = 0; id < logits.size(); ++id) order.push_back(static_cast<int64_t>(id));
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  const float largest = logits[order[0]];
  const auto weight = [&](int64_t id) {
    return std::exp((static_cast<double>(logits[id]) - largest) / params.temperature);
  };
  if (params.top_k > 0 && params.top_k < static_cast<int64_t>(order.size())) {
    order.resize(params.top_k);
  }
  double mass = 0;
  for (const int64_t id : order) mass += weight(id);
  size_t kept = 0;
  double kept_mass = 0;
  do {
    kept_mass += weight(order[kept++]);
  } while (kept < order.size() && params.top_p < 1 && kept_mass < params.top_p * mass);
  if (params.top_p >= 1) kept = order.size();
  order.resize(kept);
  std::erase_if(order, [&](int64_t id) { return weight(id) < params.min_p; });
  std::sort(order.begin(), order.end());
  mass = 0;
  for (const int64_t id : order) mass += weight(id);
  const double target =
      static_cast<double>(RandomBits(params.seed, position) >> 11) * 0x1p-53 * mass;
  double sum = 0;
  for (const int64_t id : order) {
    sum += weight(id);
    if (sum > target) return id;
  }
  return order.back();
}

TEST(SamplerPropertyTest, DrawsAsASlowStatementDoes) {
  const uint64_t seed = 3;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  Sampler sampler;
  int differences = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<float> logits(1 + random.Below(60));
    for (float& logit : logits) logit = static_cast<float>(random.Below(24)) * 0.25f;
    SamplingParams params;
    params.temperature = 0.1 + random.Unit() * 3;
    params.top_k = static_cast<int64_t>(random.Below(70));
    if (params.top_k == 1) params.top_k = 0;
    params.top_p = random.Below(2) == 0 ? 1 : random.Unit();
    params.min_p = random.Below(2) == 0 ? 0 : random.Unit() * 0.3;
    params.seed = random.Bits();
    const absl::StatusOr<SampledToken> token = sampler.Sample(logits, params, nullptr, trial);
    ASSERT_TRUE(token.ok());
    differences += token->token_id != DrawSlowly(logits, params, trial);
  }
  // A weight of another rounding moves a boundary by 2^-22 of the mass.
  EXPECT_LE(differences, 2);
}

}  // namespace
}  // namespace moebius
