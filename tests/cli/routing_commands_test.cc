// SPDX-License-Identifier: Apache-2.0
// What `moebius placement show | apply` and `moebius bias` say.
#include <string>
#include <vector>

#include "cli/bias_command.h"
#include "cli/placement_live.h"
#include "cli/placement_picture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/placement/balance.h"
#include "router_service/placement_file.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Three services, one MoE layer of four experts with one shared slice, one dense layer of two
// slices. Services 0 and 1 hold experts 0 and 1, 2 and 3; service 2 holds 0 and 2 as well.
PlacementTable Table() {
  PlacementTable table;
  table.epoch = 7;
  table.num_experts = 4;
  table.expert_bytes = 1000;
  table.services = {{"expert-0", "usable", 4, 2, 4000},
                    {"expert-1", "usable", 4, 2, 4000},
                    {"expert-2", "suspect", 3, 2, 3000}};
  table.layers = {{0, false, {{0, 1}, {1, 0}}, {{9, 0}, {5, 4}}},
                  {1,
                   true,
                   {{0, 2}, {0}, {1, 2}, {1}, {0, 1, 2}},
                   {{30, 10}, {20}, {0, 0}, {1040}, {3, 3, 3}}}};
  return table;
}

ExpertLoadTable Load(std::vector<int64_t> demand) {
  ExpertLoadTable load;
  load.layer_ids = {1};
  load.num_experts = 4;
  load.demand = std::move(demand);
  load.dropped.assign(4, 0);
  load.active = {4};
  return load;
}

TEST(PlacementLiveTest, AsksWithWhatTheServicesHoldNow) {
  const absl::StatusOr<PlacementCase> question = CaseOf(Table(), Load({1, 2, 3, 4}));
  ASSERT_TRUE(question.ok()) << question.status();
  ASSERT_EQ(question->problems.size(), 1u) << "a dense layer has nothing to place";
  EXPECT_THAT(question->problems[0].load, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(question->problems[0].device_slots, ElementsAre(2, 2, 2));
  EXPECT_THAT(question->current[0].expert_of_slot, ElementsAre(0, 1, 2, 3, 0, 2));
  EXPECT_THAT(question->current[0].replica_count, ElementsAre(2, 1, 2, 1));
  EXPECT_TRUE(ValidateBalancedLayer(question->problems[0], question->current[0],
                                    ReplicaRule::kDistinctDevices)
                  .ok());
}

TEST(PlacementLiveTest, RefusesWithoutLoadAndForAnotherModel) {
  EXPECT_THAT(std::string(CaseOf(Table(), Load({0, 0, 0, 0})).status().message()),
              HasSubstr("nothing has been routed yet"));
  ExpertLoadTable other = Load({1, 2, 3, 4});
  other.num_experts = 2;
  EXPECT_THAT(std::string(CaseOf(Table(), other).status().message()),
              HasSubstr("of different models"));
}

TEST(PlacementLiveTest, PlansWhatMovesAndTheFileOfItIsThePlan) {
  // Expert 3 has nearly all of the load and one replica.
  const absl::StatusOr<PlacementChange> change =
      PlanChange(Table(), Load({1, 1, 1, 97}), std::nullopt);
  ASSERT_TRUE(change.ok()) << change.status();
  const BalanceProblem& problem = change->question.problems[0];
  EXPECT_LT(MaxOverMean(problem, change->rebalance.layers[0]), 1.1);
  EXPECT_GT(MaxOverMean(problem, change->question.current[0]), 2.9);
  EXPECT_GT(change->rebalance.num_loaded, 0);
  EXPECT_EQ(change->moved_bytes, change->rebalance.num_loaded * 1000);
  size_t loads = 0, unloads = 0;
  for (const ServiceMoves& moves : change->moves) {
    loads += moves.loads.size();
    unloads += moves.unloads.size();
    for (const auto& [layer, expert] : moves.loads) EXPECT_EQ(layer, 1);
  }
  EXPECT_EQ(static_cast<int64_t>(loads), change->rebalance.num_loaded);
  EXPECT_EQ(loads, unloads) << "services keep as many experts as they have";

  const std::string text = FormatPlacementFile(Table(), *change);
  const PlacementShape shape = PlacementShape::Make(4, {false, true}, 1, 2);
  const absl::StatusOr<Placement> placement = ParsePlacement(text, "plan", shape, 3);
  ASSERT_TRUE(placement.ok()) << placement.status() << text;
  size_t slot = 0;
  for (int32_t service = 0; service < 3; ++service) {
    for (int32_t i = 0; i < problem.device_slots[static_cast<size_t>(service)]; ++i, ++slot) {
      const ExpertId expert(change->rebalance.layers[0].expert_of_slot[slot]);
      EXPECT_TRUE(placement->Holds(LayerId(1), expert, ServiceId(service)));
    }
    EXPECT_TRUE(placement->Holds(LayerId(1), ExpertId(4), ServiceId(service))) << "shared";
  }
  EXPECT_FALSE(placement->Holds(LayerId(0), ExpertId(4), ServiceId(2))) << "dense";
}

TEST(PlacementLiveTest, KeepsToAMoveBudget) {
  const absl::StatusOr<PlacementChange> none = PlanChange(Table(), Load({1, 1, 1, 97}), 999);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->rebalance.num_loaded, 0);
  EXPECT_TRUE(none->rebalance.limited);
  for (const ServiceMoves& moves : none->moves) EXPECT_THAT(moves.loads, IsEmpty());
  const absl::StatusOr<PlacementChange> one = PlanChange(Table(), Load({1, 1, 1, 97}), 1999);
  EXPECT_LE(one->rebalance.num_loaded, 1);
}

TEST(PlacementLiveTest, SaysHowMuchEachServiceHoldsAndWouldHold) {
  const std::string shown = FormatPlacementTable(Table(), /*all=*/true);
  EXPECT_THAT(shown, HasSubstr("epoch 7   3 expert services"));
  EXPECT_THAT(shown, HasSubstr("expert-2       suspect   2 routed experts, 3 sets of weights"));
  const PlacementChange change = *PlanChange(Table(), Load({1, 1, 1, 97}), std::nullopt);
  EXPECT_THAT(FormatChange(Table(), change), HasSubstr("nothing was changed: this was a dry run"));
  const Json json = ChangeJson(Table(), change);
  int64_t loaded = 0;
  for (const Json& service : json.Find("services")->elements()) {
    loaded += service.Find("loaded_bytes")->integer();
    EXPECT_EQ(service.Find("held_bytes_at_most")->integer(),
              service.Find("held_bytes")->integer() + service.Find("loaded_bytes")->integer());
  }
  EXPECT_EQ(loaded, json.Find("moved_bytes")->integer());
}

TEST(PlacementLiveTest, ShowsHowTheWorkWasSpreadOverServicesAndReplicas) {
  // Routed experts alone: 50, 1040 and 10 of 1,100.
  const ServedLoad served = SumServed(Table());
  EXPECT_THAT(served.by_service, ElementsAre(50, 1040, 10));
  EXPECT_EQ(served.total, 1100);
  EXPECT_DOUBLE_EQ(served.max_over_mean, 1040.0 / (1100.0 / 3));
  EXPECT_EQ(served.num_replicated, 1) << "nobody asked for expert 2";
  EXPECT_DOUBLE_EQ(served.busiest_share, 0.75);
  const std::string shown = FormatPlacementTable(Table(), /*all=*/true);
  EXPECT_THAT(shown, HasSubstr("   served 1,040, 94.5 %\n"));
  EXPECT_THAT(shown,
              HasSubstr("services' max/mean 2.84; of 1 experts with replicas the busiest one "
                        "served 75 %\n"));
  EXPECT_THAT(shown, HasSubstr("layer 1   expert-1       2:0 3:1040\n"));
  EXPECT_THAT(shown, HasSubstr("layer 1   expert-2       0:10 2:0\n"));
  EXPECT_THAT(FormatPlacementTable(Table(), /*all=*/false), Not(HasSubstr("layer 1")));
  const Json json = PlacementTableJson(Table());
  EXPECT_EQ(json.Find("services")->elements()[1].Find("served")->integer(), 1040);
  const Json& layer = json.Find("layers")->elements()[1];
  EXPECT_EQ(layer.Find("served_of")->elements()[0].elements()[1].integer(), 10);

  PlacementTable fresh = Table();
  for (PlacedLayer& placed : fresh.layers) {
    for (std::vector<int64_t>& of_id : placed.served_of) of_id.assign(of_id.size(), 0);
  }
  EXPECT_THAT(FormatPlacementTable(fresh, false), HasSubstr("nothing has been routed yet"));
  EXPECT_EQ(PlacementTableJson(fresh).Find("served_max_over_mean")->number(), 0);
}

TEST(PlacementLiveTest, ALiveChangeIsRefusedWithWhatToDoInstead) {
  PlacementLiveFlags flags;
  flags.router.router = "127.0.0.1:9";
  EXPECT_EQ(RunPlacementApply(flags), 2);
}

BiasTable Biases() {
  BiasTable table;
  table.mode = "shadow";
  table.version = 12;
  table.gamma = 0.001f;
  table.limit = 0.5f;
  table.window = 2000;
  table.observed = 150;
  table.model_hash = "0123456789abcdef";
  table.layers = {{3, {0, 0.25f}, {-0.125f, 0.5f}, 1.5, 0.25f, 0.375}};
  return table;
}

TEST(BiasCommandTest, TellsTheBalancersStateAndEachLayers) {
  const std::string text = FormatBiases(Biases(), /*all=*/true);
  EXPECT_THAT(text, HasSubstr("balancer shadow   version 12   gamma 0.001   limit 0.5"));
  EXPECT_THAT(text, HasSubstr("window: 150 of 2,000 assignments per expert   kept in no file"));
  EXPECT_THAT(text, HasSubstr("layer 3        1.500        0.2500           37.5 %"));
  EXPECT_THAT(text, HasSubstr("expert 1    0.5, the checkpoint's 0.25"));
  BiasTable off = Biases();
  off.mode = "off";
  EXPECT_THAT(FormatBiases(off, false), HasSubstr("the checkpoint's biases are in force"));
}

TEST(BiasCommandTest, TakesWhatShowPrints) {
  const absl::StatusOr<BiasUpdate> update =
      ParseBiasUpdate(BiasesJson(Biases()).ToCanonicalText(), "biases.json");
  ASSERT_TRUE(update.ok()) << update.status();
  ASSERT_EQ(update->set.size(), 1u);
  EXPECT_EQ(update->set[0].layer, 3);
  EXPECT_THAT(update->set[0].bias, ElementsAre(-0.125f, 0.5f));
  EXPECT_FALSE(update->reset);
}

TEST(BiasCommandTest, NamesWhatIsWrongWithAFile) {
  const auto message = [](const char* text) {
    return std::string(ParseBiasUpdate(text, "biases.json").status().message());
  };
  EXPECT_THAT(message("{}"), HasSubstr("biases.json: layers is no array"));
  EXPECT_THAT(message(R"({"layers": [{"layer": -1, "bias": []}]})"), HasSubstr("no layer from 0"));
  EXPECT_THAT(message(R"({"layers": [{"layer": 1, "bias": ["x"]}]})"),
              HasSubstr("a bias of layer 1 is a string"));
}

}  // namespace
}  // namespace moebius
