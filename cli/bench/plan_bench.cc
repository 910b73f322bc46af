// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/plan_bench.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/bench/compute_ceilings.h"

#include "moebius/base/executor.h"
#include "moebius/base/random.h"
#include "moebius/base/status.h"
#include "moebius/kernels/kernels.h"
#include "moebius/placement/placement.h"
#include "moebius/routing/combine.h"
#include "moebius/routing/dispatch_plan.h"
#include "moebius/routing/gate.h"
#include "moebius/tensor/buffer.h"

namespace moebius {
namespace {

constexpr uint64_t kSeed = 1;
constexpr double kLimitSeconds = 150e-9;  // for each assignment
constexpr int32_t kNumGroups = 8;
constexpr int32_t kNumKeptGroups = 4;

GateConfig GateOf(const PlanBenchOptions& options) {
  GateConfig gate;
  gate.num_experts = options.num_experts;
  gate.top_k = options.top_k;
  gate.num_groups = kNumGroups;
  gate.num_kept_groups = kNumKeptGroups;
  gate.score_function = ScoreFunction::kSigmoid;
  gate.normalize_weights = true;
  return gate;
}

// Rows that chose their experts by normally distributed logits.
Assignments RandomAssignments(const PlanBenchOptions& options) {
  Random random(kSeed);
  RowBatch<float> logits(options.num_rows, options.num_experts);
  for (int64_t row = 0; row < options.num_rows; ++row) {
    for (float& logit : logits.rows().span(row)) logit = random.Normal();
  }
  Assignments assignments;
  GateCounts counts;
  SelectExperts(GateOf(options), GroupFill::kNegativeInfinity, logits.rows(), {}, &assignments,
                &counts);
  return assignments;
}

absl::Status Between(absl::string_view flag, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is ", value, ", not in [", low, ", ", high, "]"));
}

}  // namespace

absl::Status ValidateOptions(const PlanBenchOptions& options) {
  MOEBIUS_RETURN_IF_ERROR(Between("--rows", options.num_rows, 1, 1 << 20));
  MOEBIUS_RETURN_IF_ERROR(Between("--experts", options.num_experts, 64, 4096));
  if (options.num_experts % kNumGroups != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--experts is ", options.num_experts, ", no multiple of ", kNumGroups));
  }
  MOEBIUS_RETURN_IF_ERROR(Between("--top-k", options.top_k, 1, 16));
  MOEBIUS_RETURN_IF_ERROR(Between("--services", options.num_services, 1, 256));
  MOEBIUS_RETURN_IF_ERROR(Between("--hidden", options.hidden_size, 1, 65536));
  MOEBIUS_RETURN_IF_ERROR(Between("--repetitions", options.repetitions, 1, 1000));
  if (options.duration < absl::Milliseconds(1) || options.duration > absl::Seconds(30)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--seconds is ", absl::ToDoubleSeconds(options.duration), ", not in [0.001, 30]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<BenchReport> RunPlanBench(
    const PlanBenchOptions& options,
    const std::function<void(int done, int total, const std::string& next)>& progress) {
  MOEBIUS_RETURN_IF_ERROR(ValidateOptions(options));
  const PlacementShape shape = PlacementShape::Make(options.num_experts, {true}, 1, 0);
  MOEBIUS_ASSIGN_OR_RETURN(
      const Placement placement,
      Placement::Static(shape, {.num_services = options.num_services,
                                .expert_replicas = options.num_services > 1 ? 2 : 1}));
  const LayerRule rule{LayerId(0), options.num_experts, kNumGroups, 1};
  const Kernels& kernels = BestKernels();
  std::vector<double> values;
  absl::Status status;
  Executor executor(1);
  executor.Run([&] {
    const Assignments assignments = RandomAssignments(options);
    DispatchPlan plan;
    status = BuildDispatchPlan(rule, assignments, placement, DispatchLimits(), &plan);
    if (!status.ok()) return;
    std::vector<RowBatch<Bf16>> replies;
    std::vector<MutableBf16Rows> views;
    for (const ServiceDispatch& dispatch : plan.services()) {
      replies.emplace_back(dispatch.num_reply_rows, options.hidden_size);
      views.push_back(replies.back().rows());
    }
    RowBatch<Bf16> out(options.num_rows, options.hidden_size);
    const double num_assignments = static_cast<double>(options.num_rows * options.top_k);
    // The first one warms up.
    for (int repetition = -1; repetition < options.repetitions && status.ok(); ++repetition) {
      if (progress != nullptr) progress(repetition + 1, options.repetitions + 1, "plan_combine");
      const double seconds = MeanSeconds(options.duration, [&] {
        status.Update(BuildDispatchPlan(rule, assignments, placement, DispatchLimits(), &plan));
        Combine(kernels, plan, views, out.rows());
      });
      if (repetition >= 0) values.push_back(seconds / num_assignments);
    }
  });
  MOEBIUS_RETURN_IF_ERROR(status);
  BenchReport report = MakeBenchReport(kSeed);
  report.threads = 1;
  BenchResult result = Summarize("plan_combine", "s", BenchSense::kTime, values);
  CompareWith("limit of 150 ns an assignment", values,
              std::vector<double>(values.size(), kLimitSeconds), 1.0, &result);
  report.results.push_back(std::move(result));
  return report;
}

}  // namespace moebius
