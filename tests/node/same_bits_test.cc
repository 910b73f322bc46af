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
#include "tests/node/expected_cases.h"
#include "tests/support/skip.h"

namespace moebius {
namespace {

// The long case has a suite of its own.
std::vector<ExpectedCase> ShortCases() {
  std::vector<ExpectedCase> cases;
  for (ExpectedCase& expected : ReadExpectedCases()) {
    if (expected.request.token_ids.size() < 1000) cases.push_back(std::move(expected));
  }
  return cases;
}

// A case of one greedy and one sampled answer is enough for each value of an axis.
std::vector<ExpectedCase> BaseCases() {
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
    request.max_tokens = 30 + 8 * index;
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
    ExpectSameBitsOf({FindExpectedCase("greedy")}, options);
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
    ExpectSameBitsOf({FindExpectedCase("sampled")}, options);
  }
}

TEST(SameBitsTest, HoldWhenKvIsLostAndComputedAgain) {
  const auto node = OpenDemo();
  for (const int64_t after : {0, 1, 17, 40}) {
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
  // The lowest bit of the mantissa of one weight somewhere in the middle of the file: no sign, no
  // exponent. A weight of an expert that nobody visits would change nothing, hence a few places.
  const ExpectedCase expected = FindExpectedCase("greedy");
  const auto size = static_cast<int64_t>(std::filesystem::file_size(folder / "model.safetensors"));
  bool noticed = false;
  for (int64_t place = 1; place < 8 && !noticed; ++place) {
    const int64_t offset = size / 16 * (2 * place) / 2 * 2;
    std::fstream file(folder / "model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get());
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 1));
    file.close();
    EmbeddedOptions options;
    options.model_path = folder.string();
    const CaseAnswer answer = Ask(*OpenDemo(options), expected.request);
    noticed = answer.logits_hash != expected.logits_hash;
  }
  EXPECT_TRUE(noticed);
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
                                         Tier::kAvx512Bf16),
                         [](const testing::TestParamInfo<Tier>& info) {
                           return std::string(TierName(info.param));
                         });

}  // namespace
}  // namespace moebius
