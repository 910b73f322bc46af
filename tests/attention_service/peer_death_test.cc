// SPDX-License-Identifier: Apache-2.0
// How soon a wait for another rank ends when that rank dies, under either sum, every layout and for
// all that a method waits for; the clock moves only when told.
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "attention_service/peer_exchange.h"
#include "moebius/transport/faulty/faulty.h"
#include "moebius/transport/loopback/loopback.h"
#include "moebius/transport/reactor.h"
#include "tests/attention_service/attention_fixture.h"
#include "tests/attention_service/rank_world.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

// Nobody's news but how a peer stands.
class Watcher final : public PeerWatcher {
 public:
  void OnPeerState(const PeerInfo& peer) override { last = peer; }
  PeerInfo last;
};

// What a rank waits for: keys in a round or a ring's step, states of its queries, or heads.
enum class Wait { kSpans, kStates, kHeads };

using PeerDeathCase = std::tuple<Wait, std::string>;

constexpr absl::Duration kPromise = absl::Milliseconds(500);

// A sum by its name, or the per-degree one by its layout's.
testing::AttentionCase MakeModel(const std::string& sum) {
  if (sum == "canonical") return testing::MakeAttentionCase("gqa", 64);
  testing::AttentionCase model = testing::MakeAttentionCase("gqa", 64);
  model.facts.sum = AttentionSum::kPerDegree;
  model.facts.layout = *ParseAttentionLayout(sum);
  return model;
}

// Rank 0 waits for rank 1, which has not begun the step and so never answers.
class PeerDeathTest : public ::testing::TestWithParam<PeerDeathCase> {
 protected:
  PeerDeathTest() {
    transports_[0] = Make("attention-0", loopback_, watchers_[0]);
    transports_[1] = Make("attention-1", faulty_, watchers_[1]);
    for (int32_t rank = 0; rank < 2; ++rank) {
      const PeerExchange::Options options{.shard = {rank, 2},
                                          .shape = ExchangeShape::Of(model_.facts, 2, 1024)};
      exchanges_[rank] = std::make_unique<PeerExchange>(options, *transports_[rank], clock_);
      EXPECT_TRUE(exchanges_[rank]->Start().ok());
    }
    const Address address = *transports_[1]->Listen({"127.0.0.1", 0});
    const auto peer = transports_[0]->Connect(address);
    EXPECT_TRUE(peer.ok());
    reactor_.RunReady();
    EXPECT_EQ(watchers_[0].last.state, PeerState::kConnected);
    exchanges_[0]->SetPeer(1, *peer);
    const StepPlan plan{
        .step = 1,
        .sessions = {{.session = SessionId(5), .num_rows = 100, .prompt_length = 100}},
        .num_rows = 100};
    exchanges_[0]->BeginStep(plan);
    EXPECT_TRUE(Ask().ok());
    reactor_.RunReady();
    waiter_ = std::thread([this] {
      status_ = Await();
      is_over_ = true;
    });
  }
  ~PeerDeathTest() override {
    exchanges_[0]->CancelAny(absl::CancelledError("the test is over"));
    if (waiter_.joinable()) waiter_.join();
    for (auto& exchange : exchanges_) exchange.reset();
    for (auto& transport : transports_) transport.reset();
    reactor_.RunReady();
  }

  absl::Status Ask() {
    const KvSpanNeed span{.holder = 1, .span = 1};
    const StateNeed states{.holder = 1, .num_rows = queries_.num_rows(), .num_spans = 1};
    const HeadNeed heads{.holder = 1, .heads = {0, 1}, .num_rows = 1};
    switch (std::get<Wait>(GetParam())) {
      case Wait::kSpans:
        return exchanges_[0]->AskSpans(0, 0, {&span, 1}, {0, 2});
      case Wait::kStates:
        return exchanges_[0]->AskStates(0, 0, {&states, 1}, queries_.rows());
      case Wait::kHeads:
        return exchanges_[0]->AskHeads(0, HeadPhase::kQueries, {&heads, 1});
    }
    return absl::InternalError("no such wait");
  }
  absl::Status Await() {
    std::vector<ReceivedRows> rows;
    std::vector<ReceivedStates> states;
    switch (std::get<Wait>(GetParam())) {
      case Wait::kSpans:
        return exchanges_[0]->AwaitSpans(0, 0, rows);
      case Wait::kStates:
        return exchanges_[0]->AwaitStates(0, 0, states);
      case Wait::kHeads:
        return exchanges_[0]->AwaitHeads(0, HeadPhase::kQueries, rows);
    }
    return absl::InternalError("no such wait");
  }

  std::unique_ptr<Transport> Make(const std::string& name, LinkProvider& provider,
                                  PeerWatcher& watcher) {
    return *Transport::Make(testing::RankTransportOptions(name, model_), provider, reactor_,
                            watcher);
  }

  void Advance(absl::Duration by) {
    const absl::Duration end = clock_.Now() + by;
    reactor_.RunReady();
    for (std::optional<absl::Duration> next = reactor_.NextTimer();
         next.has_value() && *next <= end; next = reactor_.NextTimer()) {
      if (*next > clock_.Now()) clock_.Advance(*next - clock_.Now());
      reactor_.RunReady();
    }
    clock_.Advance(end - clock_.Now());
    reactor_.RunReady();
  }

  const testing::AttentionCase model_ = MakeModel(std::get<std::string>(GetParam()));
  const RowBatch<Bf16> queries_ =
      testing::MakeRows(4, 3, model_.facts.config.num_query_heads* model_.facts.config.qk_head_dim);
  FakeClock clock_;
  Reactor reactor_{clock_};
  LoopbackProvider loopback_{reactor_};
  FaultPlan plan_{1};
  FaultyProvider faulty_{loopback_, plan_, reactor_};
  Watcher watchers_[2];
  std::unique_ptr<Transport> transports_[2];
  std::unique_ptr<PeerExchange> exchanges_[2];
  absl::Status status_;
  std::atomic<bool> is_over_{false};
  std::thread waiter_;
};

TEST_P(PeerDeathTest, AStreamThatEndsEndsTheWaitWithoutATickOfTheClock) {
  const absl::Duration begin = clock_.Now();
  exchanges_[1].reset();
  transports_[1].reset();
  reactor_.RunReady();
  waiter_.join();
  EXPECT_EQ(clock_.Now() - begin, absl::ZeroDuration());
  EXPECT_LT(clock_.Now() - begin, kPromise);
  EXPECT_EQ(status_.code(), absl::StatusCode::kUnavailable) << status_;
  EXPECT_THAT(std::string(status_.message()), HasSubstr("attention rank 1"));
}

TEST_P(PeerDeathTest, SilenceEndsTheWaitAfterASecondExactly) {
  plan_.Set({.stop = true});
  const absl::Duration begin = clock_.Now();
  Advance(absl::Seconds(1) - absl::Nanoseconds(1));
  EXPECT_FALSE(is_over_);
  Advance(absl::Nanoseconds(1));
  waiter_.join();
  EXPECT_EQ(clock_.Now() - begin, absl::Seconds(1));
  EXPECT_EQ(status_.code(), absl::StatusCode::kUnavailable) << status_;
  EXPECT_THAT(std::string(status_.message()), HasSubstr("attention rank 1"));
}

std::string NameOf(const ::testing::TestParamInfo<PeerDeathCase>& info) {
  const char* const waits[] = {"spans", "states", "heads"};
  return absl::StrCat(waits[static_cast<size_t>(std::get<Wait>(info.param))], "_",
                      std::get<std::string>(info.param));
}

INSTANTIATE_TEST_SUITE_P(
    Waits, PeerDeathTest,
    ::testing::Combine(::testing::Values(Wait::kSpans, Wait::kStates, Wait::kHeads),
                       ::testing::Values("canonical", "zigzag", "contiguous", "striped")),
    NameOf);

}  // namespace
}  // namespace moebius
