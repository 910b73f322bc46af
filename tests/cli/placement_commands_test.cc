// SPDX-License-Identifier: Apache-2.0
// `moebius placement plan`: cases and plans, as a person types them.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/command_line.h"
#include "cli/placement_case.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/exit_code.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;

constexpr char kCases[] = "tests/golden/data/eplb/cases.json";

struct Output {
  int code = 0;
  std::string out;
  std::string err;
};

Output Moebius(const std::vector<std::string>& words) {
  Output run;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  run.code = RunCommandLine(words);
  std::fflush(stdout);
  run.out = testing::internal::GetCapturedStdout();
  run.err = testing::internal::GetCapturedStderr();
  return run;
}

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(testing::TempDir(), "moebius_placement_", name);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(PlacementPlanTest, GivesTheRecordedPlansAndNeverWorseOnes) {
  const Json cases = *Json::Parse(ReadFile(kCases), kCases);
  ASSERT_EQ(cases.elements().size(), 4u);
  for (const Json& golden : cases.elements()) {
    // One case in a file of its own, as it stands.
    const std::string file = WriteFile("case.json", golden.ToCanonicalText());
    const Output eplb = Moebius({"placement", "plan", "--mode=eplb", "--case", file, "--json"});
    ASSERT_EQ(eplb.code, kExitOk) << eplb.err;
    EXPECT_THAT(eplb.err, IsEmpty());
    const Json plan = *Json::Parse(eplb.out, "stdout");
    EXPECT_THAT(plan.members(), ElementsAre(Key("lower_bound"), Key("max_over_mean"),
                                            Key("physical_to_logical"), Key("replica_count")));
    EXPECT_EQ(*plan.Find("physical_to_logical"), *golden.Find("physical_to_logical"));
    EXPECT_EQ(*plan.Find("replica_count"), *golden.Find("replica_count"));
    const Output balanced =
        Moebius({"placement", "plan", "--mode=balanced", "--case", file, "--json"});
    ASSERT_EQ(balanced.code, kExitOk) << balanced.err;
    const Json better = *Json::Parse(balanced.out, "stdout");
    for (size_t layer = 0; layer < golden.Find("load")->elements().size(); ++layer) {
      const auto number = [layer](const Json& json, const char* key) {
        const Json& value = json.Find(key)->elements()[layer];
        return value.kind() == Json::Kind::kInteger ? static_cast<double>(value.integer())
                                                    : value.number();
      };
      const double recorded = number(golden, "max_over_mean");
      EXPECT_NEAR(number(plan, "max_over_mean"), recorded, 5e-7);
      EXPECT_LE(number(better, "max_over_mean"), recorded);
      EXPECT_GE(number(better, "max_over_mean"), number(better, "lower_bound"));
    }
  }
}

TEST(PlacementPlanTest, ChoosesACaseByNameAndShowsItToPeople) {
  const Output one = Moebius({"placement", "plan", "--case", kCases, "--name", "one-hot-expert"});
  EXPECT_EQ(one.code, kExitOk) << one.err;
  EXPECT_THAT(one.out, HasSubstr("one-hot-expert: 2 layers, 32 experts in 40 slots of 8 devices"));
  const Output none = Moebius({"placement", "plan", "--case", kCases});
  EXPECT_EQ(none.code, kExitFailed);
  EXPECT_THAT(none.err, HasSubstr("choose one with --name"));
  EXPECT_THAT(none.err, HasSubstr("zipf-64-experts, uniform-16-experts"));
}

TEST(PlacementPlanTest, KeepsToAMoveBudgetAndSaysSo) {
  const std::string file = WriteFile("budget.json",
                                     R"({"load": [[80, 10, 10, 10, 10, 10]], "device_slots": [4, 4],
                    "current": [[0, 1, 2, -1, 3, 4, 5, -1]], "expert_bytes": 1000})");
  const Output free = Moebius({"placement", "plan", "--case", file});
  EXPECT_EQ(free.code, kExitOk) << free.err;
  EXPECT_THAT(free.out, HasSubstr("1.538"));  // 100 of 65, now
  EXPECT_THAT(free.out, HasSubstr("1.000"));
  const Output none = Moebius({"placement", "plan", "--case", file, "--move-budget", "999"});
  EXPECT_THAT(none.out, HasSubstr("0 replicas move, 0 B; the budget allows no more"));
  const Output eplb =
      Moebius({"placement", "plan", "--mode=eplb", "--case", file, "--move-budget", "9GiB"});
  EXPECT_EQ(eplb.code, kExitUsage);
  EXPECT_THAT(eplb.err, HasSubstr("only the mode balanced keeps to a move budget"));
}

TEST(PlacementPlanTest, NamesWhatIsWrongWithACase) {
  const auto refusal = [](const std::string& text) {
    return std::string(ParsePlacementCase(text, "f", "").status().message());
  };
  EXPECT_THAT(refusal("[1, 2"), HasSubstr("f"));
  EXPECT_THAT(refusal("7"), HasSubstr("a case is an object"));
  EXPECT_THAT(refusal(R"({"load": [[1]]})"), HasSubstr("num_devices is missing"));
  EXPECT_THAT(refusal(R"({"num_devices": 1, "num_replicas": 1})"), HasSubstr("load is missing"));
  EXPECT_THAT(refusal(R"({"load": [[1.5]], "num_devices": 1, "num_replicas": 1})"),
              HasSubstr("load of layer 0 element 0 is a number"));
  EXPECT_THAT(refusal(R"({"load": [[1]], "num_devices": 0, "num_replicas": 1})"),
              HasSubstr("num_devices is 0"));
  EXPECT_THAT(refusal(R"({"load": [[1, 1]], "num_devices": 1, "num_replicas": 1})"),
              HasSubstr("2 experts need a slot each"));
  EXPECT_THAT(refusal(R"({"load": [[1]], "device_slots": [1], "current": [[7]]})"),
              HasSubstr("current of layer 0"));
  const Output mode = Moebius({"placement", "plan", "--mode=best", "--case", kCases, "--json"});
  EXPECT_EQ(mode.code, kExitUsage);
  EXPECT_THAT(mode.err, HasSubstr("--mode is 'best'"));
  EXPECT_EQ(Moebius({"placement", "plan"}).code, kExitUsage);
}

TEST(PlacementPlanTest, SpreadsReplicasThatDevicesDoNotDivide) {
  const PlacementCase question = *ParsePlacementCase(
      R"({"load": [[5, 5]], "num_devices": 3, "num_replicas": 4, "more": 1})", "f", "");
  EXPECT_THAT(question.problems[0].device_slots, ElementsAre(2, 1, 1));
  EXPECT_THAT(question.ignored, ElementsAre("more"));
}

}  // namespace
}  // namespace moebius
