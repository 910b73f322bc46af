// SPDX-License-Identifier: Apache-2.0
// What a layer allocates when it has seen as large a layer before: nothing.
#include <vector>

#include "gtest/gtest.h"

#include "router_service/expert_layer.h"
#include "tests/support/counting_allocator.h"

namespace moebius {
namespace {

// Answers zeros and allocates nothing; service 1 fails in the first round when asked to.
class ZeroExperts final : public ExpertPort {
 public:
  absl::Status BeginStep(const StepPlan&) override { return absl::OkStatus(); }
  absl::Status Forward(LayerId, const DispatchPlan&, ForwardCall call, Bf16Rows,
                       absl::Span<const MutableBf16Rows> replies,
                       std::vector<ServiceId>* failed) override {
    for (const MutableBf16Rows& reply : replies) {
      for (int64_t row = 0; row < reply.num_rows; ++row) {
        for (Bf16& value : reply.span(row)) value = ToBf16(0);
      }
    }
    if (fails && call.number == 0) failed->push_back(ServiceId(1));
    return absl::OkStatus();
  }
  void EndStep() override {}

  bool fails = false;
};

TEST(RouterAllocationTest, ALayerAllocatesNothingInSteadyState) {
  constexpr int64_t kRows = 32;
  constexpr int64_t kHidden = 64;
  StaticPlacementOptions options;
  options.num_services = 3;
  options.expert_replicas = 2;
  const Placement placement = *Placement::Static(PlacementShape::Make(8, {true}, 1, 0), options);
  Executor executor(1);
  ZeroExperts experts;
  ExpertLayer layer({&BestKernels(), &executor, &experts, &placement});
  const LayerRule rule{LayerId(0), 8, 4, 1};
  Assignments assignments;
  assignments.Reset(kRows, 2);
  for (size_t row = 0; row < size_t{kRows}; ++row) {
    assignments.expert_ids[2 * row] = static_cast<int32_t>(row % 8);
    assignments.expert_ids[2 * row + 1] = static_cast<int32_t>((row + 3) % 8);
  }
  assignments.weights.assign(2 * kRows, 0.5f);
  RowBatch<Bf16> rows(kRows, kHidden), out(kRows, kHidden);
  StepFigures figures;
  // The first plan is checked against all rules, which allocates; the next thirty are not.
  ASSERT_TRUE(layer.Run(rule, assignments, rows.rows(), out.rows(), &figures).ok());
  const int64_t before = NumAllocations();
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(layer.Run(rule, assignments, rows.rows(), out.rows(), &figures).ok());
  }
  EXPECT_EQ(NumAllocations() - before, 0);
  // Nor where the step is traced, once it has been so before; a log that is off is never filled.
  PhaseLog phases;
  for (const bool is_on : {false, true}) {
    phases.Begin(is_on);
    ASSERT_TRUE(layer.Run(rule, assignments, rows.rows(), out.rows(), &figures, &phases).ok());
    EXPECT_EQ(phases.intervals().size(), is_on ? 3u : 0u);
    const int64_t traced_before = NumAllocations();
    phases.Begin(is_on);
    ASSERT_TRUE(layer.Run(rule, assignments, rows.rows(), out.rows(), &figures, &phases).ok());
    EXPECT_EQ(NumAllocations() - traced_before, 0);
  }
  experts.fails = true;
  ASSERT_TRUE(layer.Run(rule, assignments, rows.rows(), out.rows(), &figures).ok());
  EXPECT_GT(NumAllocations() - before, 0) << "the counter counts";
}

}  // namespace
}  // namespace moebius
