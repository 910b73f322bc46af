// SPDX-License-Identifier: Apache-2.0
#include "router_service/roster.h"

#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"
#include "moebius/model/model_config.h"
#include "moebius/service/data_plane.h"
#include "moebius/service/joiner.h"
#include "moebius/tensor/buffer.h"
#include "moebius/transport/loopback/loopback.h"
#include "moebius/wire/dispatch_codec.h"
#include "moebius/wire/message_kind.h"
#include "router_service/canary.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr int64_t kHidden = 32;

FrameLimits Limits() {
  ModelConfig config;
  config.hidden_size = kHidden;
  config.num_layers = 2;
  return BuildClusterLimits(config);
}

Greeting GreetingOf(Role role, const std::string& hash = "h") {
  Greeting greeting;
  greeting.role = role;
  greeting.config_hash = greeting.model_hash = hash;
  return greeting;
}

// A process of a cluster that loads nothing and answers dispatches with `answer` in every element.
class FakeMember final : public Participant {
 public:
  FakeMember(LinkProvider& provider, Role role, const std::string& name, float answer = 1) {
    JoinerOptions options;
    options.own = GreetingOf(role);
    options.routers = {Address{"127.0.0.1", 7000}};
    joiner_ = std::make_unique<Joiner>(options, *this);
    DataPlaneOptions plane;
    plane.name = name;
    plane.greeting = options.own;
    plane.limits = Limits();
    if (role == Role::kAttention) plane.listen = Address{"127.0.0.1", 0};
    plane_ = *DataPlane::Make(plane, provider, *joiner_);
    ReservationSpec dispatches;
    dispatches.scope = ReservationScope::kKind;
    dispatches.key.kind = kDispatchKind;
    dispatches.max_message_bytes = 4096;
    dispatches.on_delivery = [this, answer](Delivery delivery) {
      if (!delivery.message.ok()) return;
      MessageKey key = delivery.message->key;
      EXPECT_EQ(key.step, kCanaryStep);
      ReceivedDispatch dispatch;
      EXPECT_TRUE(dispatch.Decode(*delivery.message, kHidden, 8).ok());
      EXPECT_EQ(dispatch.dispatch().num_reply_rows, 1);
      key.kind = kDispatchReplyKind;
      RowBatch<Bf16> row(1, kHidden);
      for (Bf16& element : row.rows().span(0)) element = ToBf16(answer);
      static_cast<void>(plane_->transport().Send(
          delivery.source, Lane::kDecode, BuildReply(key, CopyRows(row.rows()), 1, kHidden)));
    };
    EXPECT_TRUE(plane_->transport().Reserve(std::move(dispatches)).ok());
    EXPECT_TRUE(joiner_->Start(plane_->transport()).ok());
  }
  ~FakeMember() override {
    joiner_->Stop();
    plane_.reset();
  }

  absl::StatusOr<SlotReady> Load(const SlotAssignment& slot, const Progress&) override {
    MutexLock lock(mutex_);
    slots_.push_back(slot);
    return SlotReady();
  }
  void OnRouterUp(const PeerInfo&) override {}
  void OnRouterDown(const PeerInfo&) override {}

  std::vector<SlotAssignment> slots() const {
    MutexLock lock(mutex_);
    return slots_;
  }
  void Retire() { joiner_->Retire(absl::UnavailableError("draining")); }
  std::string address() const { return FormatAddress(*plane_->address()); }

 private:
  mutable Mutex mutex_;
  std::vector<SlotAssignment> slots_ MOEBIUS_GUARDED_BY(mutex_);
  std::unique_ptr<Joiner> joiner_;
  std::unique_ptr<DataPlane> plane_;
};

class RosterTest : public testing::Test {
 protected:
  RosterTest() : reactor_(Clock::Monotonic()), provider_(reactor_), thread_(reactor_) {}

  void StartRouter(int32_t num_experts, int32_t num_attention, int32_t num_replicas = 1) {
    const PlacementShape shape = PlacementShape::Make(4, {true, true}, 0, 0);
    StaticPlacementOptions static_options;
    static_options.num_services = num_experts;
    static_options.expert_replicas = num_replicas;
    placement_ = *Placement::Static(shape, static_options);
    RosterOptions options;
    options.own = GreetingOf(Role::kRouter);
    options.num_attention = num_attention;
    options.hidden_size = kHidden;
    options.canary_retry = absl::Milliseconds(20);
    options.on_notice = [this](const LogSource& source, const std::string& notice) {
      MutexLock lock(notices_mutex_);
      notices_.push_back(notice);
      sources_.push_back(source);
    };
    roster_ = std::make_unique<Roster>(options, placement_);
    DataPlaneOptions plane;
    plane.name = "router";
    plane.greeting = options.own;
    plane.limits = Limits();
    plane.listen = Address{"127.0.0.1", 7000};
    plane_ = *DataPlane::Make(plane, provider_, *roster_);
    ASSERT_TRUE(roster_->Start(plane_->transport(), plane_->reactor()).ok());
  }

  std::unique_ptr<FakeMember> Start(Role role, const std::string& name, float answer = 1) {
    return std::make_unique<FakeMember>(provider_, role, name, answer);
  }

  // Waits until the roster is as `condition` wants it, woken by its changes.
  template <typename Condition>
  bool WaitFor(Condition condition) {
    Mutex mutex;
    CondVar changed;
    const auto id = roster_->AddListener([&] {
      MutexLock lock(mutex);
      changed.SignalAll();
    });
    const absl::Duration end = Clock::Monotonic().Now() + kPatience;
    bool holds = condition();
    while (!holds && Clock::Monotonic().Now() < end) {
      {
        MutexLock lock(mutex);
        changed.WaitWithTimeout(mutex, absl::Milliseconds(20));
      }
      holds = condition();
    }
    roster_->RemoveListener(id);
    return holds;
  }

  std::vector<std::string> notices() {
    MutexLock lock(notices_mutex_);
    return notices_;
  }
  std::vector<LogSource> sources() {
    MutexLock lock(notices_mutex_);
    return sources_;
  }

  Mutex notices_mutex_;
  std::vector<std::string> notices_ MOEBIUS_GUARDED_BY(notices_mutex_);
  std::vector<LogSource> sources_ MOEBIUS_GUARDED_BY(notices_mutex_);
  Reactor reactor_;
  LoopbackProvider provider_;
  ReactorThread thread_;
  Placement placement_;
  std::unique_ptr<Roster> roster_;
  std::unique_ptr<DataPlane> plane_;
};

TEST_F(RosterTest, IsCompleteWhenAllAreLoadedAndTheCanariesWentRound) {
  StartRouter(2, 2);
  EXPECT_EQ(roster_->Missing().size(), 4u);
  const auto expert0 = Start(Role::kExpert, "expert-0");
  const auto expert1 = Start(Role::kExpert, "expert-1");
  const auto attention0 = Start(Role::kAttention, "attention-0");
  EXPECT_FALSE(roster_->WaitUntilComplete(absl::ZeroDuration()));
  const auto attention1 = Start(Role::kAttention, "attention-1");
  ASSERT_TRUE(roster_->WaitUntilComplete(kPatience));
  EXPECT_THAT(roster_->Missing(), IsEmpty());
  EXPECT_TRUE(roster_->IsExpertUsable(ServiceId(0)));
  EXPECT_TRUE(roster_->IsExpertUsable(ServiceId(1)));
  EXPECT_FALSE(roster_->IsExpertUsable(ServiceId(2)));
  EXPECT_TRUE(roster_->IsAttentionUsable(1));
  EXPECT_FALSE(roster_->IsAttentionUsable(-1));
  const SlotAssignment slot = expert0->slots().back();
  EXPECT_EQ(slot.held, placement_.HeldBy(ServiceId(slot.index)));
}

TEST_F(RosterTest, EveryRankKnowsAllAddresses) {
  StartRouter(1, 2);
  const auto expert = Start(Role::kExpert, "expert-0");
  const auto first = Start(Role::kAttention, "attention-0");
  ASSERT_TRUE(WaitFor([&] { return roster_->IsAttentionUsable(0); }));
  auto second = Start(Role::kAttention, "attention-1");
  ASSERT_TRUE(roster_->WaitUntilComplete(kPatience));
  // A rank that is in its place hears of those that come later.
  const auto both_know = [&](const FakeMember& other) {
    const std::vector<std::string> addresses = {first->address(), other.address()};
    return first->slots().back().rank_addresses == addresses &&
           other.slots().back().rank_addresses == addresses;
  };
  EXPECT_TRUE(WaitFor([&] { return both_know(*second); }));
  // A rank in its place has another address, which the first one learns.
  second.reset();
  ASSERT_TRUE(WaitFor([&] { return !roster_->IsAttentionUsable(1); }));
  const auto third = Start(Role::kAttention, "attention-1");
  ASSERT_TRUE(roster_->WaitUntilComplete(kPatience));
  EXPECT_TRUE(WaitFor([&] { return both_know(*third); }));
}

TEST_F(RosterTest, ADeadExpertIsNotUsableAndASpareTakesItsSlot) {
  StartRouter(1, 0);
  auto expert = Start(Role::kExpert, "expert-0");
  ASSERT_TRUE(roster_->WaitUntilComplete(kPatience));
  const PeerId first = *roster_->ExpertPeer(ServiceId(0));
  const uint64_t version = roster_->version();
  const auto spare = Start(Role::kExpert, "expert-spare");
  ASSERT_TRUE(WaitFor([&] { return roster_->version() > version; }));
  expert.reset();
  ASSERT_TRUE(WaitFor([&] {
    return roster_->IsExpertUsable(ServiceId(0)) && roster_->ExpertPeer(ServiceId(0)) != first;
  }));
  EXPECT_EQ(roster_->members().at(0).slot.name, "expert-spare");
}

TEST_F(RosterTest, ADeadExpertKeepsNoRequestFromBeingServedWhileOthersHoldItsExperts) {
  StartRouter(2, 1, 2);
  EXPECT_EQ(roster_->Unserved().size(), 3u);
  auto first = Start(Role::kExpert, "expert-0");
  auto second = Start(Role::kExpert, "expert-1");
  auto rank = Start(Role::kAttention, "attention-0");
  ASSERT_TRUE(roster_->WaitUntilComplete(kPatience));
  EXPECT_THAT(roster_->Unserved(), IsEmpty());
  EXPECT_EQ(roster_->FewestReplicas().usable, 2);
  EXPECT_EQ(roster_->FewestReplicas().placed, 2);
  first.reset();
  ASSERT_TRUE(WaitFor([&] { return !roster_->Missing().empty(); }));
  EXPECT_THAT(roster_->Unserved(), IsEmpty());
  EXPECT_EQ(roster_->FewestReplicas().usable, 1);
  second.reset();
  ASSERT_TRUE(WaitFor([&] { return roster_->Missing().size() == 2; }));
  EXPECT_EQ(roster_->FewestReplicas().usable, 0);
  EXPECT_EQ(roster_->FewestReplicas().placed, 2);
  EXPECT_EQ(roster_->Unserved(), roster_->Missing());
  rank.reset();
  ASSERT_TRUE(WaitFor([&] { return roster_->Unserved().size() == 3; }));
}

TEST_F(RosterTest, AnExpertThatGivesItsSlotUpIsNotUsableAndNotTriedAgain) {
  StartRouter(2, 0, 2);
  const auto first = Start(Role::kExpert, "expert-0");
  const auto second = Start(Role::kExpert, "expert-1");
  ASSERT_TRUE(roster_->WaitUntilComplete(kPatience));
  const bool first_is_0 = roster_->members().at(0).slot.name == "expert-0";
  first->Retire();
  ASSERT_TRUE(WaitFor([&] { return !roster_->IsExpertUsable(ServiceId(first_is_0 ? 0 : 1)); }));
  EXPECT_TRUE(roster_->IsExpertUsable(ServiceId(first_is_0 ? 1 : 0)));
  EXPECT_THAT(roster_->Unserved(), IsEmpty());
  EXPECT_THAT(roster_->Missing(), ElementsAre(HasSubstr("draining")));
}

// Its sessions have keys there, so their rows go on.
TEST_F(RosterTest, ARankThatDrainsIsMissingAndStillAsked) {
  StartRouter(1, 1);
  const auto expert = Start(Role::kExpert, "expert-0");
  const auto rank = Start(Role::kAttention, "attention-0");
  ASSERT_TRUE(roster_->WaitUntilComplete(kPatience));
  rank->Retire();
  ASSERT_TRUE(WaitFor([&] { return !roster_->Missing().empty(); }));
  EXPECT_THAT(roster_->Missing(), ElementsAre(HasSubstr("draining")));
  EXPECT_THAT(roster_->Unserved(), ElementsAre(HasSubstr("draining")));
  EXPECT_TRUE(roster_->IsAttentionUsable(0));
  EXPECT_EQ(roster_->members().at(1).slot.state, SlotState::kDraining);
}

TEST_F(RosterTest, APeerThatTheTransportMissesIsNotUsableAtOnce) {
  StartRouter(1, 1);
  const auto expert = Start(Role::kExpert, "expert-0");
  const auto rank = Start(Role::kAttention, "attention-0");
  ASSERT_TRUE(roster_->WaitUntilComplete(kPatience));
  roster_->NoteGone(*roster_->AttentionPeer(0));
  EXPECT_FALSE(roster_->IsAttentionUsable(0));
  EXPECT_TRUE(roster_->IsExpertUsable(ServiceId(0)));
  roster_->NoteGone(PeerId(12345));  // nobody
}

TEST_F(RosterTest, AnExpertWhoseCanaryIsNotFiniteStaysUnusable) {
  StartRouter(1, 0);
  const auto broken = Start(Role::kExpert, "expert-0", std::numeric_limits<float>::infinity());
  ASSERT_TRUE(WaitFor([&] {
    return !roster_->Missing().empty() &&
           roster_->Missing()[0].find("not finite") != std::string::npos;
  }));
  EXPECT_FALSE(roster_->IsExpertUsable(ServiceId(0)));
}

TEST_F(RosterTest, RefusesRoutersOtherHashesAndRanksWithoutAddress) {
  StartRouter(1, 2);
  PeerInfo peer;
  peer.name = "stranger";
  peer.address = "10.0.0.9:5";
  peer.greeting = EncodeGreeting(GreetingOf(Role::kExpert, "other"));
  EXPECT_EQ(roster_->AdmitPeer(peer).code(), absl::StatusCode::kFailedPrecondition);
  peer.greeting = EncodeGreeting(GreetingOf(Role::kRouter));
  EXPECT_EQ(roster_->AdmitPeer(peer).code(), absl::StatusCode::kInvalidArgument);
  peer.greeting = EncodeGreeting(GreetingOf(Role::kAttention));
  EXPECT_THAT(std::string(roster_->AdmitPeer(peer).message()), HasSubstr("no address"));
  peer.greeting = "garbage";
  EXPECT_FALSE(roster_->AdmitPeer(peer).ok());
  peer.greeting = EncodeGreeting(GreetingOf(Role::kExpert));
  EXPECT_TRUE(roster_->AdmitPeer(peer).ok());
  peer.facts.identity = "spiffe://moebius/client";
  EXPECT_EQ(roster_->AdmitPeer(peer).code(), absl::StatusCode::kPermissionDenied);
  // Whatever port and name it comes with, it is one host's.
  ASSERT_EQ(notices().size(), 5u);
  EXPECT_EQ(roster_->num_refused(), 5u);
  EXPECT_THAT(notices()[0], HasSubstr("refused stranger at 10.0.0.9:5: "));
  for (const LogSource& source : sources()) {
    EXPECT_EQ(source.peer, "10.0.0.9");
    EXPECT_EQ(source.kind, "refusal");
  }
}

}  // namespace
}  // namespace moebius
