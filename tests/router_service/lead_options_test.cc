// SPDX-License-Identifier: Apache-2.0
#include "router_service/lead_options.h"

#include "gtest/gtest.h"

#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

SamplingParams DefaultsOf(const char* generation_config) {
  MiniCheckpoint mini;
  mini.generation = *Json::Parse(generation_config, "generation_config.json");
  const TemporaryFolder folder;
  mini.Write(folder.path());
  const auto checkpoint = Checkpoint::Open(folder.path());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return BuildLeadOptions(**checkpoint, 16, 0).sampling;
}

TEST(LeadOptionsTest, TheModelsDefaultsAreThoseOfRequestsThatSayNothing) {
  const SamplingParams sampling = DefaultsOf(
      R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05,
          "repetition_penalty": 1.1})");
  EXPECT_EQ(sampling.temperature, 0.6);
  EXPECT_EQ(sampling.top_k, 20);
  EXPECT_EQ(sampling.top_p, 0.95);
  EXPECT_EQ(sampling.min_p, 0.05);
  EXPECT_EQ(sampling.repetition_penalty, 1.1);
}

TEST(LeadOptionsTest, APenaltyHoldsForGreedyAnswersTooAndCutsDoNot) {
  const SamplingParams sampling =
      DefaultsOf(R"({"do_sample": false, "top_p": 0.5, "min_p": 0.05, "repetition_penalty": 1.1})");
  EXPECT_EQ(sampling.temperature, 0);
  EXPECT_EQ(sampling.top_p, 1);
  EXPECT_EQ(sampling.min_p, 0);
  EXPECT_EQ(sampling.repetition_penalty, 1.1);
}

}  // namespace
}  // namespace moebius
