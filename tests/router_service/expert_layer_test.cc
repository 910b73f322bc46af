// SPDX-License-Identifier: Apache-2.0
#include "router_service/expert_layer.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "tests/router_service/fake_experts.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kExperts = 8;
constexpr int32_t kTopK = 3;
constexpr int64_t kHidden = 48;
constexpr int32_t kLastLayer = 2;

// Layer 0 is dense with 3 slices; layers 1 and 2 have 8 experts and one shared slice.
class ExpertLayerTest : public testing::Test {
 protected:
  ExpertLayerTest() { UseServices(4, 2); }

  void UseServices(int32_t num_services, int32_t num_replicas, int64_t max_rows_per_service = 0) {
    StaticPlacementOptions options;
    options.num_services = num_services;
    options.expert_replicas = num_replicas;
    options.shared_slice_replicas = num_replicas;
    placement_ =
        *Placement::Static(PlacementShape::Make(kExperts, {false, true, true}, 1, 3), options);
    replica_load_ = std::make_unique<ReplicaLoad>(placement_);
    layer_ = std::make_unique<ExpertLayer>(
        ExpertLayer::Parts{.kernels = &kernels_,
                           .executor = &executor_,
                           .experts = &experts_,
                           .placement = &placement_,
                           .max_rows_per_service = max_rows_per_service,
                           .replica_load = replica_load_.get()});
  }

  void UseRows(int64_t num_rows, uint64_t seed = 11) {
    Random random(seed);
    rows_.Reset(num_rows, kHidden);
    for (int64_t row = 0; row < num_rows; ++row) {
      for (Bf16& value : rows_.rows().span(row)) value = ToBf16(random.Normal());
    }
    choices_.Reset(num_rows, kTopK);
    std::vector<int32_t> ids(kExperts);
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t at = 0; at < choices_.expert_ids.size(); ++at) {
      const size_t choice = at % kTopK;
      std::swap(ids[choice], ids[choice + random.Below(kExperts - choice)]);
      choices_.expert_ids[at] = ids[choice];
      choices_.weights[at] = 0.1f + random.Unit();
    }
  }

  absl::Status Run(int32_t layer) {
    dense_.Reset(rows_.num_rows(), 0);
    figures_ = StepFigures();
    experts_.calls.clear();
    out_.Reset(rows_.num_rows(), kHidden);
    const LayerRule rule{LayerId(layer), kExperts, 4, layer == 0 ? 3 : 1};
    return layer_->Run(rule, layer == 0 ? dense_ : choices_, rows_.rows(), out_.rows(), &figures_);
  }

  std::string Bits() const {
    return std::string(reinterpret_cast<const char*>(out_.rows().data),
                       static_cast<size_t>(out_.num_rows() * kHidden) * sizeof(Bf16));
  }

  // What comes of the rows when nothing fails.
  std::string ExpectedBits(int32_t layer) {
    const auto fails = std::exchange(experts_.fails, nullptr);
    EXPECT_TRUE(Run(layer).ok());
    EXPECT_EQ(figures_.resends, 0);
    EXPECT_EQ(figures_.stall_seconds, 0);
    experts_.fails = fails;
    return Bits();
  }

  const Kernels& kernels_ = BestKernels();
  Executor executor_{2};
  FakeExperts experts_{kernels_};
  Placement placement_;
  std::unique_ptr<ReplicaLoad> replica_load_;
  std::unique_ptr<ExpertLayer> layer_;
  Assignments choices_;
  Assignments dense_;
  RowBatch<Bf16> rows_;
  RowBatch<Bf16> out_;
  StepFigures figures_;
};

TEST_F(ExpertLayerTest, SendsAgainOnlyTheRowsThatAFailedServiceWasAskedFor) {
  UseRows(40);
  int num_resends = 0;
  for (int32_t layer = 0; layer <= kLastLayer; ++layer) {
    const std::string expected = ExpectedBits(layer);
    for (int32_t service = 0; service < 4; ++service) {
      experts_.fails = [&](int32_t, int32_t round) {
        return round == 0 ? std::set<int32_t>{service} : std::set<int32_t>{};
      };
      ASSERT_TRUE(Run(layer).ok());
      EXPECT_TRUE(Bits() == expected) << "layer " << layer << ", service " << service;
      const int64_t lost = experts_.calls[0].service_rows[static_cast<size_t>(service)];
      EXPECT_EQ(figures_.resends, lost > 0 ? 1 : 0);
      EXPECT_EQ(figures_.resent_rows, lost);
      // Sending again is this protocol's own: the naive one is counted once.
      EXPECT_EQ(figures_.naive_bytes, 40 * (layer == 0 ? 3 : kTopK + 1) * kHidden * 2);
      EXPECT_GE(figures_.naive_messages, layer == 0 ? 3 : 1);
      ASSERT_EQ(experts_.calls.size(), lost > 0 ? 2u : 1u);
      if (lost == 0) continue;  // a dense layer has fewer slices than there are services
      ++num_resends;
      EXPECT_EQ(experts_.calls[1].number, 1);
      EXPECT_TRUE(experts_.calls[1].is_resend);
      EXPECT_EQ(experts_.calls[1].plan_rows, lost);
      EXPECT_EQ(experts_.calls[1].service_rows[static_cast<size_t>(service)], 0);
      EXPECT_GT(figures_.stall_seconds, 0);
      EXPECT_EQ(figures_.assignments, layer == 0 ? 0 : 40 * kTopK);
    }
  }
  EXPECT_GE(num_resends, 10);
}

TEST_F(ExpertLayerTest, OutlivesAFailureInEachRoundWhileThereAreReplicas) {
  UseServices(4, 4);
  UseRows(100);
  for (int32_t layer = 0; layer <= kLastLayer; ++layer) {
    const std::string expected = ExpectedBits(layer);
    experts_.fails = [&](int32_t, int32_t round) {
      return round < 3 ? std::set<int32_t>{round} : std::set<int32_t>{};
    };
    ASSERT_TRUE(Run(layer).ok());
    EXPECT_TRUE(Bits() == expected) << "layer " << layer;
    ASSERT_EQ(experts_.calls.size(), 4u);
    EXPECT_EQ(figures_.resends, 3);
    int64_t resent = 0;
    for (int32_t round = 1; round < 4; ++round) {
      const FakeExperts::Call& call = experts_.calls[static_cast<size_t>(round)];
      EXPECT_EQ(call.number, round);
      EXPECT_EQ(call.plan_rows, experts_.calls[static_cast<size_t>(round) - 1]
                                    .service_rows[static_cast<size_t>(round) - 1]);
      for (int32_t dead = 0; dead < round; ++dead) {
        EXPECT_EQ(call.service_rows[static_cast<size_t>(dead)], 0);
      }
      resent += call.plan_rows;
    }
    EXPECT_EQ(figures_.resent_rows, resent);
  }
}

TEST_F(ExpertLayerTest, OutlivesTwoServicesThatDieAtOnce) {
  UseServices(5, 3);
  UseRows(64);
  for (int32_t layer = 0; layer <= kLastLayer; ++layer) {
    const std::string expected = ExpectedBits(layer);
    experts_.fails = [](int32_t, int32_t) { return std::set<int32_t>{1, 3}; };
    ASSERT_TRUE(Run(layer).ok());
    EXPECT_TRUE(Bits() == expected) << "layer " << layer;
    EXPECT_EQ(figures_.resends, 1);
  }
}

TEST_F(ExpertLayerTest, NamesLayerAndExpertsWhenTheLastReplicaIsGone) {
  UseServices(4, 1);
  UseRows(40);
  experts_.fails = [](int32_t, int32_t) { return std::set<int32_t>{1}; };
  const absl::Status status = Run(1);
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("layer 1: no usable service has experts 2, 3"));
  EXPECT_TRUE(absl::IsUnavailable(Run(0))) << "the slices of a dense layer have replicas too";
  experts_.fails = nullptr;
  EXPECT_TRUE(Run(1).ok()) << "a service that failed once may be asked again in the next layer";
}

TEST_F(ExpertLayerTest, EndsWhenAllReplicasFailOneAfterTheOther) {
  UseRows(40);
  experts_.fails = [](int32_t, int32_t) { return std::set<int32_t>{0, 1, 2, 3}; };
  EXPECT_TRUE(absl::IsUnavailable(Run(1)));
  EXPECT_EQ(experts_.calls.size(), 1u);
}

TEST_F(ExpertLayerTest, AsksNoServiceThatThePortCallsUnusable) {
  UseRows(40);
  const std::string expected = ExpectedBits(1);
  experts_.usable = {1, 0, 1, 1};
  experts_.fails = [](int32_t, int32_t round) {
    return round == 0 ? std::set<int32_t>{3} : std::set<int32_t>{};
  };
  ASSERT_TRUE(Run(1).ok());
  EXPECT_TRUE(Bits() == expected);
  for (const FakeExperts::Call& call : experts_.calls) EXPECT_EQ(call.service_rows[1], 0);
}

TEST_F(ExpertLayerTest, KeepsDroppedAndRefusedAssignmentsAsTheyWere) {
  UseRows(40);
  for (size_t row = 0; row < 40; row += 3) {
    int32_t& id = choices_.expert_ids[row * kTopK + row % kTopK];
    id = MarkDropped(id);
  }
  for (const int64_t row : {5, 20}) {
    choices_.refused_rows.push_back(row);
    std::fill_n(choices_.expert_ids.begin() + row * kTopK, kTopK, kNoExpert);
    std::fill_n(choices_.weights.begin() + row * kTopK, kTopK, 0.0f);
  }
  const std::string expected = ExpectedBits(1);
  const int64_t dropped = figures_.dropped;
  ASSERT_EQ(dropped, 14);
  experts_.fails = [](int32_t, int32_t round) {
    return round == 0 ? std::set<int32_t>{2} : std::set<int32_t>{};
  };
  ASSERT_TRUE(Run(1).ok());
  EXPECT_TRUE(Bits() == expected);
  EXPECT_EQ(figures_.assignments, 38 * kTopK);
  EXPECT_EQ(figures_.dropped, dropped);
}

TEST_F(ExpertLayerTest, TakesALayerWithoutRowsFromAFailedService) {
  UseRows(0);
  experts_.fails = [](int32_t, int32_t) { return std::set<int32_t>{0, 1, 2, 3}; };
  for (int32_t layer = 0; layer <= kLastLayer; ++layer) {
    EXPECT_TRUE(Run(layer).ok());
    EXPECT_EQ(figures_.resends, 0);
  }
}

TEST_F(ExpertLayerTest, GoesInWavesWhereADispatchWouldPassWhatAServiceHasRoomFor) {
  UseRows(40);
  for (size_t row = 0; row < 40; row += 3) {
    int32_t& id = choices_.expert_ids[row * kTopK + row % kTopK];
    id = MarkDropped(id);
  }
  for (const int64_t row : {5, 39}) {
    choices_.refused_rows.push_back(row);
    std::fill_n(choices_.expert_ids.begin() + row * kTopK, kTopK, kNoExpert);
    std::fill_n(choices_.weights.begin() + row * kTopK, kTopK, 0.0f);
  }
  for (int32_t layer = 0; layer <= kLastLayer; ++layer) {
    UseServices(4, 2);
    const std::string expected = ExpectedBits(layer);
    const StepFigures whole = figures_;
    for (const int64_t most : {1, 7, 20, 39, 40, 1000}) {
      SCOPED_TRACE(testing::Message() << "layer " << layer << ", at most " << most << " rows");
      UseServices(4, 2, most);
      ASSERT_TRUE(Run(layer).ok());
      EXPECT_TRUE(Bits() == expected);
      EXPECT_EQ(experts_.calls.size(), static_cast<size_t>((40 + most - 1) / most));
      for (size_t number = 0; number < experts_.calls.size(); ++number) {
        const FakeExperts::Call& call = experts_.calls[number];
        EXPECT_EQ(call.number, static_cast<int32_t>(number)) << "messages are told apart by it";
        EXPECT_FALSE(call.is_resend);
        for (const int64_t rows : call.service_rows) EXPECT_LE(rows, most);
      }
      EXPECT_EQ(figures_.assignments, whole.assignments);
      EXPECT_EQ(figures_.dispatched, whole.dispatched);
      EXPECT_EQ(figures_.dropped, whole.dropped);
      EXPECT_EQ(figures_.resends, 0);
    }
  }
}

TEST_F(ExpertLayerTest, AWaveOutlivesAFailureAndTheNextOnesDoNotAskThatService) {
  UseRows(40);
  const std::string expected = ExpectedBits(1);
  UseServices(4, 2, 10);
  experts_.fails = [](int32_t, int32_t number) {
    return number == 1 ? std::set<int32_t>{2} : std::set<int32_t>{};
  };
  ASSERT_TRUE(Run(1).ok());
  EXPECT_TRUE(Bits() == expected);
  ASSERT_EQ(experts_.calls.size(), 5u);
  for (size_t number = 0; number < 5; ++number) {
    const FakeExperts::Call& call = experts_.calls[number];
    EXPECT_EQ(call.number, static_cast<int32_t>(number));
    EXPECT_EQ(call.is_resend, number == 2);
    if (number > 1) {
      EXPECT_EQ(call.service_rows[2], 0);
    }
    for (const int64_t rows : call.service_rows) EXPECT_LE(rows, 10);
  }
  EXPECT_EQ(figures_.resends, 1);
  EXPECT_EQ(figures_.resent_rows, experts_.calls[1].service_rows[2]);
  EXPECT_EQ(figures_.dispatched, 40 * kTopK) << "what is sent again is counted once";
}

// Rows of every id by replica, as the layer's calls were planned.
TEST_F(ExpertLayerTest, TellsWhichReplicaServedHowMuchAndCountsResentRowsOnce) {
  UseRows(100);
  for (const bool fails : {false, true}) {
    UseServices(4, 3);
    if (fails) {
      experts_.fails = [](int32_t, int32_t number) {
        return number == 0 ? std::set<int32_t>{1} : std::set<int32_t>{};
      };
    }
    ASSERT_TRUE(Run(1).ok());
    EXPECT_EQ(replica_load_->Served(LayerId(1), ExpertId(0)), std::vector<int64_t>(3))
        << "nothing counts before the step has succeeded";
    replica_load_->Commit();
    std::vector<int64_t> demand(kExperts);
    for (const int32_t id : choices_.expert_ids) ++demand[static_cast<size_t>(id)];
    for (int32_t id = 0; id < kExperts; ++id) {
      const std::vector<int64_t> served = replica_load_->Served(LayerId(1), ExpertId(id));
      EXPECT_EQ(std::accumulate(served.begin(), served.end(), int64_t{0}),
                demand[static_cast<size_t>(id)]);
    }
    const std::vector<int64_t> shared = replica_load_->Served(LayerId(1), ExpertId(kExperts));
    EXPECT_EQ(std::accumulate(shared.begin(), shared.end(), int64_t{0}), 100) << "every row";
    EXPECT_EQ(replica_load_->Served(LayerId(2), ExpertId(0)), std::vector<int64_t>(3));
  }
}

TEST_F(ExpertLayerTest, ForgetsWhatReplicasServedInAStepThatFailed) {
  UseRows(40);
  ASSERT_TRUE(Run(1).ok());
  replica_load_->BeginStep();
  replica_load_->Commit();
  for (int32_t id = 0; id <= kExperts; ++id) {
    EXPECT_EQ(replica_load_->Served(LayerId(1), ExpertId(id)), std::vector<int64_t>(2));
  }
}

TEST_F(ExpertLayerTest, PassesOnWhatNoOtherReplicaCanMend) {
  UseRows(4);
  experts_.status = absl::InvalidArgumentError("rows of 47");
  EXPECT_EQ(Run(1), experts_.status);
  EXPECT_THAT(experts_.calls, IsEmpty());
}

TEST(FindLostRowsTest, NamesEachRowOnceInOrder) {
  const PlacementShape shape = PlacementShape::Make(kExperts, {true}, 0, 0);
  StaticPlacementOptions options;
  options.num_services = 4;  // two experts each
  const Placement placement = *Placement::Static(shape, options);
  Assignments assignments;
  assignments.Reset(4, 2);
  assignments.expert_ids = {0, 2, 4, 6, 3, 1, 5, 4};
  assignments.weights.assign(8, 1.0f);
  DispatchPlan plan;
  ASSERT_TRUE(BuildDispatchPlan(LayerRule{LayerId(0), kExperts, 4, 0}, assignments, placement,
                                DispatchLimits(), &plan)
                  .ok());
  std::vector<int64_t> lost;
  FindLostRows(plan, {ServiceId(1), ServiceId(0)}, &lost);
  EXPECT_THAT(lost, ElementsAre(0, 2));
  FindLostRows(plan, {ServiceId(3)}, &lost);
  EXPECT_THAT(lost, ElementsAre(1));
  FindLostRows(plan, {}, &lost);
  EXPECT_THAT(lost, IsEmpty());

  Assignments selected;
  SelectAssignments(assignments, {1, 3}, &selected);
  EXPECT_THAT(selected.expert_ids, ElementsAre(4, 6, 5, 4));
  EXPECT_EQ(selected.num_rows, 2);
}

}  // namespace
}  // namespace moebius
