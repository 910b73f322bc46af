// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/near_configs.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/hash.h"
#include "moebius/model/model_hash.h"

namespace moebius {
namespace {

constexpr uint64_t kModel = 7;

const NearConfig* Find(const std::vector<NearConfig>& near, const NumericsConfig& numerics) {
  const std::string hash = FormatHash64(HashNumerics(numerics, kModel));
  for (const NearConfig& config : near) {
    if (config.config_hash == hash) return &config;
  }
  return nullptr;
}

// What `own` is told of a process that has `other`; empty words where nothing is known.
NearConfig Told(const NumericsConfig& own, const NumericsConfig& other) {
  const std::vector<NearConfig> near = NearConfigsOf(own, kModel);
  const NearConfig* found = Find(near, other);
  return found == nullptr ? NearConfig() : *found;
}

TEST(NearConfigsTest, NameTheSettingThatDiffersOnBothSides) {
  const NumericsConfig own;
  NumericsConfig other = own;
  other.attention_sum = "per-degree";
  const NearConfig sum = Told(own, other);
  EXPECT_EQ(sum.own.does, "sums attention canonical");
  EXPECT_EQ(sum.own.flags, "--attention-sum canonical");
  EXPECT_EQ(sum.other.does, "sums attention per-degree (zigzag)");
  EXPECT_EQ(sum.other.flags, "--attention-sum per-degree --attention-layout zigzag");
  other = own;
  other.span = 64;
  other.key_block = 64;
  other.group_fill = GroupFill::kZero;
  const NearConfig two = Told(own, other);
  EXPECT_EQ(two.own.does, "fills groups with neg-inf and cuts spans of 1024 keys");
  EXPECT_EQ(two.other.flags, "--group-fill zero --span 64");
}

TEST(NearConfigsTest, NameTheLayout) {
  NumericsConfig own;
  own.attention_sum = "per-degree";
  own.span = 96;  // no power of two: the others keep it too
  own.key_block = 96;
  NumericsConfig other = own;
  other.attention_layout = "striped";
  const NearConfig layout = Told(own, other);
  EXPECT_EQ(layout.own.does, "sums attention per-degree (zigzag)");
  EXPECT_EQ(layout.other.does, "sums attention per-degree (striped)");
}

TEST(NearConfigsTest, AreEachOneOfItsOwnAndKnowNothingOfOtherModels) {
  const NumericsConfig own;
  const std::vector<NearConfig> near = NearConfigsOf(own, kModel);
  std::set<std::string> hashes = {FormatHash64(HashNumerics(own, kModel))};
  for (const NearConfig& config : near) {
    EXPECT_TRUE(hashes.insert(config.config_hash).second);
    EXPECT_NE(config.own.does, config.other.does);
  }
  EXPECT_LE(near.size(), 200u);
  EXPECT_EQ(Find(near, own), nullptr);
  EXPECT_FALSE(hashes.contains(FormatHash64(HashNumerics(own, kModel + 1))));
}

}  // namespace
}  // namespace moebius
