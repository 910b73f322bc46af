// SPDX-License-Identifier: Apache-2.0
#include "router_service/remote_experts.h"

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/telemetry/registry.h"
#include "moebius/wire/dispatch_codec.h"
#include "moebius/wire/error_detail.h"
#include "moebius/wire/message_kind.h"
#include "moebius/wire/row_codec.h"
#include "tests/router_service/remote_world.h"
#include "tests/support/metric_values.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

// Runs a layer on a thread of its own while the test does things to its services.
class LayerRun {
 public:
  LayerRun(RemoteWorld& world, int32_t layer)
      : thread_([this, &world, layer] {
          status_ = world.Run(layer);
          ended_ = true;
        }) {}
  ~LayerRun() {
    if (thread_.joinable()) thread_.join();
  }
  bool ended() const { return ended_; }
  absl::Status Join() {
    thread_.join();
    return status_;
  }

 private:
  std::atomic<bool> ended_{false};
  absl::Status status_;
  std::thread thread_;
};

// Holds whoever comes by until it is opened, and counts them.
class Gate {
 public:
  absl::Status Pass() {
    ++num_waiting;
    EXPECT_TRUE(WaitFor([this] { return is_open.load(); }));
    return absl::OkStatus();
  }
  std::atomic<int> num_waiting{0};
  std::atomic<bool> is_open{false};
};

void StartAll(RemoteWorld& world, int32_t num_services) {
  for (int32_t service = 0; service < num_services; ++service) world.StartExpert(service);
}

int64_t Failures(RemoteWorld& world) {
  int64_t failures = 0;
  for (const ExpertTraffic& traffic : world.port().figures()) failures += traffic.failures;
  return failures;
}

// What is counted of this reason, and of all.
int64_t Failovers(RemoteWorld& world, const std::string& reason) {
  Registry registry;
  const auto handle =
      registry.AddCollector([&](MetricWriter& writer) { world.port().WriteMetrics(writer); });
  return static_cast<int64_t>(
      ValueOf(registry.Scrape(), absl::StrCat("moebius_failovers_total{reason=\"", reason, "\"}")));
}

uint64_t RoundUp64(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

TEST(RemoteExpertsTest, GivesTheBitsOfOneProcessInEveryLayerAndLane) {
  for (const int32_t num_services : {1, 2, 3, 5}) {
    RemoteWorld world(num_services, std::min(2, num_services));
    StartAll(world, num_services);
    for (const int64_t num_rows : {1, 64, 65, 200, 0}) {
      world.BeginStep(num_rows);
      for (int32_t layer = 0; layer < RemoteWorld::kLayers; ++layer) {
        ASSERT_TRUE(world.Run(layer).ok());
        EXPECT_TRUE(world.BitsAreRight(layer)) << num_services << " services, " << num_rows;
      }
    }
    EXPECT_EQ(Failures(world), 0);
  }
}

// A dispatch of more rows would find no room at the service: dropped there, and silence here.
TEST(RemoteExpertsTest, AStepOfMoreRowsThanServicesHaveRoomForGoesInWaves) {
  RemoteWorld world(3, 2, 16);
  StartAll(world, 3);
  for (const int64_t num_rows : {16, 17, 100}) {
    world.BeginStep(num_rows);
    for (int32_t layer = 0; layer < RemoteWorld::kLayers; ++layer) {
      ASSERT_TRUE(world.Run(layer).ok());
      EXPECT_TRUE(world.BitsAreRight(layer)) << num_rows;
    }
  }
  EXPECT_EQ(Failures(world), 0);
  for (const ExpertTraffic& traffic : world.port().figures()) EXPECT_EQ(traffic.resent_rows, 0);
}

// One dispatch and one reply for each service that has rows of a layer, and not a byte more than
// the codecs say: on the decode lane up to 64 rows, else on the bulk lane.
TEST(RemoteExpertsTest, SendsAsManyMessagesAndBytesAsTheFormulaSays) {
  for (const int64_t num_rows : {5, 64, 65, 130}) {
    RemoteWorld world(3, 2);
    StartAll(world, 3);
    world.BeginStep(num_rows);
    uint64_t messages = 0, sent = 0, received = 0;
    for (int32_t layer = 0; layer < RemoteWorld::kLayers; ++layer) {
      DispatchPlan plan;
      ASSERT_TRUE(BuildDispatchPlan(RemoteWorld::RuleOf(layer), world.AssignmentsOf(layer),
                                    world.placement(), DispatchLimits(), &plan)
                      .ok());
      for (const ServiceDispatch& dispatch : plan.services()) {
        if (dispatch.num_rows() == 0) continue;
        const auto rows = static_cast<uint64_t>(dispatch.num_rows());
        const auto assignments = static_cast<uint64_t>(dispatch.num_assignments());
        const auto replies = static_cast<uint64_t>(dispatch.num_reply_rows);
        ++messages;
        sent += RoundUp64(8 + 2 * rows + 7 * assignments) + rows * RemoteWorld::kHidden * 2;
        received += 64 + replies * RemoteWorld::kHidden * 2;
      }
      ASSERT_TRUE(world.Run(layer).ok());
    }
    const Lane lane = num_rows <= 64 ? Lane::kDecode : Lane::kBulk;
    const Lane other = num_rows <= 64 ? Lane::kBulk : Lane::kDecode;
    // A message is counted once its delivery has returned.
    ASSERT_TRUE(WaitFor([&] {
      return world.transport().figures().lanes[LaneIndex(lane)].received.messages == messages;
    }));
    const TransportFigures figures = world.transport().figures();
    EXPECT_EQ(figures.lanes[LaneIndex(lane)].sent.messages, messages) << num_rows;
    EXPECT_EQ(figures.lanes[LaneIndex(lane)].sent.payload_bytes, sent) << num_rows;
    EXPECT_EQ(figures.lanes[LaneIndex(lane)].received.payload_bytes, received) << num_rows;
    EXPECT_EQ(figures.lanes[LaneIndex(other)].sent.messages, 0u);
    EXPECT_EQ(figures.lanes[LaneIndex(Lane::kControl)].sent.messages, 0u);
    EXPECT_EQ(figures.num_reservations, 0u);
    ExpertTraffic sum;
    for (const ExpertTraffic& traffic : world.port().figures()) {
      sum.dispatches += traffic.dispatches;
      sum.sent_bytes += traffic.sent_bytes;
      sum.received_bytes += traffic.received_bytes;
      sum.rows += traffic.rows;
      sum.reply_rows += traffic.reply_rows;
    }
    EXPECT_EQ(static_cast<uint64_t>(sum.dispatches), messages);
    EXPECT_EQ(sum.sent_bytes, sent);
    EXPECT_EQ(sum.received_bytes, received);
    const PortTraffic traffic{static_cast<int64_t>(messages), static_cast<int64_t>(sent),
                              static_cast<int64_t>(received)};
    EXPECT_EQ(world.port().traffic(), traffic);
    EXPECT_EQ(sum.rows, world.figures().dispatched_rows);
    EXPECT_EQ(sum.reply_rows, world.figures().reply_rows);
  }
}

TEST(RemoteExpertsTest, ReordersNothingWhenPeersAreLateByDifferentTimes) {
  RemoteWorld world(4, 2);
  StartAll(world, 4);
  LinkFaults faults;
  faults.max_delay = absl::Milliseconds(20);
  for (int32_t service = 0; service < 4; ++service) world.faults(service).Set(faults);
  for (const int64_t num_rows : {3, 100}) {
    world.BeginStep(num_rows);
    for (int32_t layer = 0; layer < RemoteWorld::kLayers; ++layer) {
      LayerRun run(world, layer);
      while (!run.ended()) world.running().Advance(absl::Milliseconds(10));
      ASSERT_TRUE(run.Join().ok());
      EXPECT_TRUE(world.BitsAreRight(layer));
    }
  }
  EXPECT_EQ(Failures(world), 0);
}

TEST(RemoteExpertsTest, SendsTheRowsOfAServiceThatDiesMidDispatchElsewhere) {
  for (int32_t layer = 0; layer < RemoteWorld::kLayers; ++layer) {
    Gate gate;
    RemoteWorld world(3, 2);
    world.StartExpert(0);
    world.StartExpert(1, [&] { return gate.Pass(); });
    world.StartExpert(2);
    world.BeginStep(40);
    LayerRun run(world, layer);
    ASSERT_TRUE(WaitFor([&] { return gate.num_waiting == 1; }));
    world.expert(1).Kill();
    EXPECT_TRUE(run.Join().ok());
    gate.is_open = true;
    EXPECT_TRUE(world.BitsAreRight(layer)) << layer;
    EXPECT_EQ(world.figures().resends, 1);
    const std::vector<ExpertTraffic> traffic = world.port().figures();
    EXPECT_EQ(traffic[1].failures, 1);
    EXPECT_EQ(traffic[1].given_up, 0);
    EXPECT_EQ(Failovers(world, "gone"), 1);
    EXPECT_GE(traffic[0].resent_rows + traffic[2].resent_rows, world.figures().resent_rows);
    EXPECT_EQ(world.transport().figures().num_reservations, 0u);
  }
}

TEST(RemoteExpertsTest, SaysUnavailableWhenTheLastReplicaDiesAndGoesOnWhenItIsBack) {
  RemoteWorld world(2, 1);
  StartAll(world, 2);
  world.EndExpert(1);
  ASSERT_TRUE(WaitFor([&] { return !world.directory().IsExpertUsable(ServiceId(1)); }));
  world.BeginStep(40);
  const absl::Status status = world.Run(1);
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1: no usable service has experts 4"));
  EXPECT_FALSE(world.port().WaitUntilUsable(absl::ZeroDuration()));
  bool usable = false;
  std::thread waiting([&] { usable = world.port().WaitUntilUsable(absl::Seconds(20)); });
  world.StartExpert(1);
  waiting.join();
  EXPECT_TRUE(usable);
  world.BeginStep(40, 1);
  ASSERT_TRUE(world.Run(1).ok());
  EXPECT_TRUE(world.BitsAreRight(1));
}

TEST(RemoteExpertsTest, GivesUpASuspectServiceWhereOthersCanStandIn) {
  RemoteWorld world(3, 2);
  StartAll(world, 3);
  LinkFaults stopped;
  stopped.stop = true;
  world.faults(1).Set(stopped);
  world.BeginStep(40);
  LayerRun run(world, 1);
  // Suspect after 450 ms of silence, dead only after 1 s.
  for (int i = 0; i < 70 && !run.ended(); ++i) world.running().Advance(absl::Milliseconds(10));
  ASSERT_TRUE(WaitFor([&] { return run.ended(); }));
  EXPECT_TRUE(run.Join().ok());
  EXPECT_TRUE(world.BitsAreRight(1));
  EXPECT_EQ(world.port().figures()[1].given_up, 1);
  EXPECT_EQ(Failovers(world, "suspect"), 1);
  const std::optional<ServiceWait> slowest = world.port().slowest_service();
  ASSERT_TRUE(slowest.has_value());
  EXPECT_EQ(slowest->service, ServiceId(1));
  EXPECT_GT(slowest->wait, absl::ZeroDuration());
  ASSERT_TRUE(world.Run(2).ok()) << "and the next layer does not ask it";
  EXPECT_EQ(world.port().figures()[1].dispatches, 1);
}

TEST(RemoteExpertsTest, WaitsForASuspectServiceThatNobodyCanReplace) {
  RemoteWorld world(2, 1);
  StartAll(world, 2);
  LinkFaults stopped;
  stopped.stop = true;
  world.faults(1).Set(stopped);
  world.BeginStep(40);
  LayerRun run(world, 1);
  for (int i = 0; i < 70 && world.directory().IsExpertUsable(ServiceId(1)); ++i) {
    world.running().Advance(absl::Milliseconds(10));
  }
  ASSERT_TRUE(WaitFor([&] { return !world.directory().IsExpertUsable(ServiceId(1)); }));
  EXPECT_FALSE(run.ended());
  world.faults(1).Clear();
  while (!run.ended()) world.running().Advance(absl::Milliseconds(10));
  EXPECT_TRUE(run.Join().ok());
  EXPECT_TRUE(world.BitsAreRight(1));
  EXPECT_EQ(Failures(world), 0);
}

TEST(RemoteExpertsTest, TakesNoReplyOfAnotherShapeOrOfNonsense) {
  const auto reply_key = [](const Message& dispatch) {
    MessageKey key = dispatch.key;
    key.kind = kDispatchReplyKind;
    return key;
  };
  const std::vector<NonsenseProcess::Answer> answers = {
      [&](const Message& dispatch) {  // a row too many
        const RowBatch<Bf16> rows(30, RemoteWorld::kHidden);
        return BuildReply(reply_key(dispatch), CopyRows(rows.rows()), 30, RemoteWorld::kHidden);
      },
      [&](const Message& dispatch) {  // another width
        const RowBatch<Bf16> rows(20, 8);
        return BuildReply(reply_key(dispatch), CopyRows(rows.rows()), 20, 8);
      },
      [&](const Message& dispatch) {  // nothing at all
        Message message;
        message.key = reply_key(dispatch);
        return message;
      },
      [&](const Message& dispatch) {  // a status that nobody wrote
        Message message;
        message.key = reply_key(dispatch);
        message.metadata = SharedBytes::Copy(std::string("\x09\x00not proto", 11));
        return message;
      },
      [&](const Message& dispatch) {
        return BuildFailedReply(reply_key(dispatch), absl::InternalError("out of luck"));
      },
      [&](const Message& dispatch) {
        return BuildFailedReply(reply_key(dispatch), NotHeldError({2, 3}, 1));
      },
  };
  for (size_t answer = 0; answer < answers.size(); ++answer) {
    RemoteWorld world(3, 2);
    world.StartExpert(0);
    world.StartNonsense(1, answers[answer]);
    world.StartExpert(2);
    world.BeginStep(20);
    for (int32_t layer = 1; layer < RemoteWorld::kLayers; ++layer) {
      ASSERT_TRUE(world.Run(layer).ok()) << answer;
      EXPECT_TRUE(world.BitsAreRight(layer)) << answer;
    }
    EXPECT_EQ(world.port().figures()[1].failures, 1)
        << "asked once in this step, answer " << answer;
    EXPECT_EQ(Failovers(world, answer < 3 ? "damaged" : "refused"), 1) << answer;
    world.BeginStep(20);
    ASSERT_TRUE(world.Run(1).ok());
    EXPECT_EQ(world.port().figures()[1].failures, 2) << "and again in the next";
  }
}

TEST(RemoteExpertsTest, PassesOnThatADispatchIsWrong) {
  RemoteWorld world(2, 2);
  for (int32_t service = 0; service < 2; ++service) {
    world.StartExpert(service, [] { return absl::InvalidArgumentError("rows of 47"); });
  }
  world.BeginStep(20);
  const absl::Status status = world.Run(1);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1, expert service"));
  EXPECT_EQ(world.transport().figures().num_reservations, 0u);
}

TEST(RemoteExpertsTest, SendsElsewhereWhatIsNotAnsweredInTime) {
  RemoteWorld world(3, 2);
  world.StartExpert(0);
  world.StartNonsense(1, [](const Message&) { return std::nullopt; });
  world.StartExpert(2);
  world.BeginStep(40);
  LayerRun run(world, 1);
  ASSERT_TRUE(WaitFor([&] { return world.port().figures()[1].dispatches == 1; }));
  world.running().Advance(absl::Seconds(9));
  EXPECT_FALSE(run.ended());
  world.running().Advance(absl::Seconds(1.1));
  EXPECT_TRUE(run.Join().ok());
  EXPECT_TRUE(world.BitsAreRight(1));
  EXPECT_EQ(world.port().figures()[1].failures, 1);
  EXPECT_EQ(Failovers(world, "silent"), 1);
  const std::optional<ServiceWait> slowest = world.port().slowest_service();
  ASSERT_TRUE(slowest.has_value());
  EXPECT_EQ(slowest->service, ServiceId(1));
  EXPECT_GE(slowest->wait, absl::Seconds(10));
  world.BeginStep(40, 1);
  EXPECT_FALSE(world.port().slowest_service().has_value()) << "of the step at hand alone";
}

TEST(RemoteExpertsTest, ShutdownEndsTheCallInProgressAndAllThatFollow) {
  RemoteWorld world(2, 1);
  world.StartExpert(0);
  world.StartNonsense(1, [](const Message&) { return std::nullopt; });
  world.BeginStep(40);
  LayerRun run(world, 1);
  ASSERT_TRUE(WaitFor([&] { return world.port().figures()[1].dispatches == 1; }));
  world.port().Shutdown();
  EXPECT_TRUE(absl::IsUnavailable(run.Join()));
  EXPECT_TRUE(absl::IsUnavailable(world.Run(1)));
  EXPECT_EQ(world.transport().figures().num_reservations, 0u);
}

TEST(RemoteExpertsTest, OutlivesServicesThatComeAndGoUnderLoad) {
  RemoteWorld world(3, 2);
  StartAll(world, 3);
  std::atomic<bool> stopping{false};
  std::thread killer([&] {
    for (int32_t service = 0; !stopping; service = (service + 1) % 3) {
      world.EndExpert(service);
      world.StartExpert(service);
    }
  });
  int64_t resends = 0;
  for (int step = 0; step < 60; ++step) {
    world.BeginStep(step % 2 == 0 ? 8 : 80);
    for (int32_t layer = 0; layer < RemoteWorld::kLayers; ++layer) {
      ASSERT_TRUE(world.port().WaitUntilUsable(absl::Seconds(20)));
      const absl::Status status = world.Run(layer);
      EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
      EXPECT_TRUE(!status.ok() || world.BitsAreRight(layer));
    }
    resends += world.figures().resends;
  }
  stopping = true;
  killer.join();
  EXPECT_EQ(world.transport().figures().num_reservations, 0u);
  RecordProperty("resends", std::to_string(resends));
}

}  // namespace
}  // namespace moebius
