// SPDX-License-Identifier: Apache-2.0
#include "router_service/admission.h"

#include <cmath>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

LeadOptions Options() {
  LeadOptions options;
  options.vocab_size = 97;
  options.max_positions = 64;
  options.eos_token_ids = {3, 5};
  return options;
}

constexpr KvPool kPool{8, 100, 0};

absl::StatusOr<AdmittedRequest> Admit(const GenerateRequest& request, KvPool pool = kPool) {
  return AdmitRequest(request, Options(), pool, "drawn", 99);
}

GenerateRequest Prompt(int64_t num_tokens) {
  GenerateRequest request;
  request.token_ids.assign(static_cast<size_t>(num_tokens), 7);
  return request;
}

TEST(AdmissionTest, RefusesAnEmptyPromptAndTakesOneToken) {
  const auto empty = Admit(GenerateRequest());
  EXPECT_EQ(empty.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(HintOf(empty.status()), "");
  ASSERT_TRUE(Admit(Prompt(1)).ok());
}

TEST(AdmissionTest, NamesPositionValueAndVocabularyOfABadId) {
  for (const int64_t bad : {int64_t{97}, int64_t{2147483648}, int64_t{4294967295}, int64_t{-1}}) {
    GenerateRequest request = Prompt(4);
    request.token_ids.push_back(bad);
    const auto refused = Admit(request);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.status().message(),
              "token id " + std::to_string(bad) + " at position 4 is outside the vocabulary of 97");
  }
}

TEST(AdmissionTest, CountsAPromptThatIsTooLongWithoutNegativeNumbers) {
  const auto refused = Admit(Prompt(74));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("the prompt has 74 tokens, the limit is 64"));
  EXPECT_THAT(std::string(refused.status().message()), Not(HasSubstr("-")));
}

TEST(AdmissionTest, HoldsPromptAndMaxTokensToTheLimitTogether) {
  GenerateRequest request = Prompt(60);
  request.max_tokens = 4;
  EXPECT_TRUE(Admit(request).ok());
  request.max_tokens = 5;
  const auto refused = Admit(request);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("max_tokens is 5"));
  EXPECT_THAT(HintOf(refused.status()), HasSubstr("up to 4"));
  request.max_tokens = 0;
  EXPECT_FALSE(Admit(request).ok());
}

TEST(AdmissionTest, RefusesAPromptThatGoesInOneStepAndDoesNotFit) {
  LeadOptions options = Options();
  options.schedule = {.row_budget = 30, .chunk_rows = 20, .whole_prompts = true};
  const auto admit = [&](int64_t num_tokens) {
    return AdmitRequest(Prompt(num_tokens), options, kPool, "drawn", 99).status();
  };
  EXPECT_TRUE(admit(20).ok());
  const absl::Status refused = admit(21);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("the prompt has 21 tokens and goes in one step"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a step holds 20"));
  EXPECT_THAT(HintOf(refused), HasSubstr("--row-budget"));
  options.schedule.whole_prompts = false;
  EXPECT_TRUE(admit(21).ok());
}

TEST(AdmissionTest, LeavesRoomForWhatFitsWhereMaxTokensIsUnset) {
  EXPECT_EQ(Admit(Prompt(60))->max_tokens, 4);
  LeadOptions options = Options();
  options.default_max_tokens = 10;
  EXPECT_EQ(AdmitRequest(Prompt(20), options, kPool, "drawn", 99)->max_tokens, 10);
}

TEST(AdmissionTest, RefusesWhatCanNeverFitTheKvPool) {
  GenerateRequest request = Prompt(40);
  request.max_tokens = 1;
  const auto refused = Admit(request, KvPool{8, 4, 0});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.status().message(), "the request needs 40 KV slots, the pool has 32");
  // The last token is told and never run: 25 + 8 - 1 positions fill the four blocks exactly.
  GenerateRequest fits = Prompt(25);
  fits.max_tokens = 8;
  EXPECT_EQ(Admit(fits, KvPool{8, 4, 0})->kv_blocks, 4);
}

TEST(AdmissionTest, TakesZeroLiterallyAndUnsetAsTheDefault) {
  LeadOptions options = Options();
  options.sampling.temperature = 0.6;
  options.sampling.top_p = 0.9;
  GenerateRequest request = Prompt(2);
  const auto unset = AdmitRequest(request, options, kPool, "drawn", 99);
  EXPECT_EQ(unset->sampling.temperature, 0.6);
  EXPECT_EQ(unset->sampling.top_p, 0.9);
  EXPECT_EQ(unset->sampling.seed, 99u);
  request.temperature = 0;
  request.top_p = 0;
  request.seed = 0;
  const auto zero = AdmitRequest(request, options, kPool, "drawn", 99);
  EXPECT_EQ(zero->sampling.temperature, 0);
  EXPECT_EQ(zero->sampling.top_p, 0);
  EXPECT_EQ(zero->sampling.seed, 0u);
}

TEST(AdmissionTest, RefusesSamplingValuesOutOfRangeByName) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refused_with = [](const char* name, auto set) {
    GenerateRequest request = Prompt(2);
    set(request);
    const auto refused = Admit(request);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(name));
  };
  refused_with("temperature", [&](GenerateRequest& request) { request.temperature = -1; });
  refused_with("temperature", [&](GenerateRequest& request) { request.temperature = nan; });
  refused_with("top_p", [&](GenerateRequest& request) { request.top_p = 1.5; });
  refused_with("top_p", [&](GenerateRequest& request) { request.top_p = -0.1; });
  refused_with("top_k", [&](GenerateRequest& request) { request.top_k = -1; });
  refused_with("min_p", [&](GenerateRequest& request) { request.min_p = 2; });
  refused_with("logprobs", [&](GenerateRequest& request) { request.logprobs = 98; });
  refused_with("logprobs", [&](GenerateRequest& request) { request.logprobs = -1; });
}

TEST(AdmissionTest, TakesTopKFarAboveTheVocabulary) {
  for (const int64_t top_k : {int64_t{96}, int64_t{98}, int64_t{9999999}, int64_t{4294967295}}) {
    GenerateRequest request = Prompt(2);
    request.top_k = top_k;
    EXPECT_TRUE(Admit(request).ok()) << top_k;
  }
}

TEST(AdmissionTest, BoundsStops) {
  GenerateRequest request = Prompt(2);
  request.stop = {""};
  EXPECT_FALSE(Admit(request).ok());
  request.stop.assign(17, "x");
  EXPECT_FALSE(Admit(request).ok());
  request.stop = {std::string(257, 'x')};
  EXPECT_FALSE(Admit(request).ok());
  request.stop = {"\n\n"};
  request.stop_token_ids = {97};
  EXPECT_FALSE(Admit(request).ok());
  request.stop_token_ids = {96};
  EXPECT_TRUE(Admit(request).ok());
}

TEST(AdmissionTest, EndsAtEveryEosIdUnlessTheyAreIgnored) {
  GenerateRequest request = Prompt(2);
  EXPECT_THAT(Admit(request)->stop.eos_token_ids, ::testing::ElementsAre(3, 5));
  request.ignore_eos = true;
  EXPECT_TRUE(Admit(request)->stop.eos_token_ids.empty());
}

TEST(AdmissionTest, RefusesADeadlineThatHasPassed) {
  GenerateRequest request = Prompt(2);
  request.deadline = absl::ZeroDuration();
  EXPECT_EQ(Admit(request).status().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace moebius
