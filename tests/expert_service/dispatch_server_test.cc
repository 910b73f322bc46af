// SPDX-License-Identifier: Apache-2.0
#include "expert_service/dispatch_server.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "expert_service/metrics.h"
#include "moebius/base/mutex.h"
#include "moebius/tensor/buffer.h"
#include "moebius/transport/loopback/loopback.h"
#include "moebius/wire/dispatch_codec.h"
#include "moebius/wire/error_detail.h"
#include "moebius/wire/message_kind.h"
#include "moebius/wire/row_codec.h"
#include "tests/support/expert_process.h"
#include "tests/support/metric_values.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHidden = 8;
constexpr int32_t kExperts = 4;
constexpr int64_t kRowBudget = 16;

DispatchServerOptions ServerOptions() {
  DispatchServerOptions options;
  options.shape = PlacementShape::Make(kExperts, {true, true}, 0, 0);
  options.hidden_size = kHidden;
  options.row_budget = kRowBudget;
  return options;
}

// A router that asks by hand and keeps what it is answered.
class AskingRouter final : public PeerWatcher {
 public:
  AskingRouter(const std::string& name, LinkProvider& provider, Reactor& reactor)
      : transport_(*Transport::Make(SmallTransportOptions(name), provider, reactor, *this)) {}

  Address Listen() { return *transport_->Listen({"127.0.0.1", 0}); }
  void OnPeerState(const PeerInfo& peer) override {
    MutexLock lock(mutex_);
    if (peer.state == PeerState::kConnected) expert_ = peer.id;
  }
  bool HasExpert() const {
    MutexLock lock(mutex_);
    return expert_ != PeerId();
  }

  // Rows for one expert of layer `layer`.
  static Message Dispatch(uint64_t step, int32_t layer, int32_t expert, int32_t num_rows = 1) {
    RowBatch<Bf16> rows(num_rows, kHidden);
    std::vector<int32_t> row_ids, ids;
    std::vector<int64_t> row_begin = {0};
    for (int32_t row = 0; row < num_rows; ++row) {
      for (Bf16& value : rows.rows().span(row)) value = ToBf16(static_cast<float>(step));
      row_ids.push_back(row);
      ids.push_back(expert);
      row_begin.push_back(row + 1);
    }
    const std::vector<float> weights(ids.size(), 1);
    const std::vector<uint8_t> joins(ids.size(), 0);
    ServiceDispatch dispatch;
    dispatch.epoch = Epoch(9);
    dispatch.row_ids = row_ids;
    dispatch.row_begin = row_begin;
    dispatch.expert_ids = ids;
    dispatch.weights = weights;
    dispatch.joins_previous = joins;
    MessageKey key;
    key.kind = kDispatchKind;
    key.step = step;
    key.attempt = 2;
    key.layer = static_cast<uint32_t>(layer);
    key.round = 3;
    Message message = BuildDispatch(key, dispatch, rows.rows());
    message.term = 5;
    return message;
  }

  void Ask(Message message, Lane lane = Lane::kDecode) {
    ReservationSpec spec;
    {
      MutexLock lock(mutex_);
      spec.source = expert_;
    }
    spec.key = message.key;
    spec.key.kind = kDispatchReplyKind;
    spec.max_message_bytes = MaxReplyBytes(kRowBudget, kHidden);
    spec.on_delivery = [this, step = message.key.step](Delivery delivery) {
      MutexLock lock(mutex_);
      order_.push_back(step);
      answers_.emplace(step, std::move(delivery));
    };
    const PeerId expert = spec.source;
    ASSERT_TRUE(transport_->Reserve(std::move(spec)).ok());
    ASSERT_TRUE(transport_->Send(expert, lane, std::move(message)).ok());
  }

  bool IsAnswered(uint64_t step) const {
    MutexLock lock(mutex_);
    return answers_.count(step) > 0;
  }
  // The answer, once it is there.
  Message AnswerTo(uint64_t step) const {
    EXPECT_TRUE(WaitFor([&] { return IsAnswered(step); })) << "step " << step;
    MutexLock lock(mutex_);
    const Delivery& delivery = answers_.at(step);
    EXPECT_TRUE(delivery.message.ok()) << delivery.message.status();
    return delivery.message.ok() ? *delivery.message : Message();
  }
  absl::Status FailureOf(uint64_t step) const {
    absl::Status failure;
    EXPECT_TRUE(IsFailedReply(AnswerTo(step), &failure)) << "step " << step;
    return failure;
  }
  std::vector<uint64_t> order() const {
    MutexLock lock(mutex_);
    return order_;
  }
  Transport& transport() { return *transport_; }

 private:
  mutable Mutex mutex_;
  PeerId expert_ MOEBIUS_GUARDED_BY(mutex_);
  std::map<uint64_t, Delivery> answers_ MOEBIUS_GUARDED_BY(mutex_);
  std::vector<uint64_t> order_ MOEBIUS_GUARDED_BY(mutex_);
  std::unique_ptr<Transport> transport_;
};

class DispatchServerTest : public testing::Test {
 protected:
  explicit DispatchServerTest(const DispatchServerOptions& options = ServerOptions())
      : expert_("expert-0", provider_, running_.reactor(), running_.clock(), Counted(options),
                [this](LayerId layer, const ServiceDispatch& dispatch, Bf16Rows rows,
                       MutableBf16Rows replies, const std::function<void()>& pause) {
                  return Forward(layer, dispatch, rows, replies, pause);
                }) {
    router_ = MakeRouter("router-0");
  }
  ~DispatchServerTest() override { OpenGate(); }

  DispatchServerOptions Counted(DispatchServerOptions options) {
    options.instruments = &instruments_;
    return options;
  }

  std::unique_ptr<AskingRouter> MakeRouter(const std::string& name) {
    auto router = std::make_unique<AskingRouter>(name, provider_, running_.reactor());
    expert_.Join(router->Listen());
    EXPECT_TRUE(WaitFor([&] { return router->HasExpert(); }));
    return router;
  }

  // Expert e adds e to its row; experts 2 and 3 are not held. A closed gate holds all. Where it
  // may, it pauses once.
  absl::Status Forward(LayerId, const ServiceDispatch& dispatch, Bf16Rows rows,
                       MutableBf16Rows replies, const std::function<void()>& pause) {
    {
      MutexLock lock(mutex_);
      ++num_forwards_;
      while (!gate_is_open_) gate_.Wait(mutex_);
    }
    if (pause != nullptr) pause();
    for (const ExpertSegment& segment : dispatch.experts) {
      if (segment.id.value() >= 2) return NotHeldError({segment.id.value()}, 9);
    }
    for (int64_t row = 0; row < replies.num_rows; ++row) {
      for (int64_t column = 0; column < kHidden; ++column) {
        const float value = ToFloat(rows.row(row)[column]);
        replies.row(row)[column] =
            ToBf16(value + static_cast<float>(dispatch.expert_ids[static_cast<size_t>(row)]));
      }
    }
    return absl::OkStatus();
  }
  void CloseGate() {
    MutexLock lock(mutex_);
    gate_is_open_ = false;
  }
  void OpenGate() {
    MutexLock lock(mutex_);
    gate_is_open_ = true;
    gate_.SignalAll();
  }
  int num_forwards() {
    MutexLock lock(mutex_);
    return num_forwards_;
  }
  // Makes the server busy with a dispatch of step 100, so that others wait behind it.
  void KeepBusy(AskingRouter& router) {
    CloseGate();
    router.Ask(AskingRouter::Dispatch(100, 0, 0));
    ASSERT_TRUE(WaitFor([&] { return num_forwards() == 1; }));
  }
  bool Waiting(int64_t count) {
    return WaitFor([&] { return expert_.server().figures().waiting == count; });
  }
  // Every dispatch is counted once.
  bool Settled() {
    return WaitFor([&] {
      const DispatchServerFigures f = expert_.server().figures();
      return f.dispatches == f.served + f.failed + f.refused + f.abandoned && f.waiting == 0;
    });
  }

  RunningReactor running_;
  LoopbackProvider provider_{running_.reactor()};
  Mutex mutex_;
  CondVar gate_;
  bool gate_is_open_ MOEBIUS_GUARDED_BY(mutex_) = true;
  int num_forwards_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  DispatchInstruments instruments_;
  ExpertProcess expert_;
  std::unique_ptr<AskingRouter> router_;
};

TEST_F(DispatchServerTest, AnswersUnderTheKeyOfTheQuestion) {
  router_->Ask(AskingRouter::Dispatch(40, 1, 1));
  const Message answer = router_->AnswerTo(40);
  EXPECT_EQ(answer.key.kind, kDispatchReplyKind);
  EXPECT_EQ(answer.key.attempt, 2u);
  EXPECT_EQ(answer.key.layer, 1u);
  EXPECT_EQ(answer.key.round, 3u);
  EXPECT_EQ(answer.term, 5u);
  EXPECT_EQ(answer.epoch, 9u);
  const auto rows = ParseReply(answer, 1, kHidden);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(ToFloat(rows->rows.row(0)[3]), 41);
  ASSERT_TRUE(Settled());
  const DispatchServerFigures figures = expert_.server().figures();
  EXPECT_EQ(figures.served, 1);
  EXPECT_EQ(figures.rows, 1);
  EXPECT_EQ(figures.expert_rows[1][1], 1);
  EXPECT_EQ(figures.expert_rows[0][1], 0);
}

TEST_F(DispatchServerTest, SaysWhichExpertsItDoesNotHold) {
  router_->Ask(AskingRouter::Dispatch(1, 0, 3));
  EXPECT_TRUE(IsNotHeld(router_->FailureOf(1)));
  ASSERT_TRUE(Settled());
  EXPECT_EQ(expert_.server().figures().failed, 1);
  EXPECT_EQ(expert_.server().figures().expert_rows[0][3], 0);
}

TEST_F(DispatchServerTest, RefusesNonsenseAndGoesOn) {
  Message no_layer = AskingRouter::Dispatch(1, 0, 0);
  no_layer.key.layer = 2;
  router_->Ask(no_layer);
  Message no_metadata = AskingRouter::Dispatch(2, 0, 0);
  no_metadata.metadata = SharedBytes();
  router_->Ask(no_metadata);
  Message other_width = AskingRouter::Dispatch(3, 0, 0);
  other_width.row_width = kHidden / 2;
  other_width.num_rows = 2;
  router_->Ask(other_width);
  router_->Ask(AskingRouter::Dispatch(4, 0, kExperts));
  for (uint64_t step = 1; step <= 4; ++step) {
    EXPECT_TRUE(absl::IsInvalidArgument(router_->FailureOf(step))) << router_->FailureOf(step);
  }
  EXPECT_EQ(num_forwards(), 0);
  router_->Ask(AskingRouter::Dispatch(5, 0, 0));
  EXPECT_TRUE(ParseReply(router_->AnswerTo(5), 1, kHidden).ok());
}

TEST_F(DispatchServerTest, AnswersWhatHasNoRoomToArriveAtOnce) {
  router_->Ask(AskingRouter::Dispatch(1, 0, 0, 2000), Lane::kBulk);
  const absl::Status failure = router_->FailureOf(1);
  EXPECT_TRUE(absl::IsInvalidArgument(failure)) << failure;
  EXPECT_THAT(std::string(failure.message()), HasSubstr("bytes; room is kept for"));
  EXPECT_EQ(router_->AnswerTo(1).term, 5u);
  router_->Ask(AskingRouter::Dispatch(2, 0, 0));
  EXPECT_TRUE(ParseReply(router_->AnswerTo(2), 1, kHidden).ok());
  EXPECT_TRUE(Settled());
  EXPECT_EQ(expert_.server().figures().refused, 1);
  EXPECT_EQ(num_forwards(), 1);
}

TEST_F(DispatchServerTest, ServesDecodeInThePausesOfBulk) {
  auto other = MakeRouter("router-1");
  CloseGate();
  router_->Ask(AskingRouter::Dispatch(1, 0, 0), Lane::kBulk);
  ASSERT_TRUE(WaitFor([&] { return num_forwards() == 1; }));
  router_->Ask(AskingRouter::Dispatch(2, 0, 1), Lane::kDecode);
  router_->Ask(AskingRouter::Dispatch(3, 0, 0), Lane::kBulk);
  ASSERT_TRUE(Waiting(2));
  OpenGate();
  const Message bulk = router_->AnswerTo(1), decode = router_->AnswerTo(2);
  EXPECT_EQ(ToFloat(ParseReply(bulk, 1, kHidden)->rows.row(0)[0]), 1);
  EXPECT_EQ(ToFloat(ParseReply(decode, 1, kHidden)->rows.row(0)[0]), 3);
  router_->AnswerTo(3);
  // The decode one overtook a bulk dispatch that was under way; bulk overtakes nobody.
  EXPECT_THAT(router_->order(), testing::ElementsAre(2, 1, 3));
  EXPECT_TRUE(Settled());
  EXPECT_EQ(expert_.server().figures().served, 3);
}

TEST_F(DispatchServerTest, ServesDecodeOfAnyRouterBeforeBulk) {
  auto other = MakeRouter("router-1");
  KeepBusy(*router_);
  router_->Ask(AskingRouter::Dispatch(1, 0, 0), Lane::kBulk);
  ASSERT_TRUE(Waiting(1));
  router_->Ask(AskingRouter::Dispatch(2, 0, 0), Lane::kDecode);
  other->Ask(AskingRouter::Dispatch(3, 0, 1), Lane::kDecode);
  ASSERT_TRUE(Waiting(3));
  OpenGate();
  router_->AnswerTo(1);
  router_->AnswerTo(2);
  EXPECT_EQ(ToFloat(ParseReply(other->AnswerTo(3), 1, kHidden)->rows.row(0)[0]), 4);
  EXPECT_THAT(router_->order(), testing::ElementsAre(100, 2, 1));
}

TEST_F(DispatchServerTest, ShowsKnownDispatchesInItsMetrics) {
  Registry registry;
  const auto handle = registry.AddCollector([this](MetricWriter& writer) {
    WriteDispatchMetrics(expert_.server().figures(), instruments_, writer);
  });
  KeepBusy(*router_);
  router_->Ask(AskingRouter::Dispatch(1, 0, 0));
  router_->Ask(AskingRouter::Dispatch(2, 0, 3));  // is not held
  Message hurried = AskingRouter::Dispatch(3, 0, 0);
  hurried.budget_ms = 5;
  router_->Ask(std::move(hurried));
  ASSERT_TRUE(Waiting(3));
  EXPECT_EQ(ValueOf(registry.Scrape(), "moebius_expert_queue_dispatches"), 3);
  running_.Advance(absl::Milliseconds(10));
  OpenGate();
  ASSERT_TRUE(Settled());
  const std::string scrape = registry.Scrape();
  const auto ended = [&](const std::string& outcome) {
    return ValueOf(scrape, "moebius_expert_dispatches_total{outcome=\"" + outcome + "\"}");
  };
  EXPECT_EQ(ended("served"), 2);
  EXPECT_EQ(ended("failed"), 1);
  EXPECT_EQ(ended("refused"), 1);
  EXPECT_EQ(ended("abandoned"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_assignments_total{stage=\"computed\"}"), 2);
  EXPECT_EQ(ValueOf(scrape, "moebius_expert_queue_dispatches"), 0);
  EXPECT_EQ(ValueOf(scrape, "moebius_not_held_total"), 1);
  EXPECT_EQ(ValueOf(scrape, "moebius_expert_batch_rows_count"), 3);
  EXPECT_EQ(ValueOf(scrape, "moebius_expert_batch_rows_sum"), 3);
  EXPECT_EQ(ValueOf(scrape, "moebius_expert_compute_seconds_count"), 3);
  EXPECT_EQ(ValueOf(scrape, "moebius_expert_queue_wait_seconds_count"), 4);
  // Three waited for ten milliseconds of the server's clock.
  EXPECT_NEAR(ValueOf(scrape, "moebius_expert_queue_wait_seconds_sum"), 0.03, 1e-9);
  EXPECT_EQ(MetricsErrors(scrape), 0);
}

TEST_F(DispatchServerTest, RefusesWhatWaitedForLongerThanItsBudget) {
  KeepBusy(*router_);
  Message hurried = AskingRouter::Dispatch(1, 0, 0);
  hurried.budget_ms = 5;
  router_->Ask(std::move(hurried));
  ASSERT_TRUE(Waiting(1));
  running_.Advance(absl::Milliseconds(10));
  OpenGate();
  EXPECT_TRUE(absl::IsDeadlineExceeded(router_->FailureOf(1)));
  EXPECT_EQ(num_forwards(), 1);
  ASSERT_TRUE(Settled());
  EXPECT_EQ(expert_.server().figures().refused, 1);
}

TEST_F(DispatchServerTest, DropsWhatADeadRouterHasWaiting) {
  auto other = MakeRouter("router-1");
  KeepBusy(*other);
  for (uint64_t step = 1; step <= 3; ++step) other->Ask(AskingRouter::Dispatch(step, 0, 0));
  router_->Ask(AskingRouter::Dispatch(9, 0, 0));
  ASSERT_TRUE(Waiting(4));
  other.reset();
  ASSERT_TRUE(Waiting(1));
  OpenGate();
  router_->AnswerTo(9);
  ASSERT_TRUE(Settled());
  const DispatchServerFigures figures = expert_.server().figures();
  EXPECT_EQ(figures.abandoned, 4) << "three waited, one was computed for nobody";
  EXPECT_EQ(figures.served, 1);
  EXPECT_EQ(num_forwards(), 2);
}

TEST_F(DispatchServerTest, DrainsWhatIsThereAndSendsTheRestElsewhere) {
  KeepBusy(*router_);
  router_->Ask(AskingRouter::Dispatch(1, 0, 0));
  ASSERT_TRUE(Waiting(1));
  EXPECT_FALSE(expert_.server().Drain(absl::ZeroDuration()));
  router_->Ask(AskingRouter::Dispatch(2, 0, 0));
  EXPECT_TRUE(absl::IsUnavailable(router_->FailureOf(2)));
  OpenGate();
  EXPECT_TRUE(expert_.server().Drain(absl::Seconds(20)));
  EXPECT_TRUE(ParseReply(router_->AnswerTo(1), 1, kHidden).ok());
}

TEST_F(DispatchServerTest, TwoServersOnOneTransportAreRefused) {
  Executor executor(1);
  const auto second = DispatchServer::Start(ServerOptions(), &expert_.transport(), &executor,
                                            nullptr, running_.clock());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
}

class SmallQueueTest : public DispatchServerTest {
 protected:
  static DispatchServerOptions Options() {
    DispatchServerOptions options = ServerOptions();
    options.queue.max_dispatches = 2;
    return options;
  }
  SmallQueueTest() : DispatchServerTest(Options()) {}
};

TEST_F(SmallQueueTest, RefusesAtOnceWhatDoesNotFit) {
  KeepBusy(*router_);
  for (uint64_t step = 1; step <= 3; ++step) router_->Ask(AskingRouter::Dispatch(step, 0, 0));
  EXPECT_TRUE(absl::IsResourceExhausted(router_->FailureOf(3)));
  EXPECT_FALSE(router_->IsAnswered(1));
  OpenGate();
  EXPECT_TRUE(ParseReply(router_->AnswerTo(1), 1, kHidden).ok());
  EXPECT_TRUE(ParseReply(router_->AnswerTo(2), 1, kHidden).ok());
}

class BriefDispatchTest : public DispatchServerTest {
 protected:
  static DispatchServerOptions Options() {
    DispatchServerOptions options = ServerOptions();
    options.brief_rows = 2;
    return options;
  }
  BriefDispatchTest() : DispatchServerTest(Options()) {}
  int64_t NumServedWhereDelivered() { return expert_.server().figures().delivered_served; }
};

TEST_F(BriefDispatchTest, IsAnsweredByTheThreadThatDeliversIt) {
  const auto ask = [this](uint64_t step, int32_t num_rows, Lane lane) {
    router_->Ask(AskingRouter::Dispatch(step, 0, 1, num_rows), lane);
    EXPECT_TRUE(ParseReply(router_->AnswerTo(step), num_rows, kHidden).ok());
    EXPECT_TRUE(Settled());
  };
  ask(1, 1, Lane::kDecode);
  ask(2, 2, Lane::kDecode);
  EXPECT_TRUE(WaitFor([&] { return NumServedWhereDelivered() == 2; }));
  ask(3, 3, Lane::kDecode);  // more rows than are brief
  ask(4, 1, Lane::kBulk);
  // A failure is an answer too.
  router_->Ask(AskingRouter::Dispatch(5, 0, 3));
  EXPECT_TRUE(IsNotHeld(router_->FailureOf(5)));
  EXPECT_TRUE(WaitFor([&] { return NumServedWhereDelivered() == 3; }));
  const DispatchServerFigures figures = expert_.server().figures();
  EXPECT_EQ(figures.served, 4);
  EXPECT_EQ(figures.failed, 1);
  EXPECT_EQ(figures.not_held, 1);
}

TEST_F(BriefDispatchTest, WaitsItsTurnBehindOthers) {
  CloseGate();
  router_->Ask(AskingRouter::Dispatch(100, 0, 0, 3));
  ASSERT_TRUE(WaitFor([&] { return num_forwards() == 1; }));
  router_->Ask(AskingRouter::Dispatch(1, 0, 0));
  ASSERT_TRUE(Waiting(1));
  OpenGate();
  EXPECT_TRUE(ParseReply(router_->AnswerTo(1), 1, kHidden).ok());
  EXPECT_THAT(router_->order(), testing::ElementsAre(100, 1));
  EXPECT_EQ(NumServedWhereDelivered(), 0);
}

TEST_F(BriefDispatchTest, IsWaitedForByADrain) {
  CloseGate();
  router_->Ask(AskingRouter::Dispatch(1, 0, 0));
  ASSERT_TRUE(WaitFor([&] { return num_forwards() == 1; }));
  EXPECT_FALSE(expert_.server().Drain(absl::ZeroDuration()));
  OpenGate();
  EXPECT_TRUE(expert_.server().Drain(absl::Seconds(20)));
  EXPECT_TRUE(ParseReply(router_->AnswerTo(1), 1, kHidden).ok());
}

TEST(MaxDispatchBytesTest, HoldsTheLargestDispatchOfAStep) {
  // 16 rows for 16 choices and 3 slices each, in the layer that asks for most.
  const PlacementShape shape = PlacementShape::Make(64, {false, true}, 3, 9);
  EXPECT_EQ(MaxDispatchBytes(shape, 8, 16), 16 * 8 * 2 + 64 + 8 + 16 * 2 + 16 * 19 * 7);
}

}  // namespace
}  // namespace moebius
