// SPDX-License-Identifier: Apache-2.0
#include "moebius/placement/placement.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Layer 0 is dense with 3 slices, layer 1 has 8 experts and one shared slice.
PlacementShape SmallShape() { return PlacementShape::Make(8, {false, true}, 1, 3); }

Placement MakeStatic(const PlacementShape& shape, StaticPlacementOptions options) {
  absl::StatusOr<Placement> placement = Placement::Static(shape, options);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return *placement;
}

std::vector<int> FirstServices(const Placement& placement, LayerId layer) {
  std::vector<int> services;
  for (int32_t id = 0; id < placement.shape().num_experts; ++id) {
    services.push_back(placement.Services(layer, ExpertId(id)).front().value());
  }
  return services;
}

TEST(PlacementShapeTest, GivesSlicesTheIdsBehindTheExperts) {
  const PlacementShape shape = SmallShape();
  EXPECT_EQ(shape.NumIds(LayerId(0)), 11);
  EXPECT_EQ(shape.NumIds(LayerId(1)), 9);
  EXPECT_FALSE(shape.Has(LayerId(0), ExpertId(7)));
  EXPECT_TRUE(shape.Has(LayerId(0), ExpertId(8)));
  EXPECT_TRUE(shape.Has(LayerId(0), ExpertId(10)));
  EXPECT_FALSE(shape.Has(LayerId(0), ExpertId(11)));
  EXPECT_TRUE(shape.Has(LayerId(1), ExpertId(0)));
  EXPECT_FALSE(shape.Has(LayerId(1), ExpertId(9)));
  EXPECT_FALSE(shape.Has(LayerId(2), ExpertId(0)));
  EXPECT_FALSE(shape.Has(LayerId(1), ExpertId(-1)));
}

TEST(PlacementTest, SingleServiceHoldsEverything) {
  const Placement placement = Placement::SingleService(SmallShape());
  EXPECT_EQ(placement.num_services(), 1);
  EXPECT_EQ(placement.HeldBy(ServiceId(0)).size(), 3u + 9u);
  EXPECT_THAT(placement.Services(LayerId(1), ExpertId(4)), ElementsAre(ServiceId(0)));
  EXPECT_THAT(placement.Services(LayerId(0), ExpertId(4)), IsEmpty());
}

TEST(PlacementTest, StaticKeepsWholeRangesOnOneService) {
  EXPECT_THAT(FirstServices(MakeStatic(SmallShape(), {.num_services = 2}), LayerId(1)),
              ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(FirstServices(MakeStatic(SmallShape(), {.num_services = 4}), LayerId(1)),
              ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  EXPECT_THAT(FirstServices(MakeStatic(SmallShape(), {.num_services = 3}), LayerId(1)),
              ElementsAre(0, 0, 0, 1, 1, 1, 2, 2));
  EXPECT_THAT(FirstServices(MakeStatic(SmallShape(), {.num_services = 16}), LayerId(1)),
              ElementsAre(0, 2, 4, 6, 8, 10, 12, 14));
}

TEST(PlacementTest, StaticPutsReplicasOnTheNextServices) {
  const Placement placement = MakeStatic(SmallShape(), {.num_services = 4, .expert_replicas = 2});
  EXPECT_THAT(placement.Services(LayerId(1), ExpertId(0)), ElementsAre(ServiceId(0), ServiceId(1)));
  EXPECT_THAT(placement.Services(LayerId(1), ExpertId(7)), ElementsAre(ServiceId(3), ServiceId(0)));
  // The shared slice is everywhere, first by layer; dense slices have the experts' replicas.
  EXPECT_THAT(placement.Services(LayerId(1), ExpertId(8)),
              ElementsAre(ServiceId(1), ServiceId(2), ServiceId(3), ServiceId(0)));
  EXPECT_THAT(placement.Services(LayerId(0), ExpertId(8)), ElementsAre(ServiceId(0), ServiceId(1)));
  EXPECT_THAT(placement.Services(LayerId(0), ExpertId(10)),
              ElementsAre(ServiceId(2), ServiceId(3)));
}

TEST(PlacementTest, StaticNeverPutsTwoReplicasOnOneService) {
  for (int services = 1; services <= 9; ++services) {
    for (int replicas = 1; replicas <= 10; ++replicas) {
      const Placement placement =
          MakeStatic(SmallShape(), {.num_services = services, .expert_replicas = replicas});
      size_t held = 0;
      for (int s = 0; s < services; ++s) held += placement.HeldBy(ServiceId(s)).size();
      const auto each = static_cast<size_t>(std::min(services, replicas));
      EXPECT_EQ(held, 8 * each + 3 * each + static_cast<size_t>(services));
    }
  }
}

TEST(PlacementTest, RefusesCountsBelowOne) {
  EXPECT_EQ(Placement::Static(SmallShape(), {.num_services = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      Placement::Static(SmallShape(), {.num_services = 1, .expert_replicas = 0}).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(PlacementTest, MakeNamesTheExpertThatIsWrong) {
  const PlacementShape shape = PlacementShape::Make(2, {true}, 0, 0);
  const auto message = [&](Placement::Table table) {
    const absl::StatusOr<Placement> made = Placement::Make(Epoch(3), shape, 2, table);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(made.status().message());
  };
  const ServiceId zero(0), one(1), two(2);
  EXPECT_THAT(message({{{zero}, {}}}), HasSubstr("layer 0, expert 1 has no service"));
  EXPECT_THAT(message({{{zero}, {one, one}}}), HasSubstr("expert 1 is twice on service 1"));
  EXPECT_THAT(message({{{two}, {one}}}), HasSubstr("expert 0 is on service 2; there are 2"));
  EXPECT_THAT(message({{{zero}}}), HasSubstr("layer 0 has 1 ids; expected 2"));
  EXPECT_THAT(message({}), HasSubstr("0 layers; the model has 1"));
  const absl::StatusOr<Placement> good =
      Placement::Make(Epoch(3), shape, 2, {{{one, zero}, {one}}});
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->epoch(), Epoch(3));
  EXPECT_EQ(good->WithEpoch(Epoch(4)).epoch(), Epoch(4));
  EXPECT_TRUE(good->Holds(LayerId(0), ExpertId(0), zero));
  EXPECT_FALSE(good->Holds(LayerId(0), ExpertId(1), zero));
}

TEST(PlacementTest, RefusesWeightsForExpertsThatADenseLayerLacks) {
  const PlacementShape shape = PlacementShape::Make(1, {false}, 0, 1);
  EXPECT_THAT(std::string(Placement::Make(Epoch(1), shape, 1, {{{ServiceId(0)}, {ServiceId(0)}}})
                              .status()
                              .message()),
              HasSubstr("does not exist in this model"));
}

}  // namespace
}  // namespace moebius
