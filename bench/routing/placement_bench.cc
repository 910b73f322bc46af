// SPDX-License-Identifier: Apache-2.0
// Placement plans of a DeepSeek-V3-like model on one thread: 58 layers of 256 experts on 320
// devices, loads that fall like 1/rank. Seed 1. The target is 1 s for all layers.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "benchmark/benchmark.h"

#include "moebius/base/check.h"
#include "moebius/base/random.h"
#include "moebius/placement/balanced_plan.h"
#include "moebius/placement/eplb.h"

namespace moebius {
namespace {

constexpr int kLayers = 58;

std::vector<BalanceProblem> Problems(int32_t slots_per_device) {
  Random random(1);
  std::vector<BalanceProblem> problems;
  for (int layer = 0; layer < kLayers; ++layer) {
    BalanceProblem& problem = problems.emplace_back();
    for (int expert = 0; expert < 256; ++expert) {
      problem.load.push_back(static_cast<int64_t>(1'000'000 / (1 + random.Below(256))));
    }
    problem.device_slots.assign(320, slots_per_device);
    problem.num_groups = 8;
    problem.num_nodes = 8;
  }
  return problems;
}

// Argument: slots of a device.
template <absl::StatusOr<BalancedLayer> (*Plan)(const BalanceProblem&)>
void BM_Plan(benchmark::State& state) {
  const std::vector<BalanceProblem> problems = Problems(static_cast<int32_t>(state.range(0)));
  double worst_over_bound = 0;
  for (auto _ : state) {
    for (const BalanceProblem& problem : problems) {
      const absl::StatusOr<BalancedLayer> layer = Plan(problem);
      MOEBIUS_CHECK(layer.ok());
      worst_over_bound =
          std::max(worst_over_bound, MaxOverMean(problem, *layer) / LowerBoundOverMean(problem));
    }
  }
  state.counters["worst_over_bound"] = worst_over_bound;
}
BENCHMARK(BM_Plan<PlanEplb>)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Plan<PlanBalanced>)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace moebius

BENCHMARK_MAIN();
