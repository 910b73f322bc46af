// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/combine.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/kernels/tier.h"
#include "tests/routing/routing_fixture.h"

namespace moebius {
namespace {

Bf16 B(float value) { return ToBf16(value); }

TEST(SumTermsTest, RoundsOnceBehindTheChain) {
  // 1 + 2^-8 is halfway between two bf16; what is below it decides, and survives the chain.
  const Bf16 one = B(1), half_step = B(0x1p-8f), dust = B(0x1p-20f);
  Bf16 out;
  const std::vector<SumTerm> halfway = {{1, &one}, {1, &half_step}};
  SumTerms(BestKernels(), halfway, absl::MakeSpan(&out, 1));
  EXPECT_EQ(ToFloat(out), 1.0f);
  const std::vector<SumTerm> above = {{1, &one}, {1, &half_step}, {1, &dust}};
  SumTerms(BestKernels(), above, absl::MakeSpan(&out, 1));
  EXPECT_EQ(ToFloat(out), 1.0078125f);
}

TEST(SumTermsTest, FusesProductAndSum) {
  // w·y = 1 + 2^-15 + … needs more than 24 bits; a rounded product would cancel to 0.
  const float weight = 1 + 0x1p-20f;
  const Bf16 minus_one = B(-1), value = B(1 + 0x1p-7f);
  Bf16 out;
  const std::vector<SumTerm> terms = {{1 + 0x1p-7f, &minus_one}, {weight, &value}};
  SumTerms(BestKernels(), terms, absl::MakeSpan(&out, 1));
  EXPECT_EQ(ToFloat(out), ToFloat(B(0x1p-20f + 0x1p-27f)));
}

struct Shape {
  int64_t rows;
  int32_t num_experts, top_k, groups, slices;
};

// One layer's case, from a generator that the seed fixes.
RoutingCase MakeCase(Random& random, const Shape& shape, bool with_holes) {
  RoutingCase layer;
  layer.rule = LayerRule{LayerId(0), shape.num_experts, shape.groups, shape.slices};
  layer.assignments = RandomAssignments(random, shape.rows, shape.num_experts, shape.top_k,
                                        with_holes ? 7 : 0, with_holes ? 9 : 0);
  layer.hidden_size = 1 + static_cast<int64_t>(random.Below(40));
  return layer;
}

PlacementShape ShapeOf(const RoutingCase& layer) {
  const bool has_experts = layer.assignments.top_k > 0;
  return PlacementShape::Make(layer.rule.num_experts, {has_experts}, layer.rule.num_slices,
                              layer.rule.num_slices);
}

void ExpectSameBits(const RoutingCase& layer, const Placement& placement,
                    const DispatchLimits& limits, DispatchPlan& plan,
                    const std::vector<uint16_t>& expected) {
  const absl::Status built =
      BuildDispatchPlan(layer.rule, layer.assignments, placement, limits, &plan);
  ASSERT_TRUE(built.ok()) << built;
  const absl::Status valid = ValidateDispatchPlan(plan, layer.assignments, placement, limits);
  ASSERT_TRUE(valid.ok()) << valid;
  ASSERT_EQ(BitsOf(CombineReplies(plan, BestKernels(), layer.hidden_size)), expected);
}

TEST(CombinePropertyTest, EveryPlacementGivesTheReferencesBits) {
  const uint64_t seed = 118;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  DispatchPlan plan;  // one for all shapes, as steps reuse it
  for (int trial = 0; trial < 120; ++trial) {
    Shape shape;
    shape.rows = static_cast<int64_t>(random.Below(trial % 10 == 0 ? 200 : 12));
    shape.num_experts = 1 + static_cast<int32_t>(random.Below(trial % 7 == 0 ? 896 : 40));
    shape.top_k = static_cast<int32_t>(random.Below(std::min(16, shape.num_experts) + 1));
    shape.groups = 1 + static_cast<int32_t>(random.Below(std::min(8, shape.num_experts)));
    shape.slices = static_cast<int32_t>(random.Below(4)) + (shape.top_k == 0 ? 1 : 0);
    const RoutingCase layer = MakeCase(random, shape, shape.top_k > 0 && trial % 3 == 0);
    const std::vector<uint16_t> expected = BitsOf(ReferenceOutput(layer));
    for (const int32_t services : {1, 2, 3, 4, 5, 8, 64}) {
      for (const int32_t replicas : {1, 3, 8}) {
        SCOPED_TRACE(testing::Message()
                     << "trial " << trial << " rows " << shape.rows << " E " << shape.num_experts
                     << " k " << shape.top_k << " groups " << shape.groups << " slices "
                     << shape.slices << " services " << services << " replicas " << replicas);
        DispatchLimits limits;
        limits.balance_rows = 1 + static_cast<int32_t>(random.Below(40));
        if (random.Below(2) == 0) limits.message_rows = static_cast<int32_t>(random.Below(500));
        ExpectSameBits(layer, RandomPlacement(random, ShapeOf(layer), services, replicas), limits,
                       plan, expected);
        ExpectSameBits(layer,
                       *Placement::Static(ShapeOf(layer),
                                          {.num_services = services, .expert_replicas = replicas}),
                       limits, plan, expected);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(CombinePropertyTest, BatchesOfThousandsOfRowsToo) {
  const uint64_t seed = 4096;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  DispatchPlan plan;
  for (const int64_t rows : {0, 1, 127, 128, 129, 1024, 4095, 4096}) {
    Shape shape;
    shape.rows = rows;
    shape.num_experts = rows % 2 == 0 ? 896 : 1 + static_cast<int32_t>(random.Below(64));
    shape.top_k = std::min(16, shape.num_experts);
    shape.groups = std::min(8, shape.num_experts);
    shape.slices = 1;
    const RoutingCase layer = MakeCase(random, shape, rows % 2 == 1);
    const std::vector<uint16_t> expected = BitsOf(ReferenceOutput(layer));
    for (const int32_t services : {1, 7, 64}) {
      SCOPED_TRACE(testing::Message() << "rows " << rows << " services " << services);
      ExpectSameBits(layer, RandomPlacement(random, ShapeOf(layer), services, 8), DispatchLimits(),
                     plan, expected);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CombineTest, WhicheverReplicaServesTheBitsAreTheSame) {
  Random random(4);
  const RoutingCase layer = MakeCase(random, Shape{33, 32, 4, 4, 1}, false);
  const std::vector<uint16_t> expected = BitsOf(ReferenceOutput(layer));
  const Placement placement =
      *Placement::Static(ShapeOf(layer), {.num_services = 5, .expert_replicas = 3});
  DispatchPlan plan;
  for (int32_t replica = 0; replica < 5; ++replica) {
    DispatchLimits limits;
    limits.forced_replica = replica;
    ExpectSameBits(layer, placement, limits, plan, expected);
  }
}

TEST(CombineTest, ThreadsAndTiersChangeNothing) {
  Random random(5);
  RoutingCase layer = MakeCase(random, Shape{150, 64, 8, 4, 2}, true);
  layer.hidden_size = 1100;  // more than two blocks of columns
  const std::vector<uint16_t> expected = BitsOf(ReferenceOutput(layer));
  const Placement placement = *Placement::Static(ShapeOf(layer), {.num_services = 4});
  DispatchPlan plan;
  ASSERT_TRUE(
      BuildDispatchPlan(layer.rule, layer.assignments, placement, DispatchLimits(), &plan).ok());
  for (const Tier tier : HostTiers()) {
    const Kernels& kernels = *FindKernels(tier);
    std::vector<RowBatch<Bf16>> replies = Replies(plan, kernels, layer.hidden_size);
    std::vector<MutableBf16Rows> views;
    for (RowBatch<Bf16>& service : replies) views.push_back(service.rows());
    for (const int threads : {1, 2, 3}) {
      Executor executor(threads);
      RowBatch<Bf16> out(plan.num_rows(), layer.hidden_size);
      executor.Run([&] { Combine(executor, kernels, plan, views, out.rows()); });
      EXPECT_EQ(BitsOf(out), expected) << TierName(tier) << " " << threads;
    }
  }
}

TEST(CombineTest, ANegativeZeroRowSumStaysWhatItsServiceSaid) {
  // Two dense slices whose sum flushes to -0: one service or two, the same bits.
  const LayerRule rule{LayerId(0), 1, 1, 2};
  const PlacementShape shape = PlacementShape::Make(1, {false}, 0, 2);
  Assignments rows;
  rows.Reset(1, 0);
  Bf16 a = B(0x1.02p-126f), b = B(-0x1.04p-126f);
  DispatchPlan whole, split;
  ASSERT_TRUE(
      BuildDispatchPlan(rule, rows, Placement::SingleService(shape), DispatchLimits(), &whole)
          .ok());
  ASSERT_TRUE(BuildDispatchPlan(rule, rows, *Placement::Static(shape, {.num_services = 2}),
                                DispatchLimits(), &split)
                  .ok());
  Bf16 sum, from_whole, from_split;
  const std::vector<SumTerm> terms = {{1, &a}, {1, &b}};
  SumTerms(BestKernels(), terms, absl::MakeSpan(&sum, 1));
  const std::vector<MutableBf16Rows> one = {MutableBf16Rows(&sum, 1, 1)};
  const std::vector<MutableBf16Rows> two = {MutableBf16Rows(&a, 1, 1), MutableBf16Rows(&b, 1, 1)};
  Combine(BestKernels(), whole, one, MutableBf16Rows(&from_whole, 1, 1));
  Combine(BestKernels(), split, two, MutableBf16Rows(&from_split, 1, 1));
  EXPECT_EQ(from_whole.bits, from_split.bits);
  EXPECT_EQ(from_whole.bits, 0x8000);
}

}  // namespace
}  // namespace moebius
