// SPDX-License-Identifier: Apache-2.0
#include "expert_service/expert_participant.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/base/mutex.h"
#include "moebius/model/random_checkpoint.h"
#include "moebius/routing/dispatch_plan.h"
#include "moebius/transport/loopback/loopback.h"
#include "moebius/wire/dispatch_codec.h"
#include "moebius/wire/error_detail.h"
#include "moebius/wire/message_kind.h"
#include "moebius/wire/row_codec.h"
#include "tests/support/expert_process.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

constexpr int64_t kRows = 6;

// The peers of a participant, and of the router beside it.
class Watcher final : public PeerWatcher {
 public:
  explicit Watcher(Participant* participant) : participant_(participant) {}
  void OnPeerState(const PeerInfo& peer) override {
    if (participant_ != nullptr && peer.state == PeerState::kDead) {
      participant_->OnRouterDown(peer);
    }
  }

 private:
  Participant* const participant_;
};

// A participant of a small random model, and a router's transport that asks it.
class ExpertParticipantTest : public testing::Test {
 protected:
  ExpertParticipantTest() {
    RandomCheckpointOptions options;
    options.num_layers = 2;
    options.num_experts = 4;
    EXPECT_TRUE(WriteRandomCheckpoint(folder_.path(), options).ok());
    checkpoint_ = *Checkpoint::Open(folder_.path(), {});
  }

  void Start(const ExpertParticipantOptions& options = {}) {
    participant_ = std::make_unique<ExpertParticipant>(options, *checkpoint_, BestKernels(),
                                                       &executor_, running_.clock());
    watcher_ = std::make_unique<Watcher>(participant_.get());
    transport_ = *Transport::Make(SmallTransportOptions("expert-0"), provider_, running_.reactor(),
                                  *watcher_);
    router_ = *Transport::Make(SmallTransportOptions("router"), provider_, running_.reactor(),
                               router_watcher_);
    participant_->Bind(transport_.get());
    const auto peer = transport_->Connect(*router_->Listen({"127.0.0.1", 0}));
    ASSERT_TRUE(peer.ok());
    ASSERT_TRUE(WaitFor([&] { return IsConnected(*transport_, *peer); }));
    ASSERT_TRUE(WaitFor([&] {
      const auto peers = router_->peers();
      return peers.size() == 1 && peers[0].state == PeerState::kConnected;
    }));
  }
  ~ExpertParticipantTest() override {
    if (participant_ != nullptr) participant_->Stop();
    transport_.reset();
    router_.reset();
  }

  // Experts [begin, end) of the last layer.
  static SlotAssignment Slot(int32_t begin, int32_t end, int64_t row_budget = 16) {
    SlotAssignment slot;
    slot.index = 0;
    slot.count = 1;
    slot.row_budget = row_budget;
    for (int32_t id = begin; id < end; ++id) slot.held.push_back({LayerId(1), ExpertId(id)});
    return slot;
  }

  absl::StatusOr<SlotReady> Load(const SlotAssignment& slot) {
    num_progress_ = 0;
    return participant_->Load(slot, [this](int64_t, int64_t) { ++num_progress_; });
  }

  // The answer to kRows rows of ones for one expert of layer 1.
  Message Ask(int32_t expert) {
    RowBatch<Bf16> rows(kRows, checkpoint_->config().hidden_size);
    for (int64_t row = 0; row < kRows; ++row) {
      for (Bf16& value : rows.rows().span(row)) value = ToBf16(1 + static_cast<float>(row));
    }
    std::vector<int32_t> row_ids, ids(kRows, expert);
    std::vector<int64_t> row_begin = {0};
    for (int32_t row = 0; row < kRows; ++row) {
      row_ids.push_back(row);
      row_begin.push_back(row + 1);
    }
    const std::vector<float> weights(kRows, 1);
    const std::vector<uint8_t> joins(kRows, 0);
    ServiceDispatch dispatch;
    dispatch.row_ids = row_ids;
    dispatch.row_begin = row_begin;
    dispatch.expert_ids = ids;
    dispatch.weights = weights;
    dispatch.joins_previous = joins;
    MessageKey key;
    key.kind = kDispatchKind;
    key.step = ++step_;
    key.layer = 1;
    ReservationSpec spec;
    spec.source = router_->peers()[0].id;
    spec.key = key;
    spec.key.kind = kDispatchReplyKind;
    spec.max_message_bytes = MaxReplyBytes(kRows, rows.width());
    Mutex mutex;
    std::optional<Delivery> answer;
    spec.on_delivery = [&](Delivery delivery) {
      MutexLock lock(mutex);
      answer = std::move(delivery);
    };
    const PeerId expert_peer = spec.source;
    EXPECT_TRUE(router_->Reserve(std::move(spec)).ok());
    EXPECT_TRUE(
        router_->Send(expert_peer, Lane::kDecode, BuildDispatch(key, dispatch, rows.rows())).ok());
    EXPECT_TRUE(WaitFor([&] {
      MutexLock lock(mutex);
      return answer.has_value();
    }));
    MutexLock lock(mutex);
    return answer->message.value_or(Message());
  }

  bool Answers(int32_t expert) {
    return ParseReply(Ask(expert), kRows, checkpoint_->config().hidden_size).ok();
  }

  TemporaryFolder folder_;
  std::unique_ptr<const Checkpoint> checkpoint_;
  RunningReactor running_;
  LoopbackProvider provider_{running_.reactor()};
  Executor executor_{2};
  std::unique_ptr<ExpertParticipant> participant_;
  std::unique_ptr<Watcher> watcher_;
  Watcher router_watcher_{nullptr};
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Transport> router_;
  int num_progress_ = 0;
  uint64_t step_ = 0;
};

TEST_F(ExpertParticipantTest, ServesWhatItsSlotHoldsAndNothingElse) {
  Mutex mutex;
  std::vector<std::string> told;
  ExpertParticipantOptions options;
  options.on_not_held = [&](const absl::Status& status) {
    MutexLock lock(mutex);
    told.emplace_back(status.message());
  };
  Start(options);
  EXPECT_EQ(participant_->figures().num_held, 0);
  const auto ready = Load(Slot(0, 2));
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_EQ(ready->threads, 2);
  EXPECT_EQ(num_progress_, 2);
  EXPECT_EQ(participant_->figures().num_held, 2);
  EXPECT_EQ(ready->loaded_bytes, participant_->figures().weight_bytes);
  EXPECT_TRUE(Answers(0));
  EXPECT_TRUE(Answers(1));
  absl::Status failure;
  ASSERT_TRUE(IsFailedReply(Ask(2), &failure));
  EXPECT_TRUE(IsNotHeld(failure)) << failure;
  EXPECT_EQ(participant_->figures().dispatches.not_held, 1);
  {
    MutexLock lock(mutex);  // told before the answer left
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0], "NOT_HELD: layer 1, expert 2");
  }
  participant_->Stop();
}

TEST_F(ExpertParticipantTest, LoadsTheSameSlotOnce) {
  Start();
  ASSERT_TRUE(Load(Slot(0, 2)).ok());
  EXPECT_TRUE(Answers(0));
  ASSERT_TRUE(Load(Slot(0, 2)).ok());
  EXPECT_EQ(num_progress_, 0);
  ASSERT_TRUE(Load(Slot(0, 2, 32)).ok()) << "more room, the same weights";
  EXPECT_EQ(num_progress_, 0);
  EXPECT_TRUE(Answers(1));
}

// What another router asks for comes beside; no dispatch of the first is lost.
TEST_F(ExpertParticipantTest, AWiderSlotGoesOnServingInTheRoomThatItHas) {
  Start();
  ASSERT_TRUE(Load(Slot(0, 2, 32)).ok());
  EXPECT_TRUE(Answers(0));
  ASSERT_TRUE(Load(Slot(0, 4)).ok()) << "a smaller row budget";
  EXPECT_TRUE(Answers(0));
  EXPECT_TRUE(Answers(3));
  EXPECT_EQ(participant_->figures().dispatches.served, 3) << "by the same server";
}

TEST_F(ExpertParticipantTest, ReplacesItsSlotAndKeepsItWhereTheNextCannotBeLoaded) {
  Start();
  ASSERT_TRUE(Load(Slot(0, 2)).ok());
  ASSERT_TRUE(Load(Slot(2, 4)).ok());
  EXPECT_TRUE(Answers(3));
  EXPECT_FALSE(Answers(0));
  EXPECT_EQ(Load(Slot(3, 6)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Answers(2));
}

TEST_F(ExpertParticipantTest, MockAnswersZerosOfTheRightShapeWithoutWeights) {
  ExpertParticipantOptions options;
  options.mock_delay = absl::Microseconds(50);
  Start(options);
  const auto ready = Load(Slot(0, 2));
  ASSERT_TRUE(ready.ok());
  EXPECT_EQ(ready->tier, "mock");
  EXPECT_EQ(ready->loaded_bytes, 0);
  const auto rows = ParseReply(Ask(3), kRows, checkpoint_->config().hidden_size);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(ToFloat(rows->rows.row(5)[1]), 0);
}

TEST_F(ExpertParticipantTest, RefusesASlotThatDoesNotFitTheHostAndKeepsWhatItHad) {
  ExpertParticipantOptions options;
  options.memory.limit_bytes = *ExpertPipeline::PackedBytes(*checkpoint_, Slot(0, 2).held);
  options.memory.source = "a test";
  Start(options);
  ASSERT_TRUE(Load(Slot(0, 2)).ok()) << "exactly what there is";
  const absl::Status refused = Load(Slot(0, 3)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(HintOf(refused).find("--expert-replicas"), std::string::npos);
  EXPECT_TRUE(Answers(1));
}

TEST_F(ExpertParticipantTest, SendsNewDispatchesElsewhereWhileItDrains) {
  Start();
  EXPECT_TRUE(participant_->Drain(absl::ZeroDuration())) << "nothing is served yet";
  ASSERT_TRUE(Load(Slot(0, 2)).ok());
  EXPECT_TRUE(participant_->Drain(absl::Seconds(20)));
  absl::Status failure;
  ASSERT_TRUE(IsFailedReply(Ask(0), &failure));
  EXPECT_TRUE(absl::IsUnavailable(failure));
  ASSERT_TRUE(Load(Slot(1, 2)).ok()) << "another slot ends no draining";
  ASSERT_TRUE(IsFailedReply(Ask(0), &failure));
  EXPECT_TRUE(absl::IsUnavailable(failure));
}

}  // namespace
}  // namespace moebius
