// SPDX-License-Identifier: Apache-2.0
// A node that takes its weights from the packed cache answers as one that reads the checkpoint.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/kernels/kernels.h"
#include "node/embedded.h"
#include "tests/node/expected_cases.h"

namespace moebius {
namespace {

using testing::HasSubstr;
using Outcome = PackedCacheOutcome;

class NodeCacheTest : public testing::Test {
 protected:
  NodeCacheTest() : folder_(absl::StrCat(testing::TempDir(), "/node_cache_test.", getpid())) {
    std::filesystem::remove_all(folder_);
    options_.packed_cache.folder = folder_;
  }
  ~NodeCacheTest() override { std::filesystem::remove_all(folder_); }

  // Opens the demo, expects its recorded answer, and returns how the weights came.
  WeightLoadFigures LoadAndAsk() {
    const auto node = OpenDemo(options_);
    ExpectSameBits(*node, FindExpectedCase("greedy"));
    return node->info().load;
  }

  std::vector<std::filesystem::path> Files() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      files.push_back(entry.path());
    }
    return files;
  }

  const std::string folder_;
  EmbeddedOptions options_;
};

TEST_F(NodeCacheTest, GivesTheSameBitsOnEveryTier) {
  for (const Tier tier : HostTiers()) {
    options_.tier = tier;
    options_.num_threads = tier == Tier::kPortable ? 1 : 2;
    LoadAndAsk();  // keeps what another tier of the same layout has not
    const WeightLoadFigures warm = LoadAndAsk();
    EXPECT_EQ(warm.found.outcome, Outcome::kHit) << TierName(tier);
    EXPECT_EQ(warm.pack, absl::ZeroDuration());
    EXPECT_TRUE(warm.notes.empty());
  }
  // Attention and experts of two pair orders at most: tiers of one order share files.
  EXPECT_LE(Files().size(), 4u);
  EXPECT_GE(Files().size(), 2u);
}

TEST_F(NodeCacheTest, AnotherDivisionOfTheExpertsHasFilesOfItsOwn) {
  LoadAndAsk();
  EXPECT_EQ(Files().size(), 2u);
  options_.num_expert_pipelines = 3;
  const WeightLoadFigures cold = LoadAndAsk();
  EXPECT_EQ(cold.found.outcome, Outcome::kMiss);
  EXPECT_EQ(Files().size(), 5u);
  EXPECT_EQ(LoadAndAsk().found.outcome, Outcome::kHit);
}

TEST_F(NodeCacheTest, DamageIsSaidOnceAndMended) {
  LoadAndAsk();
  for (const auto& path : Files()) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(path) / 2);
    file.seekg(middle);
    const int byte = file.get();
    file.seekp(middle);
    file.put(static_cast<char>(byte ^ 4));
  }
  const WeightLoadFigures damaged = LoadAndAsk();
  EXPECT_EQ(damaged.found.outcome, Outcome::kInvalid);
  EXPECT_EQ(damaged.kept.outcome, Outcome::kWritten);
  ASSERT_EQ(damaged.notes.size(), 4u);  // of attention and of experts: damaged, and written
  EXPECT_THAT(damaged.notes[0], HasSubstr("is damaged: section"));
  EXPECT_EQ(LoadAndAsk().found.outcome, Outcome::kHit);
}

TEST_F(NodeCacheTest, AnUnusableFolderChangesNothing) {
  options_.packed_cache.folder = "/proc/nothing";
  const WeightLoadFigures load = LoadAndAsk();
  EXPECT_EQ(load.kept.outcome, Outcome::kRefused);
  EXPECT_THAT(load.notes, testing::Contains(HasSubstr("nothing is kept")));
}

}  // namespace
}  // namespace moebius
