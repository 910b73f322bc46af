// SPDX-License-Identifier: Apache-2.0
// What every transport must do in bad weather: death, silence, restarts, loss, leaks.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/conformance/transport_world.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

LinkFaults Cut() {
  LinkFaults faults;
  faults.cut = true;
  return faults;
}

TEST_P(TransportConformance, AnEndedStreamIsADeadPeerAtOnce) {
  Node& doomed = world_.Add(TransportWorld::SmallOptions("doomed"));
  Node& watcher = world_.Add(TransportWorld::SmallOptions("watcher"));
  const PeerId peer = world_.Connect(watcher, world_.Listen(doomed), "doomed");
  ReservationSpec spec;
  spec.source = peer;
  spec.key.kind = Node::kClosedKind;
  spec.max_message_bytes = 1024;
  watcher.Reserve(spec);
  const absl::Duration before = world_.clock().Now();
  world_.Remove(doomed);
  ASSERT_TRUE(world_.Until([&] { return watcher.StateOf(peer) == PeerState::kDead; }));
  EXPECT_EQ(world_.clock().Now(), before);
  ASSERT_EQ(watcher.num_deliveries(), 1u);
  EXPECT_EQ(watcher.deliveries()[0].message.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(watcher.deliveries()[0].message.status().message()),
              HasSubstr("peer doomed is dead"));
  EXPECT_EQ(watcher.transport()
                .Send(peer, Lane::kBulk, PositionMessage(Node::kOpenKind, 1, 1, 1))
                .status()
                .code(),
            absl::StatusCode::kUnavailable);
}

TEST_P(TransportConformance, SilenceIsSuspectAfterThreeBeatsAndDeadAfterASecond) {
  FaultPlan& plan = world_.NewPlan(1);
  Node& silent = world_.Add(TransportWorld::SmallOptions("silent"), &plan);
  Node& watcher = world_.Add(TransportWorld::SmallOptions("watcher"));
  const PeerId peer = world_.Connect(watcher, world_.Listen(silent), "silent");
  world_.Settle();
  plan.Set(Cut());  // one way: it hears everything and is not heard
  world_.Advance(absl::Milliseconds(450) - absl::Nanoseconds(1));
  EXPECT_EQ(watcher.StateOf(peer), PeerState::kConnected);
  world_.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(watcher.StateOf(peer), PeerState::kSuspect);
  EXPECT_THAT(std::string(watcher.ReasonOf(peer).message()), HasSubstr("450ms"));
  world_.Advance(absl::Milliseconds(550) - absl::Nanoseconds(1));
  EXPECT_EQ(watcher.StateOf(peer), PeerState::kSuspect);
  world_.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(watcher.StateOf(peer), PeerState::kDead);
  // The other side hears its stream end.
  EXPECT_TRUE(world_.Until([&] { return silent.PeerNamed("watcher") == PeerId(); }));
}

TEST_P(TransportConformance, ASuspectPeerThatSpeaksAgainIsConnected) {
  FaultPlan& plan = world_.NewPlan(1);
  Node& shy = world_.Add(TransportWorld::SmallOptions("shy"), &plan);
  Node& watcher = world_.Add(TransportWorld::SmallOptions("watcher"));
  const PeerId peer = world_.Connect(watcher, world_.Listen(shy), "shy");
  world_.Settle();
  LinkFaults stopped;
  stopped.stop = true;  // nothing is lost, as when a process is stopped
  plan.Set(stopped);
  world_.Advance(absl::Milliseconds(600));
  EXPECT_EQ(watcher.StateOf(peer), PeerState::kSuspect);
  plan.Clear();
  world_.Advance(absl::Milliseconds(200));
  EXPECT_EQ(watcher.StateOf(peer), PeerState::kConnected);
  EXPECT_TRUE(watcher.ReasonOf(peer).ok());
}

TEST_P(TransportConformance, AHalfOpenConnectionIsForgottenByBothEnds) {
  FaultPlan& plan = world_.NewPlan(1);
  Node& a = world_.Add(TransportWorld::SmallOptions("a"), &plan);
  Node& b = world_.Add(TransportWorld::SmallOptions("b"), &plan);
  world_.Connect(b, world_.Listen(a), "a");
  world_.Settle();
  plan.Set(Cut());
  world_.Advance(absl::Seconds(1));
  EXPECT_EQ(a.PeerNamed("b"), PeerId());
  EXPECT_EQ(b.PeerNamed("a"), PeerId());
  // It is dialed again in vain, and every try is cleaned up; then the weather changes.
  world_.Advance(absl::Seconds(10));
  EXPECT_LE(a.transport().figures().num_links, 6u);
  plan.Clear();
  world_.Advance(absl::Seconds(4));
  EXPECT_TRUE(world_.Until([&] { return b.PeerNamed("a") != PeerId(); }));
  EXPECT_EQ(b.transport().figures().num_links, 3u);
}

TEST_P(TransportConformance, ARestartedPeerIsANewLifeAndNothingOfTheOldIsDelivered) {
  const TransportOptions options = TransportWorld::SmallOptions("phoenix");
  Node* phoenix = &world_.Add(options);
  Node& watcher = world_.Add(TransportWorld::SmallOptions("watcher"));
  const Address address = world_.Listen(*phoenix);
  const PeerId peer = world_.Connect(watcher, address, "phoenix");
  const uint64_t old_life = phoenix->transport().incarnation();
  ReservationSpec spec;
  spec.source = peer;
  spec.key.kind = Node::kClosedKind;
  spec.key.step = 3;
  spec.max_message_bytes = 64 << 10;
  watcher.Reserve(spec);
  // Half of a message is under way when the process dies.
  ASSERT_TRUE(world_.Until([&] { return phoenix->PeerNamed("watcher") != PeerId(); }));
  ASSERT_TRUE(phoenix->transport()
                  .Send(phoenix->PeerNamed("watcher"), Lane::kBulk,
                        PositionMessage(Node::kClosedKind, 2, 64, 256))
                  .ok());
  world_.Remove(*phoenix);
  ASSERT_TRUE(world_.Until([&] { return watcher.StateOf(peer) == PeerState::kDead; }));
  ASSERT_EQ(watcher.num_deliveries(), 1u);
  EXPECT_FALSE(watcher.deliveries()[0].message.ok());

  phoenix = &world_.Add(options);
  ASSERT_TRUE(phoenix->transport().Listen(address).ok());
  for (int i = 0; i < 20 && watcher.PeerNamed("phoenix") == PeerId(); ++i) {
    world_.Advance(absl::Milliseconds(500));
  }
  ASSERT_EQ(watcher.PeerNamed("phoenix"), peer);
  EXPECT_NE(watcher.transport().FindPeer(peer)->incarnation, old_life);
  // The old reservation is over: the same key of the new life is expected by nobody …
  ASSERT_TRUE(world_.Until([&] { return phoenix->PeerNamed("watcher") != PeerId(); }));
  const PeerId back = phoenix->PeerNamed("watcher");
  const auto message = [] { return PositionMessage(Node::kClosedKind, 3, 2, 16); };
  ASSERT_TRUE(phoenix->transport().Send(back, Lane::kBulk, message()).ok());
  world_.Settle();
  EXPECT_EQ(watcher.num_deliveries(), 1u);
  // … until it is reserved again.
  watcher.Reserve(spec);
  ASSERT_TRUE(phoenix->transport().Send(back, Lane::kBulk, message()).ok());
  ASSERT_TRUE(world_.Until([&] { return watcher.num_deliveries() == 2; }));
  EXPECT_EQ(watcher.deliveries()[1].message->incarnation, phoenix->transport().incarnation());
}

TEST_P(TransportConformance, ALostFrameEndsTheConnectionWithinABeat) {
  for (const bool is_last : {false, true}) {
    TransportWorld world(GetParam());
    FaultPlan& plan = world.NewPlan(1);
    Node& receiver = world.Add(TransportWorld::SmallOptions("receiver"));
    Node& sender = world.Add(TransportWorld::SmallOptions("sender"), &plan);
    const PeerId peer = world.Connect(sender, world.Listen(receiver), "receiver");
    ASSERT_TRUE(world.Until([&] { return receiver.PeerNamed("sender") != PeerId(); }));
    const PeerId source = receiver.PeerNamed("sender");
    world.Settle();
    plan.Set(Cut());
    ASSERT_TRUE(
        sender.transport().Send(peer, Lane::kBulk, PositionMessage(Node::kOpenKind, 1, 1, 8)).ok());
    plan.Clear();
    if (is_last) {
      world.Advance(absl::Milliseconds(150));
    } else {
      ASSERT_TRUE(sender.transport()
                      .Send(peer, Lane::kBulk, PositionMessage(Node::kOpenKind, 2, 1, 8))
                      .ok());
    }
    EXPECT_TRUE(world.Until([&] { return receiver.StateOf(source) == PeerState::kDead; }));
    EXPECT_EQ(receiver.ReasonOf(source).code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(receiver.ReasonOf(source).message()), HasSubstr("bulk lane lost"));
    EXPECT_EQ(receiver.num_deliveries(), 0u);
  }
}

TEST_P(TransportConformance, ADamagedFrameIsNeverDelivered) {
  FaultPlan& plan = world_.NewPlan(5);
  TransportOptions options = TransportWorld::SmallOptions("receiver");
  options.checksums_inside_host = true;
  Node& receiver = world_.Add(options);
  options.name = "sender";
  Node& sender = world_.Add(options, &plan);
  const Address address = world_.Listen(receiver);
  const PeerId peer = world_.Connect(sender, address, "receiver");
  LinkFaults faults;
  faults.corrupt = 0.3f;
  const auto are_connected = [&] {
    return sender.PeerNamed("receiver") == peer && receiver.PeerNamed("sender") != PeerId();
  };
  uint64_t sent = 0;
  for (uint64_t round = 0; round < 30; ++round) {
    // A damaged frame that was slow to arrive may still end a new connection: it is dialed again.
    for (int i = 0; i < 100 && !are_connected(); ++i) {
      world_.Settle();
      world_.Advance(absl::Milliseconds(100));
    }
    ASSERT_TRUE(are_connected()) << "round " << round;
    plan.Set(faults);
    for (uint64_t i = 0; i < 5; ++i) {
      const auto status = sender.transport().Send(
          peer, Lane::kDecode, PositionMessage(Node::kOpenKind, round * 5 + i, 3, 16));
      if (status.ok()) ++sent;
    }
    world_.Settle();
    plan.Clear();
  }
  for (const Delivery& delivery : receiver.deliveries()) {
    ASSERT_TRUE(delivery.message.ok());
    EXPECT_EQ(Difference(*delivery.message), "");
  }
  EXPECT_LT(receiver.num_deliveries(), sent);
  EXPECT_GT(receiver.num_deliveries(), 0u);
  EXPECT_GT(receiver.transport().figures().protocol_errors, 0u);
}

TEST_P(TransportConformance, ADoubledFrameIsDeliveredOnce) {
  FaultPlan& plan = world_.NewPlan(2);
  LinkFaults faults;
  faults.duplicate = 1;
  Node& receiver = world_.Add(TransportWorld::SmallOptions("receiver"));
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"), &plan);
  const PeerId peer = world_.Connect(sender, world_.Listen(receiver), "receiver");
  plan.Set(faults);
  for (uint64_t step = 0; step < 10; ++step) {
    ASSERT_TRUE(sender.transport()
                    .Send(peer, Lane::kBulk, PositionMessage(Node::kOpenKind, step, 20, 128))
                    .ok());
  }
  ASSERT_TRUE(world_.Until([&] { return receiver.num_deliveries() >= 10; }));
  world_.Settle();
  ASSERT_EQ(receiver.num_deliveries(), 10u);
  for (uint64_t step = 0; step < 10; ++step) {
    EXPECT_EQ(receiver.deliveries()[step].message->key.step, step);
  }
}

TEST_P(TransportConformance, DelaysReorderPeersAndNeverALane) {
  constexpr uint64_t kSeed = 3;
  FaultPlan& plan = world_.NewPlan(kSeed);
  LinkFaults faults;
  faults.max_delay = absl::Milliseconds(90);
  Node& receiver = world_.Add(TransportWorld::SmallOptions("receiver"));
  const Address address = world_.Listen(receiver);
  std::vector<Node*> senders;
  std::vector<PeerId> peers;
  for (int i = 0; i < 3; ++i) {
    const std::string name = absl::StrCat("sender-", i);
    senders.push_back(&world_.Add(TransportWorld::SmallOptions(name), &plan));
    peers.push_back(world_.Connect(*senders[i], address, "receiver"));
  }
  plan.Set(faults);
  for (uint64_t step = 0; step < 20; ++step) {
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(senders[i]
                      ->transport()
                      .Send(peers[i], Lane::kDecode, PositionMessage(Node::kOpenKind, step, 1, 4))
                      .ok());
    }
  }
  for (int i = 0; i < 40 && receiver.num_deliveries() < 60; ++i) {
    world_.Advance(absl::Milliseconds(50));
  }
  ASSERT_EQ(receiver.num_deliveries(), 60u) << "seed " << kSeed;
  std::map<PeerId, uint64_t> next;
  bool is_reordered = false;
  uint64_t last = 0;
  for (const Delivery& delivery : receiver.deliveries()) {
    const uint64_t step = delivery.message->key.step;
    EXPECT_EQ(step, next[delivery.source]++);
    is_reordered |= step < last;
    last = step;
  }
  EXPECT_TRUE(is_reordered);
}

TEST_P(TransportConformance, ASlowPeerGetsAllInTimeAndOthersDoNotWaitForIt) {
  Node& slow = world_.Add(TransportWorld::SmallOptions("slow"));
  Node& fast = world_.Add(TransportWorld::SmallOptions("fast"));
  const Address slow_address = world_.Listen(slow);
  FaultPlan& plan = world_.NewPlan(4);
  Node& sender = world_.Add(TransportWorld::SmallOptions("sender"), &plan);
  const PeerId slow_peer = world_.Connect(sender, slow_address, "slow");
  const PeerId fast_peer = world_.Connect(sender, world_.Listen(fast), "fast");
  world_.Settle();
  LinkFaults faults;
  faults.bytes_per_second = 100'000;  // 10 messages of 4 KiB take 0.4 s
  faults.queue_bytes = 8 << 10;
  plan.SetForPort(slow_address.port, faults);
  const absl::Duration begin = world_.clock().Now();
  for (uint64_t step = 0; step < 10; ++step) {
    for (const PeerId peer : {slow_peer, fast_peer}) {
      ASSERT_TRUE(sender.transport()
                      .Send(peer, Lane::kBulk, PositionMessage(Node::kOpenKind, step, 4, 256))
                      .ok());
    }
  }
  ASSERT_TRUE(world_.Until([&] { return fast.num_deliveries() == 10; }));
  EXPECT_EQ(world_.clock().Now(), begin);
  EXPECT_LT(slow.num_deliveries(), 3u);
  world_.Advance(absl::Milliseconds(200));
  EXPECT_LT(slow.num_deliveries(), 8u);
  for (int i = 0; i < 10 && slow.num_deliveries() < 10; ++i) {
    world_.Advance(absl::Milliseconds(50));
  }
  ASSERT_EQ(slow.num_deliveries(), 10u);
  for (uint64_t step = 0; step < 10; ++step) {
    EXPECT_EQ(slow.deliveries()[step].message->key.step, step);
    EXPECT_EQ(Difference(*slow.deliveries()[step].message), "");
  }
}

TEST_P(TransportConformance, AGoodbyeCarriesItsReason) {
  Node& host = world_.Add(TransportWorld::SmallOptions("host"));
  Node& guest = world_.Add(TransportWorld::SmallOptions("guest"));
  const PeerId peer = world_.Connect(guest, world_.Listen(host), "host");
  ASSERT_TRUE(world_.Until([&] { return host.PeerNamed("guest") != PeerId(); }));
  const PeerId id = host.PeerNamed("guest");
  guest.transport().Disconnect(peer, absl::UnavailableError("draining"));
  ASSERT_TRUE(world_.Until([&] { return host.StateOf(id) == PeerState::kDead; }));
  EXPECT_EQ(guest.StateOf(peer), PeerState::kDead);
  EXPECT_TRUE(absl::IsNotFound(guest.transport().FindPeer(peer).status()));
  EXPECT_THAT(std::string(host.ReasonOf(id).message()), HasSubstr("draining"));
  world_.Advance(absl::Seconds(3));
  EXPECT_EQ(host.transport().figures().num_links, 0u);
  EXPECT_EQ(guest.transport().figures().num_links, 0u);
}

TEST_P(TransportConformance, APeerThatIsNotAdmittedHearsWhy) {
  Node& host = world_.Add(TransportWorld::SmallOptions("host"));
  host.admission = absl::FailedPreconditionError("another config hash");
  Node& guest = world_.Add(TransportWorld::SmallOptions("guest"));
  const auto peer = guest.transport().Connect(world_.Listen(host));
  ASSERT_TRUE(peer.ok());
  ASSERT_TRUE(world_.Until([&] { return guest.StateOf(*peer) == PeerState::kDead; }));
  EXPECT_EQ(guest.ReasonOf(*peer).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(guest.ReasonOf(*peer).message()), HasSubstr("another config hash"));
  EXPECT_EQ(host.transport().figures().num_peers, 0u);
}

// A cluster of two releases whose frames differ: whoever dials, the one that tries learns both
// versions, the other one notes them, and once both are of one version they find each other.
TEST_P(TransportConformance, AProcessOfAnotherWireVersionIsToldBothVersions) {
  constexpr uint16_t kOlder = kWireVersion - 1;
  constexpr uint16_t kNewer = kWireVersion + 1;
  for (const uint16_t other : {kOlder, kNewer, uint16_t{0xffff}}) {
    const std::string words =
        absl::StrCat("wire version ", other, ", this process speaks ", kWireVersion);
    for (const bool is_guest_other : {true, false}) {
      SCOPED_TRACE(absl::StrCat(words, is_guest_other ? ": guest" : ": host"));
      TransportWorld world(GetParam());
      FaultPlan& plan = world.NewPlan(1);
      LinkFaults faults;
      faults.wire_version = other;
      plan.Set(faults);
      Node& host =
          world.Add(TransportWorld::SmallOptions("host"), is_guest_other ? nullptr : &plan);
      Node& guest =
          world.Add(TransportWorld::SmallOptions("guest"), is_guest_other ? &plan : nullptr);
      const auto peer = guest.transport().Connect(world.Listen(host));
      ASSERT_TRUE(peer.ok());
      ASSERT_TRUE(world.Until([&] { return guest.StateOf(*peer) == PeerState::kDead; }));
      EXPECT_EQ(guest.ReasonOf(*peer).code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(guest.ReasonOf(*peer).message()), HasSubstr(words));
      if (is_guest_other) {
        ASSERT_FALSE(host.refusals().empty());
        EXPECT_THAT(std::string(host.refusals()[0].message()), HasSubstr(words));
        EXPECT_EQ(host.transport().figures().num_peers, 0u);
        EXPECT_GE(host.transport().figures().protocol_errors, 1u);
      }
      EXPECT_EQ(host.num_deliveries() + guest.num_deliveries(), 0u);
      plan.Clear();
      for (int i = 0; i < 20 && guest.PeerNamed("host") == PeerId(); ++i) {
        world.Advance(absl::Milliseconds(500));
      }
      EXPECT_EQ(guest.PeerNamed("host"), *peer);
    }
  }
}

TEST_P(TransportConformance, ABusyPortIsAnErrorAtOnce) {
  Node& first = world_.Add(TransportWorld::SmallOptions("first"));
  Node& second = world_.Add(TransportWorld::SmallOptions("second"));
  const Address address = world_.Listen(first);
  const auto again = second.transport().Listen(address);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("address already in use"));
}

TEST_P(TransportConformance, NobodyListeningIsAPeerThatIsTriedAgain) {
  Node& host = world_.Add(TransportWorld::SmallOptions("host"));
  const Address address = world_.Listen(host);
  world_.Remove(host);
  Node& guest = world_.Add(TransportWorld::SmallOptions("guest"));
  const auto peer = guest.transport().Connect(address);
  ASSERT_TRUE(peer.ok());
  ASSERT_TRUE(world_.Until([&] { return guest.StateOf(*peer) == PeerState::kDead; }));
  Node& late = world_.Add(TransportWorld::SmallOptions("late"));
  ASSERT_TRUE(late.transport().Listen(address).ok());
  for (int i = 0; i < 10 && guest.PeerNamed("late") == PeerId(); ++i) {
    world_.Advance(absl::Milliseconds(500));
  }
  EXPECT_EQ(guest.PeerNamed("late"), *peer);
}

TEST_P(TransportConformance, AThousandConnectionsLeaveNothingBehind) {
  Node& host = world_.Add(TransportWorld::SmallOptions("host"));
  const Address address = world_.Listen(host);
  size_t descriptors = 0;
  for (int cycle = 0; cycle < 1000; ++cycle) {
    Node& guest = world_.Add(TransportWorld::SmallOptions("guest"));
    const PeerId peer = world_.Connect(guest, address, "host");
    const size_t expected = host.num_deliveries() + 1;
    ASSERT_TRUE(guest.transport()
                    .Send(peer, Lane::kBulk, PositionMessage(Node::kOpenKind, 1, 20, 128))
                    .ok());
    ASSERT_TRUE(world_.Until([&] { return host.num_deliveries() >= expected; }) ||
                host.num_deliveries() == expected);
    world_.Remove(guest);
    ASSERT_TRUE(world_.Until([&] { return host.transport().peers().empty(); }));
    if (cycle == 20) descriptors = NumDescriptors();
  }
  world_.Advance(absl::Milliseconds(5));
  const TransportFigures figures = host.transport().figures();
  EXPECT_EQ(figures.num_links, 0u);
  EXPECT_EQ(figures.num_peers, 0u);
  EXPECT_EQ(figures.queued_bytes + figures.in_flight_bytes + figures.assembling_bytes, 0u);
  EXPECT_EQ(figures.num_reservations, 1u);
  EXPECT_EQ(figures.peers_died, 1000u);
  // A descriptor or two may be in use at any one moment.
  EXPECT_LE(NumDescriptors(), descriptors + 2);
}

}  // namespace
}  // namespace moebius
