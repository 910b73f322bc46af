// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/joiner.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"
#include "moebius/base/error.h"
#include "moebius/base/mutex.h"
#include "moebius/model/model_config.h"
#include "moebius/service/data_plane.h"
#include "moebius/transport/loopback/loopback.h"
#include "moebius/wire/message_kind.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

// Something that several threads write to and the test waits on.
class Monitor {
 public:
  template <typename Change>
  void Set(Change change) {
    MutexLock lock(mutex_);
    change();
    changed_.SignalAll();
  }
  template <typename Condition>
  bool WaitFor(Condition condition) {
    const absl::Duration end = Clock::Monotonic().Now() + kPatience;
    MutexLock lock(mutex_);
    while (!condition()) {
      if (changed_.WaitWithTimeout(mutex_, absl::Milliseconds(50)) &&
          Clock::Monotonic().Now() > end) {
        return condition();
      }
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
};

Greeting GreetingOf(Role role, const std::string& hash) {
  Greeting greeting;
  greeting.role = role;
  greeting.config_hash = greeting.model_hash = hash;
  return greeting;
}

FrameLimits Limits() {
  ModelConfig config;
  config.hidden_size = 64;
  config.num_layers = 2;
  return BuildClusterLimits(config);
}

// The router's side, by hand: keeps who came, what they said and what they reported.
class FakeRouter final : public PeerWatcher {
 public:
  FakeRouter(LinkProvider& provider, uint16_t port, const std::string& hash)
      : own_(GreetingOf(Role::kRouter, hash)) {
    DataPlaneOptions options;
    options.name = "router";
    options.greeting = own_;
    options.limits = Limits();
    options.listen = Address{"127.0.0.1", port};
    plane_ = *DataPlane::Make(options, provider, *this);
    ReservationSpec reports;
    reports.scope = ReservationScope::kKind;
    reports.key.kind = kSlotReadyKind;
    reports.max_message_bytes = MaxSlotReadyBytes() + 64;
    reports.max_messages = 8;
    reports.on_delivery = [this](Delivery delivery) {
      if (!delivery.message.ok()) return;
      auto report = ParseSlotReady(*delivery.message);
      monitor_.Set([&] { reports_.push_back(*report); });
    };
    EXPECT_TRUE(plane_->transport().Reserve(std::move(reports)).ok());
  }

  absl::Status AdmitPeer(const PeerInfo& peer) override {
    return CheckGreeting(own_, *ParseGreeting(peer.greeting));
  }
  void OnPeerState(const PeerInfo& peer) override {
    monitor_.Set([&] {
      if (peer.state == PeerState::kConnected) joined_ = peer;
      if (peer.state == PeerState::kDead) joined_.reset();
    });
  }

  PeerInfo WaitForJoin() {
    EXPECT_TRUE(monitor_.WaitFor([&] { return joined_.has_value(); }));
    return *joined_;
  }
  void Assign(PeerId peer, const SlotAssignment& slot) {
    EXPECT_TRUE(plane_->transport().Send(peer, Lane::kControl, BuildSlotAssignment(slot)).ok());
  }
  // The next report that is not mere progress.
  SlotReady WaitForReport() {
    SlotReady report;
    EXPECT_TRUE(monitor_.WaitFor([&] {
      while (!reports_.empty() && reports_.front().phase == SlotPhase::kLoading) {
        reports_.pop_front();
      }
      if (reports_.empty()) return false;
      report = reports_.front();
      reports_.pop_front();
      return true;
    }));
    return report;
  }

 private:
  const Greeting own_;
  Monitor monitor_;
  std::optional<PeerInfo> joined_;
  std::deque<SlotReady> reports_;
  std::unique_ptr<DataPlane> plane_;
};

class FakeParticipant final : public Participant {
 public:
  absl::StatusOr<SlotReady> Load(const SlotAssignment& slot, const Progress& progress) override {
    monitor.Set([&] { slots.push_back(slot); });
    progress(5, 10);
    EXPECT_TRUE(monitor.WaitFor([&] { return may_finish; }));
    if (!failure.ok()) return failure;
    SlotReady ready;
    ready.loaded_bytes = 10;
    return ready;
  }
  void OnRouterUp(const PeerInfo&) override {
    monitor.Set([&] { ++ups; });
  }
  void OnRouterDown(const PeerInfo&) override {
    monitor.Set([&] { ++downs; });
  }

  Monitor monitor;
  std::vector<SlotAssignment> slots;
  absl::Status failure;
  bool may_finish = true;
  int ups = 0;
  int downs = 0;
};

class JoinerTest : public testing::Test {
 protected:
  JoinerTest() : reactor_(Clock::Monotonic()), provider_(reactor_), thread_(reactor_) {}
  ~JoinerTest() override {
    if (joiner_ != nullptr) joiner_->Stop();
  }

  void Join(const std::string& hash, std::vector<uint16_t> ports = {7000}) {
    JoinerOptions options;
    options.own = GreetingOf(Role::kExpert, hash);
    for (const uint16_t port : ports) options.routers.push_back(Address{"127.0.0.1", port});
    options.on_refused = [this](const absl::Status& status) {
      participant_.monitor.Set([&] { refusal_ = status; });
    };
    joiner_ = std::make_unique<Joiner>(options, participant_);
    DataPlaneOptions plane;
    plane.name = "expert-0";
    plane.greeting = options.own;
    plane.limits = Limits();
    plane_ = *DataPlane::Make(plane, provider_, *joiner_);
    ASSERT_TRUE(joiner_->Start(plane_->transport()).ok());
  }

  static SlotAssignment Slot(int32_t index, uint64_t term) {
    SlotAssignment slot;
    slot.index = index;
    slot.count = 4;
    slot.term = term;
    slot.held = {{LayerId(0), ExpertId(index < 0 ? 0 : index)}};
    if (index < 0) slot.held.clear();
    return slot;
  }

  Reactor reactor_;
  LoopbackProvider provider_;
  ReactorThread thread_;
  FakeParticipant participant_;
  absl::Status refusal_;
  std::unique_ptr<Joiner> joiner_;
  std::unique_ptr<DataPlane> plane_;
};

TEST_F(JoinerTest, TakesASlotLoadsItAndReports) {
  FakeRouter router(provider_, 7000, "a");
  Join("a");
  const PeerInfo peer = router.WaitForJoin();
  EXPECT_EQ(ParseGreeting(peer.greeting)->role, Role::kExpert);
  router.Assign(peer.id, Slot(2, 1));
  const SlotReady report = router.WaitForReport();
  ASSERT_EQ(report.phase, SlotPhase::kReady);
  EXPECT_EQ(report.loaded_bytes, 10);
  EXPECT_EQ(participant_.slots.at(0), Slot(2, 1));
  EXPECT_EQ(joiner_->state().index, 2);
  EXPECT_TRUE(joiner_->state().is_ready());
  EXPECT_EQ(participant_.ups, 1);
}

TEST_F(JoinerTest, AFailureToLoadIsToldWithItsReason) {
  FakeRouter router(provider_, 7000, "a");
  participant_.failure = absl::ResourceExhaustedError("no memory for it");
  Join("a");
  router.Assign(router.WaitForJoin().id, Slot(2, 1));
  const SlotReady report = router.WaitForReport();
  EXPECT_EQ(report.phase, SlotPhase::kFailed);
  EXPECT_EQ(report.status.message(), "no memory for it");
  EXPECT_THAT(joiner_->state().words, HasSubstr("no memory for it"));
}

TEST_F(JoinerTest, OfSeveralSlotsTheLastOneIsReported) {
  FakeRouter router(provider_, 7000, "a");
  participant_.may_finish = false;
  Join("a");
  const PeerId peer = router.WaitForJoin().id;
  router.Assign(peer, Slot(1, 1));
  ASSERT_TRUE(participant_.monitor.WaitFor([&] { return participant_.slots.size() == 1; }));
  router.Assign(peer, Slot(2, 1));
  router.Assign(peer, Slot(3, 0));  // of a term that is over
  EXPECT_EQ(router.WaitForReport().status.code(), absl::StatusCode::kAborted);
  participant_.monitor.Set([&] { participant_.may_finish = true; });
  EXPECT_EQ(router.WaitForReport().phase, SlotPhase::kReady);
  EXPECT_EQ(participant_.slots.size(), 2u);
  EXPECT_EQ(joiner_->state().index, 2);
}

TEST_F(JoinerTest, WhoRetiresGivesUpItsSlotAndEveryOneToCome) {
  FakeRouter router(provider_, 7000, "a");
  Join("a");
  const PeerId peer = router.WaitForJoin().id;
  SlotAssignment slot = Slot(2, 1);
  slot.number = 7;
  router.Assign(peer, slot);
  ASSERT_EQ(router.WaitForReport().phase, SlotPhase::kReady);
  joiner_->Retire(absl::UnavailableError("draining"));
  joiner_->Retire(absl::UnavailableError("again"));  // is no news
  SlotReady report = router.WaitForReport();
  EXPECT_EQ(report.number, 7u);
  EXPECT_EQ(report.phase, SlotPhase::kFailed);
  EXPECT_TRUE(absl::IsUnavailable(report.status));
  EXPECT_EQ(report.status.message(), "draining");
  slot.number = 8;
  router.Assign(peer, slot);
  report = router.WaitForReport();
  EXPECT_EQ(report.number, 8u);
  EXPECT_TRUE(absl::IsUnavailable(report.status));
  EXPECT_EQ(report.status.message(), "draining");
}

TEST_F(JoinerTest, ASpareLoadsNothing) {
  FakeRouter router(provider_, 7000, "a");
  Join("a");
  const PeerId peer = router.WaitForJoin().id;
  router.Assign(peer, Slot(-1, 1));
  router.Assign(peer, Slot(0, 1));
  ASSERT_EQ(router.WaitForReport().phase, SlotPhase::kReady);
  EXPECT_EQ(participant_.slots.back().index, 0);
}

TEST_F(JoinerTest, JoinsTheNextLifeOfItsRouter) {
  auto router = std::make_unique<FakeRouter>(provider_, 7000, "a");
  Join("a");
  ASSERT_TRUE(participant_.monitor.WaitFor([&] { return participant_.ups == 1; }));
  router.reset();
  ASSERT_TRUE(participant_.monitor.WaitFor([&] { return participant_.downs == 1; }));
  EXPECT_EQ(joiner_->state().phase, JoinState::Phase::kDialing);
  router = std::make_unique<FakeRouter>(provider_, 7000, "a");
  router->Assign(router->WaitForJoin().id, Slot(0, 1));
  EXPECT_EQ(router->WaitForReport().phase, SlotPhase::kReady);
  EXPECT_EQ(participant_.ups, 2);
  EXPECT_TRUE(refusal_.ok());
}

TEST_F(JoinerTest, AnotherConfigurationIsRefusedForGoodShowingBoth) {
  FakeRouter router(provider_, 7000, "router's hash");
  Join("own hash");
  ASSERT_TRUE(participant_.monitor.WaitFor([&] { return !refusal_.ok(); }));
  EXPECT_EQ(refusal_.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refusal_.message()), HasSubstr("router's hash"));
  EXPECT_THAT(std::string(refusal_.message()), HasSubstr("own hash"));
  EXPECT_THAT(HintOf(refusal_), HasSubstr("--print-config"));
}

TEST_F(JoinerTest, HoldsWhatAllItsRoutersAskForAndReportsToEach) {
  FakeRouter first(provider_, 7000, "a");
  auto second = std::make_unique<FakeRouter>(provider_, 7001, "a");
  Join("a", {7000, 7001});
  first.Assign(first.WaitForJoin().id, Slot(2, 5));
  ASSERT_EQ(first.WaitForReport().phase, SlotPhase::kReady);
  // A smaller term is another router's own.
  second->Assign(second->WaitForJoin().id, Slot(1, 1));
  ASSERT_EQ(second->WaitForReport().phase, SlotPhase::kReady);
  const std::vector<HeldExpert> both = {{LayerId(0), ExpertId(1)}, {LayerId(0), ExpertId(2)}};
  EXPECT_EQ(participant_.slots.at(1).held, both);
  EXPECT_EQ(participant_.slots.at(1).index, 1);
  EXPECT_THAT(joiner_->state().words, HasSubstr("127.0.0.1:7000: ready as expert slot 2 of 4"));
  EXPECT_THAT(joiner_->state().words, HasSubstr("127.0.0.1:7001: ready as expert slot 1 of 4"));
  // What a router asked for stays while it is away, and is replaced when it is back.
  second.reset();
  ASSERT_TRUE(participant_.monitor.WaitFor([&] { return participant_.downs == 1; }));
  EXPECT_TRUE(joiner_->state().is_ready());
  first.Assign(first.WaitForJoin().id, Slot(3, 5));
  ASSERT_EQ(first.WaitForReport().phase, SlotPhase::kReady);
  EXPECT_EQ(participant_.slots.at(2).held,
            (std::vector<HeldExpert>{{LayerId(0), ExpertId(1)}, {LayerId(0), ExpertId(3)}}));
  second = std::make_unique<FakeRouter>(provider_, 7001, "a");
  second->Assign(second->WaitForJoin().id, Slot(0, 1));
  ASSERT_EQ(second->WaitForReport().phase, SlotPhase::kReady);
  EXPECT_EQ(participant_.slots.at(3).held,
            (std::vector<HeldExpert>{{LayerId(0), ExpertId(0)}, {LayerId(0), ExpertId(3)}}));
}

TEST_F(JoinerTest, IsReadyForOneRouterWhileTheOtherIsNotThere) {
  FakeRouter router(provider_, 7001, "a");
  Join("a", {7000, 7001});
  router.Assign(router.WaitForJoin().id, Slot(0, 1));
  ASSERT_EQ(router.WaitForReport().phase, SlotPhase::kReady);
  EXPECT_TRUE(joiner_->state().is_ready());
}

TEST_F(JoinerTest, OneRouterOfAnotherConfigurationDoesNotEndTheWorkForTheOther) {
  FakeRouter stranger(provider_, 7000, "b");
  FakeRouter router(provider_, 7001, "a");
  Join("a", {7000, 7001});
  router.Assign(router.WaitForJoin().id, Slot(0, 1));
  ASSERT_EQ(router.WaitForReport().phase, SlotPhase::kReady);
  ASSERT_TRUE(participant_.monitor.WaitFor(
      [&] { return joiner_->state().words.find("127.0.0.1:7000: no router") == 0; }));
  EXPECT_TRUE(refusal_.ok());
}

TEST(MergeSlotsTest, TakesTheUnionAndTheLargestRowBudget) {
  SlotAssignment slot;
  slot.index = 3;
  slot.row_budget = 16;
  slot.held = {{LayerId(1), ExpertId(4)}, {LayerId(1), ExpertId(5)}};
  EXPECT_EQ(*MergeSlots(slot, {}), slot);
  SlotAssignment other = slot;
  other.index = 0;
  other.row_budget = 64;
  other.held = {{LayerId(0), ExpertId(9)}, {LayerId(1), ExpertId(5)}};
  const auto merged = MergeSlots(slot, {other});
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged->index, 3);
  EXPECT_EQ(merged->row_budget, 64);
  EXPECT_EQ(merged->held,
            (std::vector<HeldExpert>{
                {LayerId(0), ExpertId(9)}, {LayerId(1), ExpertId(4)}, {LayerId(1), ExpertId(5)}}));
}

TEST(MergeSlotsTest, RefusesMoreRowsThanOthersHaveMadeRoomFor) {
  SlotAssignment slot;
  slot.row_budget = 65;
  SlotAssignment other;
  other.row_budget = 64;
  const absl::Status status = MergeSlots(slot, {other}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("steps of 65 rows"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("room for 64"));
  EXPECT_THAT(HintOf(status), HasSubstr("--row-budget"));
}

TEST(DataPlaneTest, TellsTheAddressThatWasChosen) {
  Reactor reactor(Clock::Monotonic());
  LoopbackProvider provider(reactor);
  ReactorThread thread(reactor);
  FakeRouter router(provider, 7000, "a");
  class Nobody final : public PeerWatcher {
    void OnPeerState(const PeerInfo&) override {}
  } nobody;
  DataPlaneOptions options;
  options.name = "attention-0";
  options.greeting = GreetingOf(Role::kAttention, "a");
  options.limits = Limits();
  options.listen = Address{"127.0.0.1", 0};
  const auto plane = DataPlane::Make(options, provider, nobody);
  ASSERT_TRUE(plane.ok()) << plane.status();
  ASSERT_TRUE((*plane)->transport().Connect(Address{"127.0.0.1", 7000}).ok());
  const auto greeting = ParseGreeting(router.WaitForJoin().greeting);
  EXPECT_EQ(greeting->data_address, FormatAddress(*(*plane)->address()));
  EXPECT_NE((*plane)->address()->port, 0);
}

}  // namespace
}  // namespace moebius
