// SPDX-License-Identifier: Apache-2.0
// Gate, plan and combine on one thread: nanoseconds per assignment, and allocations of a steady
// step. Seed 1.
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "benchmark/benchmark.h"

#include "moebius/base/check.h"
#include "moebius/base/float_environment.h"
#include "moebius/base/random.h"
#include "moebius/kernels/kernels.h"
#include "moebius/routing/combine.h"
#include "moebius/routing/dispatch_plan.h"
#include "moebius/routing/dispatch_waves.h"
#include "moebius/routing/gate.h"
#include "moebius/tensor/buffer.h"

namespace {
int64_t num_allocations = 0;
}  // namespace

// Counts what a steady step allocates; the benchmark runs on one thread.
[[gnu::noinline]] void* operator new(size_t size) {
  ++num_allocations;
  void* const memory = std::malloc(size);
  MOEBIUS_CHECK(memory != nullptr);
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace moebius {
namespace {

// A DeepSeek-V3-like layer: E = 256, k = 8, 8 groups of which 4 stay, one shared expert.
GateConfig GateOf() {
  GateConfig config;
  config.num_experts = 256;
  config.top_k = 8;
  config.num_groups = 8;
  config.num_kept_groups = 4;
  config.score_function = ScoreFunction::kSigmoid;
  config.normalize_weights = true;
  return config;
}
const LayerRule kRule{LayerId(0), 256, 8, 1};

RowBatch<float> RandomLogits(int64_t num_rows) {
  Random random(1);
  RowBatch<float> logits(num_rows, kRule.num_experts);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (float& logit : logits.rows().span(row)) logit = random.Normal();
  }
  return logits;
}

Placement PlacementOf(int32_t num_services) {
  const PlacementShape shape = PlacementShape::Make(kRule.num_experts, {true}, 1, 0);
  return *Placement::Static(shape, {.num_services = num_services, .expert_replicas = 2});
}

// Reports time per assignment and allocations per iteration.
class AssignmentTimer {
 public:
  AssignmentTimer(benchmark::State& state, int64_t num_assignments)
      : state_(state), num_assignments_(num_assignments), allocations_before_(num_allocations) {}
  ~AssignmentTimer() {
    const int64_t allocations = num_allocations - allocations_before_;
    state_.counters["s_per_assignment"] = benchmark::Counter(
        static_cast<double>(num_assignments_),
        benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
    state_.counters["allocations"] =
        static_cast<double>(allocations) / static_cast<double>(state_.iterations());
  }

 private:
  benchmark::State& state_;
  int64_t num_assignments_;
  int64_t allocations_before_;
};

void BM_SelectExperts(benchmark::State& state) {
  const ScopedFloatEnvironment environment;
  const RowBatch<float> logits = RandomLogits(state.range(0));
  const std::vector<float> bias(256, 0.01f);
  Assignments assignments;
  GateCounts counts;
  const auto select = [&] {
    SelectExperts(GateOf(), GroupFill::kNegativeInfinity, logits.rows(), bias, &assignments,
                  &counts);
  };
  select();
  const AssignmentTimer timer(state, state.range(0) * 8);
  for (auto _ : state) select();
}
BENCHMARK(BM_SelectExperts)->Arg(1)->Arg(512)->Arg(4096);

// Arguments: rows, services, hidden size (0: the plan alone).
void BM_PlanAndCombine(benchmark::State& state) {
  const ScopedFloatEnvironment environment;
  const int64_t num_rows = state.range(0), hidden_size = state.range(2);
  const Placement placement = PlacementOf(static_cast<int32_t>(state.range(1)));
  Assignments assignments;
  GateCounts counts;
  SelectExperts(GateOf(), GroupFill::kNegativeInfinity, RandomLogits(num_rows).rows(), {},
                &assignments, &counts);
  const Kernels& kernels = BestKernels();
  DispatchPlan plan;
  const auto build = [&] {
    const absl::Status status =
        BuildDispatchPlan(kRule, assignments, placement, DispatchLimits(), &plan);
    MOEBIUS_CHECK(status.ok());
  };
  build();
  std::vector<RowBatch<Bf16>> replies;
  std::vector<MutableBf16Rows> views;
  for (const ServiceDispatch& dispatch : plan.services()) {
    replies.emplace_back(dispatch.num_reply_rows, hidden_size);
    for (int64_t row = 0; row < dispatch.num_reply_rows; ++row) {
      for (Bf16& value : replies.back().rows().span(row)) value = ToBf16(0.5f);
    }
    views.push_back(replies.back().rows());
  }
  RowBatch<Bf16> out(num_rows, hidden_size);
  {
    const AssignmentTimer timer(state, num_rows * 8);
    for (auto _ : state) {
      build();
      if (hidden_size > 0) Combine(kernels, plan, views, out.rows());
    }
  }
  state.counters["rows_out"] = static_cast<double>(plan.counts().dispatched_rows);
  state.counters["rows_back"] = static_cast<double>(plan.counts().reply_rows);
}
BENCHMARK(BM_PlanAndCombine)
    ->Args({4096, 32, 0})
    ->Args({4096, 32, 64})
    ->Args({4096, 32, 256})
    ->Args({4096, 32, 1024})
    ->Args({4096, 4, 1024})
    ->Args({4096, 32, 7168})
    ->Args({512, 8, 2048})
    ->Args({1, 8, 2048})
    ->Args({1, 32, 0});

// Bytes of rows per token and layer, out and back, beside a protocol with one row per assignment.
struct WireShape {
  const char* name;
  int32_t num_experts, top_k, groups, kept_groups, combine_groups;
  int64_t hidden_size;
};
constexpr WireShape kWireShapes[] = {
    {"demo", 32, 4, 4, 2, 4, 192},
    {"Qwen3-30B-A3B", 128, 8, 1, 1, 4, 2048},
    {"DeepSeek-V3", 256, 8, 8, 4, 8, 7168},
};

// Arguments: shape, services.
void BM_WireBytes(benchmark::State& state) {
  const ScopedFloatEnvironment environment;
  const WireShape& shape = kWireShapes[state.range(0)];
  constexpr int64_t kRows = 1024;
  GateConfig config;
  config.num_experts = shape.num_experts;
  config.top_k = shape.top_k;
  config.num_groups = shape.groups;
  config.num_kept_groups = shape.kept_groups;
  config.score_function = shape.groups > 1 ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
  Random random(1);
  RowBatch<float> logits(kRows, shape.num_experts);
  for (int64_t row = 0; row < kRows; ++row) {
    for (float& logit : logits.rows().span(row)) logit = random.Normal();
  }
  Assignments assignments;
  GateCounts counts;
  SelectExperts(config, GroupFill::kNegativeInfinity, logits.rows(), {}, &assignments, &counts);
  const LayerRule rule{LayerId(0), shape.num_experts, shape.combine_groups, 0};
  const PlacementShape held = PlacementShape::Make(shape.num_experts, {true}, 0, 0);
  const Placement placement = *Placement::Static(
      held, {.num_services = static_cast<int32_t>(state.range(1)), .expert_replicas = 1});
  DispatchPlan plan;
  for (auto _ : state) {
    const absl::Status status =
        BuildDispatchPlan(rule, assignments, placement, DispatchLimits(), &plan);
    MOEBIUS_CHECK(status.ok());
  }
  const WireBytes bytes =
      CountWireBytes(plan.counts(), plan.counts().served, shape.hidden_size * 2);
  state.SetLabel(shape.name);
  state.counters["out_per_token"] = static_cast<double>(bytes.out) / kRows;
  state.counters["back_per_token"] = static_cast<double>(bytes.back) / kRows;
  state.counters["naive_each_way"] = static_cast<double>(bytes.naive) / kRows;
}
BENCHMARK(BM_WireBytes)->ArgsProduct({{0, 1, 2}, {4, 8, 32}});

}  // namespace
}  // namespace moebius

BENCHMARK_MAIN();
