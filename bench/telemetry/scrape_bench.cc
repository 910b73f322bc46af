// SPDX-License-Identifier: Apache-2.0
// What the detail of expert metrics costs, for DeepSeek-V3's shape: 58 layers of 256 experts. A
// scrape of all 14,848 demand series has a target of 250 ms and 2 MB; counting a step's demand
// costs the same whatever a scrape shows, because labels are made in the scrape alone.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"

#include "moebius/base/random.h"
#include "moebius/telemetry/expert_load.h"
#include "moebius/telemetry/registry.h"
#include "router_service/expert_load.h"
#include "router_service/metrics.h"

namespace moebius {
namespace {

constexpr int64_t kLayers = 61;
constexpr int64_t kDenseLayers = 3;
constexpr int32_t kExperts = 256;
constexpr int32_t kTopK = 8;

std::vector<bool> MoeLayers() {
  std::vector<bool> layers(kLayers, true);
  std::fill(layers.begin(), layers.begin() + kDenseLayers, false);
  return layers;
}

// The demand of a step of `num_rows` rows, all layers.
StepLoad LoadOf(int64_t num_rows) {
  Random random(1);
  StepLoad step(kLayers, kExperts);
  for (int64_t layer = kDenseLayers; layer < kLayers; ++layer) {
    Assignments assignments;
    assignments.Reset(num_rows, kTopK);
    for (int32_t& id : assignments.expert_ids) {
      id = static_cast<int32_t>(random.Below(kExperts));
    }
    step.Add(LayerId(layer), assignments);
  }
  return step;
}

// Argument: ExpertDetail.
void BM_Scrape(benchmark::State& state) {
  const auto detail = static_cast<ExpertDetail>(state.range(0));
  ExpertLoad load(MoeLayers(), kExperts);
  // Counts as long as those of a router that has served for months.
  const StepLoad step = LoadOf(4096);
  for (int i = 0; i < 1000; ++i) load.Add(step);
  Registry registry;
  const auto handle = registry.AddCollector(
      [&](MetricWriter& writer) { WriteExpertLoadMetrics(load.Read(), detail, writer); });
  size_t bytes = 0;
  for (auto _ : state) bytes = registry.Scrape().size();
  state.counters["bytes"] = static_cast<double>(bytes);
  state.SetLabel(std::string(ExpertDetailName(detail)));
}
BENCHMARK(BM_Scrape)
    ->Arg(static_cast<int>(ExpertDetail::kOff))
    ->Arg(static_cast<int>(ExpertDetail::kAuto))
    ->Arg(static_cast<int>(ExpertDetail::kLayerExpert))
    ->Unit(benchmark::kMillisecond);

// What every step pays, whatever is shown. Argument: rows of the step.
void BM_CountStep(benchmark::State& state) {
  ExpertLoad load(MoeLayers(), kExperts);
  const StepLoad step = LoadOf(state.range(0));
  for (auto _ : state) load.Add(step);
}
BENCHMARK(BM_CountStep)->Arg(1)->Arg(512)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace moebius

BENCHMARK_MAIN();
