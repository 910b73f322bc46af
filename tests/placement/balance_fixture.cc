// SPDX-License-Identifier: Apache-2.0
#include "tests/placement/balance_fixture.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "moebius/base/check.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

template <typename T>
std::vector<T> Integers(const Json& array) {
  std::vector<T> values;
  for (const Json& element : array.elements()) values.push_back(static_cast<T>(element.integer()));
  return values;
}

EplbCase ReadCase(const Json& json) {
  EplbCase parsed;
  parsed.name = json.Find("name")->string();
  const auto count = [&json](const char* key) {
    return static_cast<int32_t>(json.Find(key)->integer());
  };
  const int32_t num_devices = count("num_devices");
  for (size_t layer = 0; layer < json.Find("load")->elements().size(); ++layer) {
    BalanceProblem& problem = parsed.problems.emplace_back();
    problem.load = Integers<int64_t>(json.Find("load")->elements()[layer]);
    problem.device_slots.assign(static_cast<size_t>(num_devices),
                                count("num_replicas") / num_devices);
    problem.num_groups = count("num_groups");
    problem.num_nodes = count("num_nodes");
    BalancedLayer& answer = parsed.answers.emplace_back();
    answer.expert_of_slot = Integers<int32_t>(json.Find("physical_to_logical")->elements()[layer]);
    answer.replica_count = Integers<int32_t>(json.Find("replica_count")->elements()[layer]);
    parsed.max_over_mean.push_back(json.Find("max_over_mean")->elements()[layer].number());
  }
  return parsed;
}

}  // namespace

std::vector<EplbCase> ReadEplbCases() {
  std::ifstream file("tests/golden/data/eplb/cases.json");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const absl::StatusOr<Json> json = Json::Parse(text, "cases.json");
  MOEBIUS_CHECK(json.ok());
  std::vector<EplbCase> cases;
  for (const Json& element : json->elements()) cases.push_back(ReadCase(element));
  return cases;
}

BalanceProblem RandomProblem(Random& random) {
  BalanceProblem problem;
  const auto num_experts = 1 + static_cast<int32_t>(random.Below(64));
  const uint64_t kind = random.Below(3);
  for (int32_t expert = 0; expert < num_experts; ++expert) {
    const auto even = static_cast<int64_t>(random.Below(1000));
    const auto falling = static_cast<int64_t>(1'000'000 / (1 + random.Below(64)));
    const auto hot = static_cast<int64_t>(random.Below(10) == 0 ? 100'000 : random.Below(100));
    problem.load.push_back(kind == 0 ? even : kind == 1 ? falling : hot);
  }
  const auto num_devices = 1 + static_cast<int32_t>(random.Below(12));
  const bool equal = random.Below(2) == 0;
  const int32_t slots = (num_experts + num_devices - 1) / num_devices;
  const auto extra = static_cast<int32_t>(random.Below(4));
  for (int32_t device = 0; device < num_devices; ++device) {
    const int32_t more = equal ? extra : static_cast<int32_t>(random.Below(6));
    problem.device_slots.push_back(slots + more);
  }
  problem.num_groups = 1 + static_cast<int32_t>(random.Below(std::min(8, num_experts)));
  problem.num_nodes = 1 + static_cast<int32_t>(random.Below(std::min(4, num_devices)));
  return problem;
}

}  // namespace moebius
