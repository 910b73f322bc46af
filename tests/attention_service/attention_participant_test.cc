// SPDX-License-Identifier: Apache-2.0
#include "attention_service/attention_participant.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "attention_service/exchange_shape.h"
#include "moebius/model/random_checkpoint.h"
#include "moebius/transport/loopback/loopback.h"
#include "moebius/wire/greeting.h"
#include "router_service/remote_attention.h"
#include "tests/attention_service/attention_fixture.h"
#include "tests/attention_service/rank_world.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using testing::MakeRows;
using testing::NamedRanks;
using testing::RankWorld;

constexpr int64_t kRowBudget = 512;

// What a joiner tells its participant.
class Watcher final : public PeerWatcher {
 public:
  explicit Watcher(Participant& participant) : participant_(participant) {}
  void OnPeerState(const PeerInfo& peer) override {
    if (peer.name != "router") return participant_.OnPeerState(peer);
    if (peer.state == PeerState::kConnected) participant_.OnRouterUp(peer);
    if (peer.state == PeerState::kDead) participant_.OnRouterDown(peer);
  }

 private:
  Participant& participant_;
};

class AttentionParticipantTest : public ::testing::Test {
 protected:
  struct Process {
    Executor executor{1};
    std::unique_ptr<AttentionParticipant> participant;
    std::unique_ptr<Watcher> watcher;
    std::unique_ptr<Transport> transport;
    std::string address;
  };

  AttentionParticipantTest() {
    RandomCheckpointOptions options;
    options.num_layers = 2;
    EXPECT_TRUE(WriteRandomCheckpoint(folder_.path(), options).ok());
    checkpoint_ = *Checkpoint::Open(folder_.path(), {});
    facts_ = AttentionFactsOf(*checkpoint_);
    router_ = *Transport::Make(OptionsOf("router"), provider_, reactor_, directory_);
    router_address_ = *router_->Listen({"127.0.0.1", 0});
  }
  ~AttentionParticipantTest() override {
    port_.reset();
    for (auto& process : processes_) process->participant->Unload();
    for (auto& process : processes_) process->transport.reset();
    router_.reset();
  }

  TransportOptions OptionsOf(const std::string& name) const {
    TransportOptions options;
    options.name = name;
    options.limits.max_payload_bytes = 256 << 10;
    options.limits.max_message_bytes = 4 << 20;
    options.limits.max_metadata_bytes = 256 << 10;
    options.limits.max_num_rows = kRowBudget;
    options.limits.max_row_width = static_cast<uint32_t>(facts_.hidden_size);
    options.limits.max_layer = 60;
    options.limits = ExchangeShape::Of(facts_, 1, kRowBudget).Widen(options.limits);
    return options;
  }

  Process& Add(int32_t rank) {
    processes_.push_back(std::make_unique<Process>());
    Process& process = *processes_.back();
    process.participant = std::make_unique<AttentionParticipant>(
        AttentionParticipant::Options{.checkpoint = checkpoint_.get(),
                                      .kernels = &BestKernels(),
                                      .executor = &process.executor,
                                      .kv_budget_bytes = 64 << 20});
    process.watcher = std::make_unique<Watcher>(*process.participant);
    process.transport = *Transport::Make(OptionsOf(absl::StrCat("attention-", rank)), provider_,
                                         reactor_, *process.watcher);
    process.participant->SetTransport(*process.transport);
    process.address = FormatAddress(*process.transport->Listen({"127.0.0.1", 0}));
    Greeting greeting;
    greeting.role = Role::kAttention;
    greeting.data_address = process.address;
    process.transport->SetGreeting(EncodeGreeting(greeting));
    EXPECT_TRUE(process.transport->Connect(router_address_).ok());
    return process;
  }

  SlotAssignment Slot(int32_t rank, int32_t count) const {
    SlotAssignment slot;
    slot.role = Role::kAttention;
    slot.index = rank;
    slot.count = count;
    slot.row_budget = kRowBudget;
    for (int32_t r = 0; r < count; ++r) {
      slot.rank_addresses.push_back(processes_[static_cast<size_t>(r)]->address);
    }
    return slot;
  }

  absl::StatusOr<SlotReady> Load(int32_t rank, const SlotAssignment& slot) {
    return processes_[static_cast<size_t>(rank)]->participant->Load(
        slot, [&](int64_t loaded, int64_t total) {
          EXPECT_LE(loaded, total);
          ++progress_;
        });
  }

  StepPlan PlanOf(int64_t begin, int64_t end) {
    return {.step = ++step_,
            .sessions = {{.session = SessionId(1),
                          .num_rows = end - begin,
                          .position_begin = begin,
                          .prompt_length = 290}},
            .num_rows = end - begin};
  }

  RowBatch<Bf16> RunAlone(Bf16Rows rows) {
    Executor executor(1);
    const auto pipeline = *AttentionPipeline::Load(*checkpoint_, BestKernels(), executor, 64 << 20);
    return testing::RunStep(*pipeline, SessionId(1), rows, 0, rows.num_rows, 290, 1);
  }

  Reactor reactor_{Clock::Monotonic()};
  LoopbackProvider provider_{reactor_};
  ReactorThread thread_{reactor_};
  TemporaryFolder folder_;
  std::unique_ptr<const Checkpoint> checkpoint_;
  AttentionFacts facts_;
  NamedRanks directory_;
  std::unique_ptr<Transport> router_;
  Address router_address_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::unique_ptr<RemoteAttention> port_;
  int progress_ = 0;
  uint64_t step_ = 0;
};

TEST_F(AttentionParticipantTest, RanksThatTakeTheirSlotsFindOneAnotherAndGiveTheSameBits) {
  for (int32_t rank = 0; rank < 3; ++rank) Add(rank);
  for (int32_t rank = 2; rank >= 0; --rank) {
    const auto ready = Load(rank, Slot(rank, 3));
    ASSERT_TRUE(ready.ok()) << ready.status();
    EXPECT_EQ(ready->kv_block_tokens, facts_.key_block);
    EXPECT_GT(ready->kv_num_blocks, 0);
    EXPECT_GT(ready->loaded_bytes, 0);
  }
  EXPECT_EQ(progress_, 6);  // a layer at a time
  ASSERT_TRUE(RankWorld::Until([&] {
    return directory_.IsAttentionUsable(0) && directory_.IsAttentionUsable(1) &&
           directory_.IsAttentionUsable(2);
  }));
  port_ = std::make_unique<RemoteAttention>(
      RemoteAttention::Options{.num_ranks = 3,
                               .hidden_size = facts_.hidden_size,
                               .geometry = SpanGeometry(facts_.span, facts_.key_block)},
      *router_, directory_, Clock::Monotonic());
  const RowBatch<Bf16> rows = MakeRows(8, 300, facts_.hidden_size);
  RowBatch<Bf16> out(300, facts_.hidden_size);
  for (const auto& [begin, end] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 200}, {200, 290}, {290, 291}, {291, 300}}) {
    ASSERT_TRUE(port_->BeginStep(PlanOf(begin, end)).ok());
    for (int32_t layer = 0; layer < 2; ++layer) {
      const absl::Status status = port_->RunLayer(LayerId(layer), rows.rows().Slice(begin, end),
                                                  out.rows().Slice(begin, end));
      ASSERT_TRUE(status.ok()) << status;
    }
    ASSERT_TRUE(port_->CommitStep().ok());
  }
  EXPECT_EQ(testing::FirstDifference(RunAlone(rows.rows()).rows(), out.rows()), "");
}

TEST_F(AttentionParticipantTest, ASlotWithOtherAddressesLoadsNothingAgain) {
  Add(0);
  Add(1);
  SlotAssignment slot = Slot(1, 2);
  slot.rank_addresses[0].clear();  // not there yet
  ASSERT_TRUE(Load(1, slot).ok());
  const int loaded = progress_;
  ASSERT_TRUE(Load(1, Slot(1, 2)).ok());
  EXPECT_EQ(progress_, loaded);
  // Rank 1 dials rank 0.
  EXPECT_TRUE(RankWorld::Until([&] { return processes_[0]->transport->peers().size() == 2; }));
  SlotAssignment alone = Slot(0, 1);
  alone.rank_addresses = {processes_[1]->address};
  ASSERT_TRUE(Load(1, alone).ok());
  EXPECT_GT(progress_, loaded);
  EXPECT_TRUE(RankWorld::Until([&] { return processes_[0]->transport->peers().size() == 1; }));
}

TEST_F(AttentionParticipantTest, RefusesASlotThatIsNotItsOwn) {
  Add(0);
  SlotAssignment slot = Slot(0, 1);
  slot.role = Role::kExpert;
  EXPECT_FALSE(Load(0, slot).ok());
  slot = Slot(0, 1);
  slot.rank_addresses.clear();
  EXPECT_FALSE(Load(0, slot).ok());
  EXPECT_FALSE(processes_[0]->participant->figures().has_value());
}

}  // namespace
}  // namespace moebius
