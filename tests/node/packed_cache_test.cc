// SPDX-License-Identifier: Apache-2.0
// A node that takes its weights from the packed cache answers as one that reads the checkpoint.
#include "moebius/model/packed_cache.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/kernels/kernels.h"
#include "moebius/model/random_checkpoint.h"
#include "node/embedded.h"
#include "tests/node/expected_cases.h"
#include "tests/support/mini_checkpoint.h"

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

// A small model in FP8 or bf16 with blocks that fit nothing: not the heads of kv_b, nor the slices
// of dense and shared FFNs.
RandomCheckpointOptions SmallModel(Family family, DType dtype) {
  RandomCheckpointOptions options;
  options.family = family;
  options.num_layers = 3;
  options.hidden_size = 104;
  options.moe_intermediate_size = 56;
  options.head_dim = 20;
  options.span = 64;
  if (family == Family::kDeepseekV3) {
    options.dense_intermediate_size = 150;
    options.num_shared_experts = 2;
    options.num_groups = 2;
    options.num_kept_groups = 1;
  }
  options.dtype = dtype;
  if (dtype == DType::kF8E4M3) {
    options.block_rows = 48;
    options.block_columns = 40;
  }
  options.seed = 5;
  return options;
}

class SmallNodeCacheTest : public testing::Test {
 protected:
  struct Start {
    CaseAnswer answer;
    WeightLoadFigures load;
    int64_t weight_bytes = 0;
  };

  // Writes a model, and waits until a change of its files from now on would show in their times.
  std::string Write(const std::string& name, const RandomCheckpointOptions& options) {
    const std::string path = folder_.File(name);
    const absl::Status written = WriteRandomCheckpoint(path, options);
    EXPECT_TRUE(written.ok()) << written;
    while (!PackedSource::Of(**Checkpoint::Open(path))->is_settled) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    return path;
  }

  Start Ask(const std::string& model, bool has_cache, std::optional<Tier> tier = std::nullopt) {
    EmbeddedOptions options;
    options.model_path = model;
    options.tier = tier;
    options.num_threads = 2;
    options.kv_budget_bytes = int64_t{16} << 20;
    if (has_cache) options.packed_cache.folder = kept();
    const auto node = OpenDemo(options);
    GenerateRequest request;
    for (int64_t i = 0; i < 70; ++i) request.token_ids.push_back((i * 37 + 11) % 256);
    request.max_tokens = 12;
    return {moebius::Ask(*node, request), node->info().load, node->info().weight_bytes};
  }

  std::string kept() const { return folder_.File("kept"); }
  std::vector<std::string> KeptNames() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(kept())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  const TemporaryFolder folder_;
};

TEST_F(SmallNodeCacheTest, Fp8GivesTheSameBitsColdAndWarmOnEveryTier) {
  for (const Family family : {Family::kDeepseekV3, Family::kQwen3Moe}) {
    const std::string model =
        Write(absl::StrCat(FamilyName(family), "-fp8"), SmallModel(family, DType::kF8E4M3));
    for (const Tier tier : HostTiers()) {
      SCOPED_TRACE(absl::StrCat(FamilyName(family), " ", TierName(tier)));
      const Start without = Ask(model, false, tier);
      const Start cold = Ask(model, true, tier);
      const Start warm = Ask(model, true, tier);
      EXPECT_NE(cold.load.found.outcome, Outcome::kInvalid);
      EXPECT_EQ(warm.load.found.outcome, Outcome::kHit);
      EXPECT_EQ(warm.load.pack, absl::ZeroDuration());
      EXPECT_FALSE(without.answer.logits_hash.empty());
      for (const Start* start : {&cold, &warm}) {
        EXPECT_EQ(start->answer.logits_hash, without.answer.logits_hash);
        EXPECT_EQ(start->answer.token_ids, without.answer.token_ids);
        EXPECT_EQ(start->weight_bytes, without.weight_bytes);
      }
    }
  }
}

TEST_F(SmallNodeCacheTest, Fp8AndBf16NeverTakeEachOthersFiles) {
  const std::string fp8 = Write("fp8", SmallModel(Family::kDeepseekV3, DType::kF8E4M3));
  const std::string bf16 = Write("bf16", SmallModel(Family::kDeepseekV3, DType::kBF16));
  ASSERT_EQ(Ask(fp8, true).load.kept.outcome, Outcome::kWritten);
  const std::vector<std::string> of_fp8 = KeptNames();
  ASSERT_EQ(of_fp8.size(), 2u);
  const Start of_bf16 = Ask(bf16, true);
  EXPECT_EQ(of_bf16.load.found.outcome, Outcome::kMiss);
  EXPECT_EQ(KeptNames().size(), 4u);
  // Not even under their names.
  for (const std::string& name : KeptNames()) {
    if (std::find(of_fp8.begin(), of_fp8.end(), name) != of_fp8.end()) continue;
    const std::string role = name.substr(0, name.find('-'));
    for (const std::string& other : of_fp8) {
      if (other.rfind(role, 0) != 0) continue;
      std::filesystem::remove(kept() + "/" + name);
      std::filesystem::copy_file(kept() + "/" + other, kept() + "/" + name);
      std::filesystem::permissions(kept() + "/" + name, std::filesystem::perms(0600));
    }
  }
  const Start again = Ask(bf16, true);
  EXPECT_NE(again.load.found.outcome, Outcome::kHit);
  EXPECT_EQ(again.answer.logits_hash, of_bf16.answer.logits_hash);
  EXPECT_EQ(Ask(fp8, true).load.found.outcome, Outcome::kHit);
}

}  // namespace
}  // namespace moebius
