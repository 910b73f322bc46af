// SPDX-License-Identifier: Apache-2.0
// From logits to combined rows, over shapes drawn from the whole of what is promised: 0 to 4,096
// tokens, 1 to 896 experts, 1 to 16 choices, 1 to 64 services, 1 to 8 replicas. Each stage is
// judged by its own named rules: G1 to G5 of gate.h, C1 to C4 of capacity.h, R1 to R9 of
// dispatch_plan.h; and the sum by the scalar reference.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/routing/capacity.h"
#include "moebius/routing/gate.h"
#include "tests/routing/routing_fixture.h"

namespace moebius {
namespace {

struct Shape {
  int64_t num_rows = 0;
  int32_t num_services = 1;
  int32_t num_replicas = 1;
  GateConfig gate;
};

// From `low` to `high`, each order of magnitude as likely as the others.
int64_t LogUniform(Random& random, int64_t low, int64_t high) {
  const double span = std::log(static_cast<double>(high + 1) / static_cast<double>(low));
  const double value = static_cast<double>(low) * std::exp(span * random.Unit());
  return std::clamp(static_cast<int64_t>(value), low, high);
}

Shape DrawShape(Random& random) {
  Shape shape;
  shape.num_rows = LogUniform(random, 1, 4097) - 1;
  shape.num_services = 1 + static_cast<int32_t>(random.Below(64));
  shape.num_replicas = 1 + static_cast<int32_t>(random.Below(8));
  GateConfig& gate = shape.gate;
  gate.num_experts = static_cast<int32_t>(LogUniform(random, 1, 896));
  std::vector<int32_t> divisors;
  for (int32_t groups = 1; groups <= std::min(gate.num_experts, 32); ++groups) {
    if (gate.num_experts % groups == 0) divisors.push_back(groups);
  }
  gate.num_groups = divisors[random.Below(divisors.size())];
  gate.num_kept_groups = 1 + static_cast<int32_t>(random.Below(gate.num_groups));
  const int32_t candidates = gate.num_experts / gate.num_groups * gate.num_kept_groups;
  gate.top_k = 1 + static_cast<int32_t>(random.Below(std::min(candidates, kMaxTopK)));
  gate.score_function = static_cast<ScoreFunction>(random.Below(4));
  gate.normalize_weights = random.Below(2) == 0;
  return shape;
}

Shape LargestShape() {
  Shape shape;
  shape.num_rows = 4096;
  shape.num_services = 64;
  shape.num_replicas = 8;
  shape.gate.num_experts = 896;
  shape.gate.num_groups = 8;
  shape.gate.num_kept_groups = 4;
  shape.gate.top_k = 16;
  shape.gate.score_function = ScoreFunction::kSigmoid;
  shape.gate.normalize_weights = true;
  return shape;
}

// One row in 16 is not finite, a few experts are liked by all.
std::vector<float> DrawLogits(Random& random, const Shape& shape) {
  const auto num_experts = static_cast<size_t>(shape.gate.num_experts);
  std::vector<float> liking(num_experts);
  for (float& value : liking) value = random.Below(8) == 0 ? 2.0f : 0.0f;
  std::vector<float> logits(static_cast<size_t>(shape.num_rows) * num_experts);
  for (size_t i = 0; i < logits.size(); ++i) {
    // Coarse: ties are common.
    logits[i] = liking[i % num_experts] + static_cast<float>(random.Below(64)) / 16 - 2;
  }
  for (int64_t row = 0; row < shape.num_rows; ++row) {
    if (random.Below(16) != 0) continue;
    logits[static_cast<size_t>(row) * num_experts + random.Below(num_experts)] =
        random.Below(2) == 0 ? std::numeric_limits<float>::quiet_NaN()
                             : -std::numeric_limits<float>::infinity();
  }
  return logits;
}

// A policy of every kind; nothing: dropless.
std::optional<CapacityPolicy> DrawPolicy(Random& random) {
  if (random.Below(3) == 0) return std::nullopt;
  CapacityPolicy policy;
  policy.factor = 0.5 + random.Unit();
  policy.order = static_cast<CapacityOrder>(random.Below(3));
  policy.overflow = static_cast<CapacityOverflow>(random.Below(4));
  return policy;
}

// Rows of which the scalar reference is made, so that its time stays small.
constexpr int64_t kMostReferenceRows = 300;

void ExpectRules(Random& random, const Shape& shape) {
  const GateConfig& gate = shape.gate;
  ASSERT_TRUE(ValidateGate(gate).ok());
  const std::vector<float> values = DrawLogits(random, shape);
  const FloatRows logits(values.data(), shape.num_rows, gate.num_experts);
  std::vector<float> bias(random.Below(2) == 0 ? 0 : static_cast<size_t>(gate.num_experts));
  for (float& value : bias) value = static_cast<float>(random.Below(9)) / 8 - 0.5f;
  const GroupFill fill = random.Below(2) == 0 ? GroupFill::kNegativeInfinity : GroupFill::kZero;

  RoutingCase layer;
  layer.hidden_size = 3;
  layer.rule = LayerRule{LayerId(0), gate.num_experts,
                         gate.num_groups > 1 ? gate.num_groups : std::min(4, gate.num_experts),
                         static_cast<int32_t>(random.Below(3))};
  GateCounts counts;
  SelectExperts(gate, fill, logits, bias, &layer.assignments, &counts);
  const absl::Status chosen = ValidateAssignments(gate, fill, logits, bias, layer.assignments);
  ASSERT_TRUE(chosen.ok()) << chosen;
  ASSERT_EQ(counts.refused_rows, static_cast<int64_t>(layer.assignments.refused_rows.size()));

  if (const std::optional<CapacityPolicy> policy = DrawPolicy(random); policy.has_value()) {
    CapacityLimiter limiter;
    CapacityResult limited;
    limiter.Apply(*policy, gate.num_experts, {&gate, logits, bias}, &layer.assignments, &limited);
    const absl::Status kept = ValidateCapacityResult(layer.assignments, limited);
    ASSERT_TRUE(kept.ok()) << kept << " " << DescribeCapacity(*policy);
  }

  const Placement placement = RandomPlacement(
      random, PlacementShape::Make(gate.num_experts, {true}, layer.rule.num_slices, 0),
      shape.num_services, shape.num_replicas);
  DispatchLimits limits;
  limits.balance_rows = 1 + static_cast<int32_t>(random.Below(40));
  if (random.Below(2) == 0) limits.message_rows = static_cast<int32_t>(random.Below(500));
  if (random.Below(3) == 0) limits.forced_replica = static_cast<int32_t>(random.Below(8));
  DispatchPlan plan;
  const absl::Status built =
      BuildDispatchPlan(layer.rule, layer.assignments, placement, limits, &plan);
  ASSERT_TRUE(built.ok()) << built;
  const absl::Status valid = ValidateDispatchPlan(plan, layer.assignments, placement, limits);
  ASSERT_TRUE(valid.ok()) << valid;
  ASSERT_EQ(plan.counts().demanded, (shape.num_rows - counts.refused_rows) * gate.top_k);
  if (shape.num_rows > kMostReferenceRows) return;
  ASSERT_EQ(BitsOf(CombineReplies(plan, BestKernels(), layer.hidden_size)),
            BitsOf(ReferenceOutput(layer)));
}

testing::Message Describe(const Shape& shape) {
  return testing::Message() << "T " << shape.num_rows << " E " << shape.gate.num_experts << " k "
                            << shape.gate.top_k << " groups " << shape.gate.num_kept_groups << "/"
                            << shape.gate.num_groups << " "
                            << ScoreFunctionName(shape.gate.score_function) << " services "
                            << shape.num_services << " replicas " << shape.num_replicas;
}

TEST(RoutingPropertyTest, EveryStageKeepsItsNamedRulesOverAllShapes) {
  const uint64_t seed = 20261130;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  for (int trial = 0; trial < 60; ++trial) {
    const Shape shape = DrawShape(random);
    SCOPED_TRACE(testing::Message() << "trial " << trial << ": " << Describe(shape));
    ExpectRules(random, shape);
    if (HasFatalFailure()) return;
  }
}

TEST(RoutingPropertyTest, TheLargestShapeKeepsThemToo) {
  Random random(4096);
  ExpectRules(random, LargestShape());
}

TEST(RoutingPropertyTest, ALayerWithoutTokensAndOneExpertForAllOfThem) {
  Random random(1);
  Shape shape = LargestShape();
  shape.num_rows = 0;
  ExpectRules(random, shape);
  shape.num_rows = 4096;
  shape.gate = GateConfig();
  shape.gate.num_experts = shape.gate.top_k = 1;
  ExpectRules(random, shape);
}

}  // namespace
}  // namespace moebius
