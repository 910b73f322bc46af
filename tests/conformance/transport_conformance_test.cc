// SPDX-License-Identifier: Apache-2.0
// What every transport must do in good weather: order, sizes, back-pressure, counters.
#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/conformance/transport_world.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

constexpr Lane kLanes[] = {Lane::kControl, Lane::kDecode, Lane::kBulk};

TEST_P(TransportConformance, DeliversMessagesInOrderOnEachLane) {
  Node& receiver = world_.Add(TransportWorld::SmallOptions("receiver"));
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"));
  const PeerId peer = world_.Connect(sender, world_.Listen(receiver), "receiver");
  constexpr uint64_t kMessages = 100;
  for (uint64_t step = 0; step < kMessages; ++step) {
    for (const Lane lane : kLanes) {
      const auto sent =
          sender.transport().Send(peer, lane, PositionMessage(Node::kOpenKind, step, step % 7, 33));
      ASSERT_TRUE(sent.ok()) << sent.status();
    }
  }
  ASSERT_TRUE(world_.Until([&] { return receiver.num_deliveries() == 3 * kMessages; }))
      << receiver.num_deliveries();
  std::map<Lane, uint64_t> next;
  for (const Delivery& delivery : receiver.deliveries()) {
    ASSERT_TRUE(delivery.message.ok());
    EXPECT_EQ(delivery.message->key.step, next[delivery.lane]++);
    EXPECT_EQ(Difference(*delivery.message), "");
    EXPECT_EQ(delivery.message->incarnation, sender.transport().incarnation());
    EXPECT_EQ(delivery.source, receiver.PeerNamed("sender"));
  }
}

TEST_P(TransportConformance, SendsToNoOtherLifeThanTheOneThatIsMeant) {
  Node& receiver = world_.Add(TransportWorld::SmallOptions("receiver"));
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"));
  const PeerId peer = world_.Connect(sender, world_.Listen(receiver), "receiver");
  const auto send = [&](uint64_t incarnation, uint64_t step) {
    SendOptions options;
    options.incarnation = incarnation;
    return sender.transport()
        .Send(peer, Lane::kBulk, PositionMessage(Node::kOpenKind, step, 1, 33), std::move(options))
        .status();
  };
  const uint64_t life = receiver.transport().incarnation();
  EXPECT_EQ(send(life + 1, 1).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(send(life, 2).ok());
  ASSERT_TRUE(world_.Until([&] { return receiver.num_deliveries() == 1; }));
  EXPECT_EQ(receiver.deliveries()[0].message->key.step, 2u);
}

TEST_P(TransportConformance, DeliversNothingBeforeTheWatcherKnowsThePeer) {
  Node& listener = world_.Add(TransportWorld::SmallOptions("listener"));
  Node& dialer = world_.Add(TransportWorld::SmallOptions("dialer"));
  // More than a window holds on every lane, from inside the news of the connection, which the
  // listening end always has first.
  constexpr uint64_t kMessages = 60;
  const auto greet = [&](Node& from, const PeerInfo& to) {
    if (to.state != PeerState::kConnected) return;
    for (uint64_t step = 0; step < kMessages; ++step) {
      for (const Lane lane : kLanes) {
        const auto sent = from.transport().Send(
            to.id, lane, PositionMessage(Node::kOpenKind, step, 1 + step % 7, 33));
        EXPECT_TRUE(sent.ok()) << sent.status();
      }
    }
  };
  std::atomic<int> early{0};
  for (Node* node : {&listener, &dialer}) {
    node->on_peer_state = [&, node](const PeerInfo& peer) { greet(*node, peer); };
    node->on_delivery = [&, node](const Delivery& delivery) {
      if (node->StateOf(delivery.source) != PeerState::kConnected) ++early;
    };
  }
  world_.Connect(dialer, world_.Listen(listener), "listener");
  for (const Node* node : {&listener, &dialer}) {
    ASSERT_TRUE(world_.Until([&] { return node->num_deliveries() == 3 * kMessages; }))
        << node->num_deliveries();
    std::map<Lane, uint64_t> next;
    for (const Delivery& delivery : node->deliveries()) {
      ASSERT_TRUE(delivery.message.ok());
      EXPECT_EQ(delivery.message->key.step, next[delivery.lane]++);
      EXPECT_EQ(Difference(*delivery.message), "");
    }
  }
  EXPECT_EQ(early.load(), 0);
}

TEST_P(TransportConformance, BothEndsSend) {
  Node& a = world_.Add(TransportWorld::SmallOptions("a"));
  Node& b = world_.Add(TransportWorld::SmallOptions("b"));
  // The answer leaves from inside the delivery.
  b.on_delivery = [&b](const Delivery& delivery) {
    const uint64_t step = delivery.message->key.step;
    EXPECT_TRUE(b.transport()
                    .Send(delivery.source, Lane::kDecode,
                          PositionMessage(Node::kOpenKind, step + 500, 3, 8))
                    .ok());
  };
  const PeerId peer = world_.Connect(a, world_.Listen(b), "b");
  for (uint64_t step = 0; step < 20; ++step) {
    ASSERT_TRUE(
        a.transport().Send(peer, Lane::kBulk, PositionMessage(Node::kOpenKind, step, 5, 8)).ok());
  }
  ASSERT_TRUE(world_.Until([&] { return a.num_deliveries() == 20; }));
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(a.deliveries()[i].message->key.step, 500 + i);
  }
}

TEST_P(TransportConformance, CarriesEverySizeUpToTheLimitAndRefusesMore) {
  const TransportOptions options = TransportWorld::SmallOptions("receiver");
  Node& receiver = world_.Add(options);
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"));
  const PeerId peer = world_.Connect(sender, world_.Listen(receiver), "receiver");
  const uint64_t limit = options.limits.max_message_bytes;
  // Around the frame's limit, several frames, the window, and the message's limit.
  std::vector<uint64_t> sizes = {0,    4,    60,   64,    68,    4028,       4032,      4036,
                                 4096, 4100, 8128, 16384, 65536, limit - 68, limit - 64};
  for (const uint64_t size : sizes) {
    Message message = PositionMessage(Node::kOpenKind, size, size / 4, 1);
    const size_t before = receiver.num_deliveries();
    const auto sent = sender.transport().Send(peer, Lane::kBulk, std::move(message));
    if (size / 4 > options.limits.max_num_rows) {
      EXPECT_FALSE(sent.ok());
      continue;
    }
    ASSERT_TRUE(sent.ok()) << size << ": " << sent.status();
    ASSERT_TRUE(world_.Until([&] { return receiver.num_deliveries() > before; })) << size;
    const auto deliveries = receiver.deliveries();
    EXPECT_EQ(Difference(*deliveries.back().message), "");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(deliveries.back().message->rows.data()) % 16, 0u);
  }
  // Rows of 256 elements reach the byte limit itself.
  const uint64_t rows = (limit - 64) / 1024;
  const size_t before = receiver.num_deliveries();
  const auto at_limit =
      sender.transport().Send(peer, Lane::kBulk, PositionMessage(Node::kOpenKind, 7, rows, 256));
  EXPECT_TRUE(at_limit.ok()) << at_limit.status();
  const auto beyond = sender.transport().Send(peer, Lane::kBulk,
                                              PositionMessage(Node::kOpenKind, 8, rows + 1, 256));
  EXPECT_EQ(beyond.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(world_.Until([&] { return receiver.num_deliveries() > before; }));
  EXPECT_EQ(Difference(*receiver.deliveries().back().message), "");
}

TEST_P(TransportConformance, CarriesMessagesWithoutRowsOrBytes) {
  Node& receiver = world_.Add(TransportWorld::SmallOptions("receiver"));
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"));
  const PeerId peer = world_.Connect(sender, world_.Listen(receiver), "receiver");
  Message empty;
  empty.key.kind = Node::kOpenKind;
  ASSERT_TRUE(sender.transport().Send(peer, Lane::kDecode, empty).ok());
  Message no_rows = PositionMessage(Node::kOpenKind, 1, 0, 128);
  ASSERT_TRUE(sender.transport().Send(peer, Lane::kDecode, no_rows).ok());
  ASSERT_TRUE(world_.Until([&] { return receiver.num_deliveries() == 2; }));
  const auto deliveries = receiver.deliveries();
  EXPECT_EQ(deliveries[0].message->metadata.size(), 0u);
  EXPECT_EQ(deliveries[1].message->num_rows, 0u);
  EXPECT_EQ(deliveries[1].message->row_width, 128u);
  EXPECT_EQ(Difference(*deliveries[1].message), "");
}

TEST_P(TransportConformance, PeersThatAllSendMoreThanAWindowHoldsNeverWaitForEachOther) {
  for (const size_t num_nodes : {2, 3, 5}) {
    TransportWorld world(GetParam());
    std::vector<Node*> nodes;
    std::vector<Address> addresses;
    for (size_t i = 0; i < num_nodes; ++i) {
      nodes.push_back(&world.Add(TransportWorld::SmallOptions(absl::StrCat("node-", i))));
      addresses.push_back(world.Listen(*nodes.back()));
    }
    for (size_t i = 0; i < num_nodes; ++i) {
      for (size_t j = i + 1; j < num_nodes; ++j) {
        world.Connect(*nodes[i], addresses[j], absl::StrCat("node-", j));
        ASSERT_TRUE(
            world.Until([&] { return nodes[j]->PeerNamed(absl::StrCat("node-", i)) != PeerId(); }));
      }
    }
    // 128 KiB each, eight windows; four to every other node, on two lanes.
    constexpr size_t kMessages = 4;
    for (size_t i = 0; i < num_nodes; ++i) {
      for (size_t j = 0; j < num_nodes; ++j) {
        if (i == j) continue;
        const PeerId peer = nodes[i]->PeerNamed(absl::StrCat("node-", j));
        for (size_t k = 0; k < kMessages; ++k) {
          const auto sent =
              nodes[i]->transport().Send(peer, k % 2 == 0 ? Lane::kBulk : Lane::kDecode,
                                         PositionMessage(Node::kOpenKind, 100 * i + k, 128, 256));
          ASSERT_TRUE(sent.ok()) << sent.status();
        }
      }
    }
    for (Node* node : nodes) {
      ASSERT_TRUE(world.Until([&] {
        return node->num_deliveries() == kMessages * (num_nodes - 1);
      })) << num_nodes
          << " nodes: " << node->num_deliveries();
      for (const Delivery& delivery : node->deliveries()) {
        EXPECT_EQ(Difference(*delivery.message), "");
      }
    }
    // A beat later every credit is back and nothing is held.
    world.Advance(absl::Milliseconds(300));
    for (Node* node : nodes) {
      const TransportFigures figures = node->transport().figures();
      EXPECT_EQ(figures.queued_bytes, 0u);
      EXPECT_EQ(figures.in_flight_bytes, 0u);
      EXPECT_EQ(figures.assembling_bytes, 0u);
    }
  }
}

TEST_P(TransportConformance, APeerThatTakesNothingFillsItsQueueAndNoMore) {
  const TransportOptions options = TransportWorld::SmallOptions("sender");
  FaultPlan& plan = world_.NewPlan(1);
  Node& receiver = world_.Add(TransportWorld::SmallOptions("receiver"), &plan);
  Node& sender = world_.Add(options);
  const PeerId peer = world_.Connect(sender, world_.Listen(receiver), "receiver");
  world_.Settle();
  LinkFaults silent;
  silent.cut = true;  // no credit comes back
  plan.Set(silent);
  absl::Status status;
  int accepted = 0;
  while (status.ok() && accepted < 1000) {
    status = sender.transport()
                 .Send(peer, Lane::kBulk, PositionMessage(Node::kOpenKind, 1, 64, 256))
                 .status();
    if (status.ok()) ++accepted;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the bulk lane has"));
  world_.Settle();
  const TransportFigures figures = sender.transport().figures();
  EXPECT_LE(figures.queued_bytes, options.max_queued_bytes);
  EXPECT_LE(figures.in_flight_bytes, options.window_bytes[2]);
  EXPECT_GT(figures.in_flight_bytes, options.window_bytes[2] / 2);
  // The other lanes are not touched by it.
  EXPECT_TRUE(
      sender.transport().Send(peer, Lane::kDecode, PositionMessage(Node::kOpenKind, 2, 1, 8)).ok());
  EXPECT_TRUE(world_.Until([&] {
    for (const Delivery& delivery : receiver.deliveries()) {
      if (delivery.lane == Lane::kDecode) return true;
    }
    return false;
  }));
}

TEST_P(TransportConformance, ASendThatWaitsTooLongFailsAtItsDeadline) {
  FaultPlan& plan = world_.NewPlan(1);
  Node& receiver = world_.Add(TransportWorld::SmallOptions("receiver"), &plan);
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"));
  const PeerId peer = world_.Connect(sender, world_.Listen(receiver), "receiver");
  world_.Settle();
  LinkFaults silent;
  silent.cut = true;
  plan.Set(silent);
  const auto message = [](uint64_t step) {
    return PositionMessage(Node::kOpenKind, step, 64, 256);
  };
  ASSERT_TRUE(sender.transport().Send(peer, Lane::kBulk, message(1)).ok());
  absl::Status late;
  std::atomic<bool> finished{false};
  SendOptions options;
  options.timeout = absl::Milliseconds(100);
  options.done = [&](const absl::Status& status) {
    late = status;
    finished = true;
  };
  ASSERT_TRUE(sender.transport().Send(peer, Lane::kBulk, message(2), options).ok());
  world_.Advance(absl::Milliseconds(100) - absl::Nanoseconds(1));
  EXPECT_FALSE(finished);
  world_.Advance(absl::Nanoseconds(1));
  ASSERT_TRUE(finished);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), HasSubstr("has not consumed"));
}

TEST_P(TransportConformance, ACancelledSendNeverArrivesAndTheLaneGoesOn) {
  FaultPlan& plan = world_.NewPlan(1);
  Node& receiver = world_.Add(TransportWorld::SmallOptions("receiver"), &plan);
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"));
  const PeerId peer = world_.Connect(sender, world_.Listen(receiver), "receiver");
  world_.Settle();
  // Each is more than a window, and no credit comes back yet: the first is half sent, the others
  // wait.
  LinkFaults stopped;
  stopped.stop = true;
  plan.Set(stopped);
  std::vector<SendId> sends;
  for (uint64_t step = 0; step < 4; ++step) {
    const auto sent =
        sender.transport().Send(peer, Lane::kBulk, PositionMessage(Node::kOpenKind, step, 64, 256));
    ASSERT_TRUE(sent.ok());
    sends.push_back(*sent);
  }
  EXPECT_TRUE(sender.transport().CancelSend(peer, Lane::kBulk, sends[2]));
  EXPECT_FALSE(sender.transport().CancelSend(peer, Lane::kBulk, sends[2]));
  plan.Clear();
  world_.Advance(absl::Milliseconds(20));
  ASSERT_TRUE(world_.Until([&] {
    const auto deliveries = receiver.deliveries();
    return !deliveries.empty() && deliveries.back().message->key.step == 3;
  }));
  for (const Delivery& delivery : receiver.deliveries()) {
    EXPECT_NE(delivery.message->key.step, 2u);
    EXPECT_EQ(Difference(*delivery.message), "");
  }
}

TEST_P(TransportConformance, CountsEveryFrameAndByteExactly) {
  const TransportOptions options = TransportWorld::SmallOptions("receiver");
  Node& receiver = world_.Add(options);
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"));
  const PeerId peer = world_.Connect(sender, world_.Listen(receiver), "receiver");
  uint64_t frames = 0;
  uint64_t bytes = 0;
  constexpr uint64_t kMessages = 20;
  for (uint64_t step = 0; step < kMessages; ++step) {
    const uint64_t message_bytes = 64 + 4 * step * step * 64;
    frames += std::max<uint64_t>(1, (message_bytes + 4095) / 4096);
    bytes += message_bytes;
    ASSERT_TRUE(
        sender.transport()
            .Send(peer, Lane::kBulk, PositionMessage(Node::kOpenKind, step, step * step, 64))
            .ok());
  }
  ASSERT_TRUE(world_.Until([&] { return receiver.num_deliveries() == kMessages; }));
  world_.Advance(absl::Milliseconds(300));
  const LaneFigures sent = sender.transport().figures().lanes[2];
  const LaneFigures received = receiver.transport().figures().lanes[2];
  EXPECT_EQ(sent.sent.messages, kMessages);
  EXPECT_EQ(sent.sent.frames, frames);
  EXPECT_EQ(sent.sent.payload_bytes, bytes);
  EXPECT_EQ(received.received.messages, kMessages);
  EXPECT_EQ(received.received.frames, frames);
  EXPECT_EQ(received.received.payload_bytes, bytes);
  // Nothing is in flight any more, so both ends agree on the transport's own frames too.
  EXPECT_EQ(sent.sent.wire_bytes(), received.received.wire_bytes());
  EXPECT_EQ(received.sent.wire_bytes(), sent.received.wire_bytes());
  EXPECT_LE(received.copied_bytes, bytes);
}

}  // namespace
}  // namespace moebius
