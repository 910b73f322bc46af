// SPDX-License-Identifier: Apache-2.0
// Where an expert lies changes no bit: placements that nobody would choose.
#include <fstream>
#include <string>

#include "gtest/gtest.h"

#include "tests/cluster/cluster_fixture.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

void ExpectSameBitsOfPlacement(int32_t num_experts, const std::string& text) {
  TemporaryFolder folder;
  LocalClusterOptions options = DemoCluster(num_experts, 1);
  options.placement_file = folder.File("placement.json");
  std::ofstream(options.placement_file) << text;
  const auto cluster = LocalCluster::Make(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  for (const char* name : {"greedy", "sampled"}) {
    const ExpectedCase expected = FindExpectedCase(name);
    ExpectSameBits(AskCluster(**cluster, expected.request), expected);
  }
}

TEST(PlacementBitsTest, OneReplicaOfEachExpertScatteredByLayer) {
  // No combine group lies whole on one service.
  ExpectSameBitsOfPlacement(3, R"({"services": 3, "shared": 1, "dense": 2, "rules": [
    {"experts": [0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30], "services": 0},
    {"experts": [1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31], "services": 1},
    {"experts": [2, 5, 8, 11, 14, 17, 20, 23, 26, 29], "services": 2},
    {"layers": 3, "experts": "0-15", "services": 2},
    {"layers": 3, "experts": "16-31", "services": 0}]})");
}

TEST(PlacementBitsTest, AllExpertsOnOneServiceAndTheRestOnTheOther) {
  ExpectSameBitsOfPlacement(2, R"({"services": 2, "shared": 1, "dense": 1,
    "rules": [{"experts": "0-31", "services": 0}]})");
}

TEST(PlacementBitsTest, UnequalReplicasInUnequalOrder) {
  ExpectSameBitsOfPlacement(4, R"({"services": 4, "rules": [
    {"experts": "0-4", "services": [3, 0, 2, 1]},
    {"experts": "5-20", "services": [2]},
    {"experts": "21-31", "services": [1, 3]},
    {"layers": "2-4", "experts": [0, 31], "services": [0]}]})");
}

TEST(PlacementBitsTest, APlacementThatDoesNotFitTheModelIsRefusedByName) {
  TemporaryFolder folder;
  LocalClusterOptions options = DemoCluster(2, 1);
  options.placement_file = folder.File("placement.json");
  std::ofstream(options.placement_file)
      << R"({"services": 2, "rules": [{"experts": "0-32", "services": 0}]})";
  const auto cluster = LocalCluster::Make(options);
  EXPECT_EQ(cluster.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(cluster.status().message().find("rules[0].experts: 32 is not in [0, 32)"),
            std::string::npos)
      << cluster.status();
}

}  // namespace
}  // namespace moebius
