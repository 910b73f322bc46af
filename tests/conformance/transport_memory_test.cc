// SPDX-License-Identifier: Apache-2.0
// What every transport must do with memory: take what room was reserved for, use it again, and give
// it back.
#include <atomic>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/conformance/transport_world.h"

namespace moebius {
namespace {

uint64_t Dropped(const TransportFigures& figures, DropReason reason) {
  uint64_t sum = 0;
  for (const LaneFigures& lane : figures.lanes) {
    sum += lane.dropped_messages[static_cast<size_t>(reason)];
  }
  return sum;
}

// Takes messages of the closed kind and uses them up at once.
ReservationSpec UseUp(std::atomic<uint64_t>& num_used) {
  ReservationSpec spec;
  spec.scope = ReservationScope::kKind;
  spec.key.kind = Node::kClosedKind;
  spec.max_message_bytes = 256 << 10;
  spec.max_messages = 4;
  spec.on_delivery = [&num_used](const Delivery& delivery) {
    ASSERT_TRUE(delivery.message.ok()) << delivery.message.status();
    EXPECT_EQ(Difference(*delivery.message), "");
    ++num_used;
  };
  return spec;
}

TEST_P(TransportConformance, DropsAndCountsWhatNobodyReserved) {
  Node& receiver = world_.Add(TransportWorld::SmallOptions("receiver"));
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"));
  const PeerId peer = world_.Connect(sender, world_.Listen(receiver), "receiver");
  for (uint64_t step = 0; step < 5; ++step) {
    // Several windows' worth: what is dropped is consumed all the same.
    ASSERT_TRUE(sender.transport()
                    .Send(peer, Lane::kBulk, PositionMessage(Node::kClosedKind, step, 64, 256))
                    .ok());
  }
  ASSERT_TRUE(
      sender.transport().Send(peer, Lane::kBulk, PositionMessage(Node::kOpenKind, 9, 1, 8)).ok());
  ASSERT_TRUE(world_.Until([&] { return receiver.num_deliveries() == 1; }));
  EXPECT_EQ(receiver.deliveries()[0].message->key.step, 9u);
  EXPECT_EQ(Dropped(receiver.transport().figures(), DropReason::kUnreserved), 5u);
}

TEST_P(TransportConformance, AReservationTakesItsMessageOnceAndOnlyFromItsPeer) {
  Node& receiver = world_.Add(TransportWorld::SmallOptions("receiver"));
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"));
  Node& stranger = world_.Add(TransportWorld::SmallOptions("stranger"));
  const Address address = world_.Listen(receiver);
  const PeerId peer = world_.Connect(sender, address, "receiver");
  const PeerId strangers_peer = world_.Connect(stranger, address, "receiver");
  ASSERT_TRUE(world_.Until([&] { return receiver.PeerNamed("sender") != PeerId(); }));
  ReservationSpec spec;
  spec.source = receiver.PeerNamed("sender");
  spec.key.kind = Node::kClosedKind;
  spec.key.step = 4;
  spec.max_message_bytes = 64 << 10;
  receiver.Reserve(spec);
  const uint64_t reserved = receiver.transport().figures().reserved_bytes;
  const auto message = [](uint64_t step, uint64_t rows) {
    return PositionMessage(Node::kClosedKind, step, rows, 256);
  };
  ASSERT_TRUE(stranger.transport().Send(strangers_peer, Lane::kDecode, message(4, 1)).ok());
  ASSERT_TRUE(world_.Until(
      [&] { return Dropped(receiver.transport().figures(), DropReason::kUnreserved) == 1; }));
  // Another step, one that is too large, the right one, and the right one again.
  ASSERT_TRUE(sender.transport().Send(peer, Lane::kDecode, message(5, 1)).ok());
  ASSERT_TRUE(sender.transport().Send(peer, Lane::kDecode, message(4, 65)).ok());
  ASSERT_TRUE(sender.transport().Send(peer, Lane::kDecode, message(4, 60)).ok());
  ASSERT_TRUE(sender.transport().Send(peer, Lane::kDecode, message(4, 60)).ok());
  ASSERT_TRUE(world_.Until([&] {
    return Dropped(receiver.transport().figures(), DropReason::kUnreserved) == 4;
  })) << Dropped(receiver.transport().figures(), DropReason::kUnreserved);
  ASSERT_EQ(receiver.num_deliveries(), 1u);
  EXPECT_EQ(receiver.deliveries()[0].message->num_rows, 60u);
  EXPECT_EQ(receiver.transport().figures().reserved_bytes, reserved - (64 << 10));
}

TEST_P(TransportConformance, AStepsReservationTakesEveryLayerOnceUpToItsCount) {
  Node& receiver = world_.Add(TransportWorld::SmallOptions("receiver"));
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"));
  const PeerId peer = world_.Connect(sender, world_.Listen(receiver), "receiver");
  ASSERT_TRUE(world_.Until([&] { return receiver.PeerNamed("sender") != PeerId(); }));
  ReservationSpec spec;
  spec.scope = ReservationScope::kStep;
  spec.source = receiver.PeerNamed("sender");
  spec.key.kind = Node::kClosedKind;
  spec.key.step = 4;
  spec.max_message_bytes = 16 << 10;
  spec.max_messages = 3;
  receiver.Reserve(spec);
  for (const uint32_t layer : {0, 1, 1, 2, 3}) {
    Message message = PositionMessage(Node::kClosedKind, 4, 2, 8);
    message.key.layer = layer;
    ASSERT_TRUE(sender.transport().Send(peer, Lane::kDecode, std::move(message)).ok());
  }
  // Layer 1 comes twice and layer 3 is one too many.
  ASSERT_TRUE(world_.Until(
      [&] { return Dropped(receiver.transport().figures(), DropReason::kUnreserved) == 2; }));
  std::vector<uint32_t> layers;
  for (const Delivery& delivery : receiver.deliveries()) {
    layers.push_back(delivery.message->key.layer);
  }
  EXPECT_THAT(layers, ::testing::ElementsAre(0, 1, 2));
}

TEST_P(TransportConformance, AReservationFailsExactlyAtItsDeadline) {
  Node& receiver = world_.Add(TransportWorld::SmallOptions("receiver"));
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"));
  world_.Connect(sender, world_.Listen(receiver), "receiver");
  ASSERT_TRUE(world_.Until([&] { return receiver.PeerNamed("sender") != PeerId(); }));
  ReservationSpec spec;
  spec.source = receiver.PeerNamed("sender");
  spec.key.kind = Node::kClosedKind;
  spec.max_message_bytes = 1024;
  spec.deadline = world_.clock().Now() + absl::Milliseconds(80);
  receiver.Reserve(spec);
  world_.Advance(absl::Milliseconds(80) - absl::Nanoseconds(1));
  EXPECT_EQ(receiver.num_deliveries(), 0u);
  world_.Advance(absl::Nanoseconds(1));
  ASSERT_EQ(receiver.num_deliveries(), 1u);
  EXPECT_EQ(receiver.deliveries()[0].message.status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(TransportConformance, AStreamOfLargeMessagesNeedsNoNewMemoryAndGivesItBackAtTheEnd) {
  std::atomic<uint64_t> num_used{0};
  Node& receiver = world_.Add(TransportWorld::SmallOptions("receiver"));
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"));
  const PeerId peer = world_.Connect(sender, world_.Listen(receiver), "receiver");
  ASSERT_TRUE(receiver.transport().Reserve(UseUp(num_used)).ok());
  constexpr uint64_t kMessages = 40;
  for (uint64_t step = 0; step < kMessages; ++step) {
    // Of 64 KiB, 17 frames.
    ASSERT_TRUE(sender.transport()
                    .Send(peer, Lane::kBulk, PositionMessage(Node::kClosedKind, step, 64, 256))
                    .ok());
    ASSERT_TRUE(world_.Until([&] { return num_used == step + 1; }));
  }
  // The last one is kept a moment after it was delivered.
  ASSERT_TRUE(world_.Until([&] { return receiver.transport().figures().buffers.idle_bytes > 0; }));
  const BufferPoolFigures buffers = receiver.transport().figures().buffers;
  // A delivery may overlap with the beginning of the next message.
  EXPECT_LE(buffers.num_fresh, 2u);
  EXPECT_EQ(buffers.num_fresh + buffers.num_reused, kMessages);
  // Nobody is there any more, and 20 s later no memory either.
  world_.Remove(sender);
  ASSERT_TRUE(world_.Until([&] { return receiver.transport().peers().empty(); }));
  EXPECT_GT(receiver.transport().figures().buffers.idle_bytes, 0u);
  world_.Advance(absl::Seconds(20));
  EXPECT_EQ(receiver.transport().figures().buffers.idle_bytes, 0u);
}

TEST_P(TransportConformance, KeepsNoMoreMemoryThanItsLimit) {
  std::atomic<uint64_t> num_used{0};
  TransportOptions options = TransportWorld::SmallOptions("receiver");
  options.max_idle_buffer_bytes = 100 << 10;
  Node& receiver = world_.Add(options);
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"));
  const PeerId peer = world_.Connect(sender, world_.Listen(receiver), "receiver");
  ASSERT_TRUE(receiver.transport().Reserve(UseUp(num_used)).ok());
  uint64_t step = 0;
  for (const uint64_t num_rows : {40, 64, 90, 128, 200, 64, 40}) {
    ASSERT_TRUE(
        sender.transport()
            .Send(peer, Lane::kBulk, PositionMessage(Node::kClosedKind, step++, num_rows, 256))
            .ok());
    ASSERT_TRUE(world_.Until([&] { return num_used == step; }));
    EXPECT_LE(receiver.transport().figures().buffers.idle_bytes, options.max_idle_buffer_bytes);
  }
  EXPECT_GT(receiver.transport().figures().buffers.num_dropped, 0u);
}

}  // namespace
}  // namespace moebius
