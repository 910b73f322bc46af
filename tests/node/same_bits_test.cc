// SPDX-License-Identifier: Apache-2.0
// The demo's recorded bits, reproduced whatever runs beside a request, however its prompt is cut,
// by any number of threads, any kernel tier and any placement of the experts, and after its KV was
// lost. One axis is varied at a time from the base case.
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "moebius/kernels/kernels.h"
#include "moebius/model/safetensors.h"
#include "tests/node/expected_cases.h"
#include "tests/support/skip.h"

namespace moebius {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr bool kSlowTree = true;
#else
constexpr bool kSlowTree = false;
#endif

// All but the long case, which has a suite of its own. Under the sanitizers the two cheapest.
std::vector<ExpectedCase> ShortCases() {
  std::vector<ExpectedCase> cases;
  for (ExpectedCase& expected : ReadExpectedCases()) {
    const int64_t most_tokens = kSlowTree ? 48 : 64;
    const bool is_short = static_cast<int64_t>(expected.request.token_ids.size()) < 1000 &&
                          *expected.request.max_tokens <= most_tokens;
    if (is_short) cases.push_back(std::move(expected));
  }
  return cases;
}

// A greedy and a sampled answer for each value of an axis; under the sanitizers a few tokens.
std::vector<ExpectedCase> BaseCases() {
  if (kSlowTree) return {FindExpectedCase("short")};
  return {FindExpectedCase("greedy"), FindExpectedCase("sampled")};
}

void ExpectSameBitsOf(const std::vector<ExpectedCase>& cases, const EmbeddedOptions& options) {
  const auto node = OpenDemo(options);
  for (const ExpectedCase& expected : cases) ExpectSameBits(*node, expected);
}

TEST(SameBitsTest, AreThoseOfTheRecordedFile) {
  const auto node = OpenDemo();
  EXPECT_EQ(node->info().config_hash, ExpectedConfigHash());
  for (const ExpectedCase& expected : ShortCases()) ExpectSameBits(*node, expected);
}

TEST(SameBitsTest, HoldAmongSevenOthers) {
  const auto node = OpenDemo();
  constexpr uint64_t kSeed = 20250301;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  std::vector<std::shared_ptr<GenerateStream>> others;
  for (int index = 0; index < 7; ++index) {
    GenerateRequest request;
    request.token_ids.push_back(256);
    const uint64_t length = 1 + random.Below(60);
    for (uint64_t id = 0; id < length; ++id) {
      request.token_ids.push_back(static_cast<int64_t>(random.Below(256)));
    }
    request.max_tokens = (kSlowTree ? 4 : 30) + 8 * index;
    if (index % 2 == 0) request.temperature = 1;
    if (index % 3 == 0) request.seed = 42;
    others.push_back(*node->Submit(request));
  }
  for (const ExpectedCase& expected : BaseCases()) ExpectSameBits(*node, expected);
  for (const auto& other : others) {
    while (other->Next().has_value()) {
    }
    EXPECT_TRUE(other->status().ok()) << other->status();
  }
}

TEST(SameBitsTest, HoldForAllCasesAtOnce) {
  const auto node = OpenDemo();
  std::vector<std::thread> readers;
  for (const ExpectedCase& expected : ShortCases()) {
    for (int copy = 0; copy < 2; ++copy) {
      readers.emplace_back([&node, expected] { ExpectSameBits(*node, expected); });
    }
  }
  for (std::thread& reader : readers) reader.join();
}

TEST(SameBitsTest, HoldForEveryChunkSize) {
  for (const int64_t chunk_rows : {1, 7, 64}) {
    SCOPED_TRACE(chunk_rows);
    EmbeddedOptions options;
    options.chunk_rows = chunk_rows;
    ExpectSameBitsOf(BaseCases(), options);
  }
}

TEST(SameBitsTest, HoldForEveryNumberOfThreads) {
  for (const int threads : {1, 2, 3}) {
    SCOPED_TRACE(threads);
    EmbeddedOptions options;
    options.num_threads = threads;
    ExpectSameBitsOf(BaseCases(), options);
  }
}

TEST(SameBitsTest, HoldForEveryPlacementOfTheExperts) {
  for (const int pipelines : {2, 3, 4}) {
    SCOPED_TRACE(pipelines);
    EmbeddedOptions options;
    options.num_expert_pipelines = pipelines;
    ExpectSameBitsOf(BaseCases(), options);
  }
}

TEST(SameBitsTest, HoldWhenKvIsLostAndComputedAgain) {
  const auto node = OpenDemo();
  for (const int64_t after : {0, 1, 10, 40}) {
    SCOPED_TRACE(after);
    for (ExpectedCase expected : BaseCases()) {
      expected.request.recompute_after = after;
      ExpectSameBits(*node, expected);
    }
  }
}

TEST(SameBitsTest, AreNotThoseOfAModelWithOneFlippedBit) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "moebius_flipped_bit";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  for (const char* name :
       {"config.json", "generation_config.json", "moebius.json", "model.safetensors"}) {
    std::filesystem::copy_file(std::filesystem::path(DemoFolder()) / name, folder / name);
  }
  // The lowest bit of one weight that every token meets.
  const std::string path = (folder / "model.safetensors").string();
  uint64_t offset = 0;
  {
    const auto weights = SafetensorsFile::Open(path);
    ASSERT_TRUE(weights.ok()) << weights.status();
    offset = (*weights)->Find("model.layers.3.input_layernorm.weight")->file_offset;
  }
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 1));
  file.close();

  EmbeddedOptions options;
  options.model_path = folder.string();
  for (const ExpectedCase& expected : BaseCases()) {
    const CaseAnswer answer = Ask(*OpenDemo(options), expected.request);
    EXPECT_NE(answer.logits_hash, expected.logits_hash) << expected.name;
  }
  std::filesystem::remove_all(folder);
}

class SameBitsOfTierTest : public testing::TestWithParam<Tier> {};

TEST_P(SameBitsOfTierTest, HoldAndRanOnThatTier) {
  for (const TierReport& report : TierReports()) {
    if (report.tier == GetParam() && !report.usable) {
      MOEBIUS_SKIP("tier " + std::string(TierName(report.tier)) +
                   " cannot run on this host: " + report.reason);
    }
  }
  EmbeddedOptions options;
  options.tier = GetParam();
  const auto node = OpenDemo(options);
  EXPECT_EQ(node->info().tier, TierName(GetParam()));
  const uint64_t executed = FindKernels(GetParam())->Executed();
  for (const ExpectedCase& expected : BaseCases()) ExpectSameBits(*node, expected);
  EXPECT_GT(FindKernels(GetParam())->Executed(), executed);
}

INSTANTIATE_TEST_SUITE_P(AllTiers, SameBitsOfTierTest,
                         testing::Values(Tier::kPortable, Tier::kAvx2, Tier::kAvx512,
                                         Tier::kAvx512Bf16, Tier::kAmx),
                         [](const testing::TestParamInfo<Tier>& info) {
                           return std::string(TierName(info.param));
                         });

}  // namespace
}  // namespace moebius
