// SPDX-License-Identifier: Apache-2.0
// What every transport must do with peers that no good process would be.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "moebius/transport/hello.h"
#include "tests/conformance/transport_world.h"

namespace moebius {
namespace {

Hello GoodHello(Lane lane) {
  Hello hello;
  hello.lane = lane;
  hello.connection_id = 77;
  hello.window_bytes = 16 << 10;
  hello.max_message_bytes = 64 << 10;
  hello.max_payload_bytes = 4096;
  hello.name = "raw";
  return hello;
}

// Each of these is the whole life of one hostile link.
struct Hostility {
  const char* name;
  std::function<void(RawLink&)> speak;
};

std::vector<Hostility> Hostilities() {
  const auto random = [](uint64_t seed) {
    return [seed](RawLink& link) {
      WireFrame frame;
      for (size_t i = 0; i < kFrameHeaderBytes; ++i) {
        frame.header[i] = static_cast<uint8_t>(RandomBits(seed, i));
      }
      frame.payload = {SharedBytes::Copy("GET / HTTP/1.1\r\n\r\n")};
      link.Write(std::move(frame));
    };
  };
  const auto message = [] { return BuildFrame(PositionMessage(Node::kOpenKind, 1, 1, 4), 0, 1); };
  return {
      {"random bytes", random(1)},
      {"other random bytes", random(2)},
      {"a message before the hello", [message](RawLink& link) { link.WriteSealed(message(), 9); }},
      {"a hello for a lane that does not exist",
       [](RawLink& link) {
         Hello hello = GoodHello(static_cast<Lane>(7));
         link.WriteSealed(BuildHello(hello), 9);
       }},
      {"a hello with no window",
       [](RawLink& link) {
         Hello hello = GoodHello(Lane::kBulk);
         hello.window_bytes = 100;
         link.WriteSealed(BuildHello(hello), 9);
       }},
      {"a hello that is cut off",
       [](RawLink& link) {
         Frame frame = BuildHello(GoodHello(Lane::kBulk));
         frame.payload = {SharedBytes::Copy("short")};
         link.WriteSealed(std::move(frame), 9);
       }},
      {"two hellos",
       [](RawLink& link) {
         link.WriteSealed(BuildHello(GoodHello(Lane::kBulk)), 9);
         link.WriteSealed(BuildHello(GoodHello(Lane::kBulk)), 9);
       }},
      {"a message before the answer, of a size beyond the limit",
       [message](RawLink& link) {
         link.WriteSealed(BuildHello(GoodHello(Lane::kBulk)), 9);
         Frame frame = message();
         frame.header.num_rows = 0x40000001;
         link.WriteSealed(std::move(frame), 9);
       }},
  };
}

TEST_P(TransportConformance, GarbageEndsItsLinkAndNobodyElses) {
  Node& host = world_.Add(TransportWorld::SmallOptions("host"));
  Node& guest = world_.Add(TransportWorld::SmallOptions("guest"));
  const Address address = world_.Listen(host);
  const PeerId peer = world_.Connect(guest, address, "host");
  for (const Hostility& hostility : Hostilities()) {
    auto link = std::make_unique<RawLink>(world_.medium().provider(), address, Lane::kBulk);
    hostility.speak(*link);
    EXPECT_TRUE(world_.Until([&] { return link->closed(); })) << hostility.name;
  }
  world_.Advance(absl::Milliseconds(10));
  EXPECT_GE(host.transport().figures().protocol_errors, 7u);
  EXPECT_EQ(host.transport().figures().num_links, 3u);
  EXPECT_EQ(host.transport().figures().num_peers, 1u);
  // The good peer never noticed.
  ASSERT_TRUE(
      guest.transport().Send(peer, Lane::kBulk, PositionMessage(Node::kOpenKind, 5, 2, 4)).ok());
  ASSERT_TRUE(world_.Until([&] { return host.num_deliveries() == 1; }));
  EXPECT_EQ(Difference(*host.deliveries()[0].message), "");
}

// A raw peer with all three lanes, for what only an admitted peer can do.
class RawPeer {
 public:
  RawPeer(TransportWorld& world, Node& host, const Address& address) {
    for (size_t lane = 0; lane < kNumLanes; ++lane) {
      links_.push_back(
          std::make_unique<RawLink>(world.medium().provider(), address, static_cast<Lane>(lane)));
      links_.back()->WriteSealed(BuildHello(GoodHello(static_cast<Lane>(lane))), kIncarnation);
    }
    EXPECT_TRUE(world.Until([&] { return host.PeerNamed("raw") != PeerId(); }));
    EXPECT_TRUE(world.Until([&] { return links_[2]->frames().size() == 1; }));
  }
  static constexpr uint64_t kIncarnation = 9;
  RawLink& bulk() { return *links_[2]; }
  void Beat() { links_[0]->WriteSealed(BuildBeat(), kIncarnation); }

 private:
  std::vector<std::unique_ptr<RawLink>> links_;
};

TEST_P(TransportConformance, AnAdmittedPeerThatBreaksTheRulesIsCut) {
  const auto message = [](uint64_t step) {
    return BuildFrame(PositionMessage(Node::kOpenKind, step, 1, 4), 0, 1);
  };
  const std::vector<Hostility> breaches = {
      {"another incarnation",
       [&](RawLink& link) { link.WriteSealed(message(1), RawPeer::kIncarnation + 1); }},
      {"a credit for frames that were never sent",
       [](RawLink& link) { link.WriteSealed(BuildCredit(1000), RawPeer::kIncarnation); }},
      {"a second hello",
       [](RawLink& link) {
         link.WriteSealed(BuildHello(GoodHello(Lane::kBulk)), RawPeer::kIncarnation);
       }},
      {"a frame beyond the limit",
       [](RawLink& link) {
         const Message large = PositionMessage(Node::kOpenKind, 1, 1024, 2);
         link.WriteSealed(BuildFrame(large, 0, 1), RawPeer::kIncarnation);
       }},
  };
  for (const Hostility& breach : breaches) {
    TransportWorld world(GetParam());
    Node& host = world.Add(TransportWorld::SmallOptions("host"));
    RawPeer raw(world, host, world.Listen(host));
    breach.speak(raw.bulk());
    EXPECT_TRUE(world.Until([&] { return raw.bulk().closed(); })) << breach.name;
    EXPECT_TRUE(world.Until([&] { return host.PeerNamed("raw") == PeerId(); })) << breach.name;
    EXPECT_EQ(host.num_deliveries(), 0u) << breach.name;
    world.Advance(absl::Milliseconds(5));
    EXPECT_EQ(host.transport().figures().num_links, 0u) << breach.name;
  }
}

TEST_P(TransportConformance, APeerThatSpeaksAndNeverConsumesIsCutWithinFiveSecondsAndOthersGoOn) {
  const TransportOptions options = TransportWorld::SmallOptions("host");
  Node& host = world_.Add(options);
  const Address address = world_.Listen(host);
  Node& good = world_.Add(TransportWorld::SmallOptions("good"));
  world_.Connect(good, address, "host");
  RawPeer raw(world_, host, address);
  const PeerId peer = host.PeerNamed("raw");
  const PeerId good_peer = host.PeerNamed("good");
  const auto send = [&](PeerId to, uint64_t step) {
    return host.transport()
        .Send(to, Lane::kBulk, PositionMessage(Node::kOpenKind, step, 16, 256))
        .status();
  };
  // A window is filled and the queue behind it; no credit comes back.
  while (send(peer, 0).ok()) continue;
  const absl::Duration begin = world_.clock().Now();
  uint64_t num_sent = 0;
  while (host.StateOf(peer) == PeerState::kConnected &&
         world_.clock().Now() < begin + absl::Seconds(10)) {
    raw.Beat();
    ASSERT_TRUE(send(good_peer, ++num_sent).ok());
    ASSERT_TRUE(world_.Until([&] { return good.num_deliveries() == num_sent; }));
    const TransportFigures figures = host.transport().figures();
    EXPECT_LE(figures.queued_bytes, 2 * options.max_queued_bytes);
    EXPECT_LE(figures.in_flight_bytes, 2 * options.window_bytes[LaneIndex(Lane::kBulk)]);
    world_.Settle();
    world_.Advance(absl::Milliseconds(100));
  }
  EXPECT_EQ(host.StateOf(peer), PeerState::kDead);
  EXPECT_GE(world_.clock().Now() - begin, absl::Seconds(4));
  EXPECT_LE(world_.clock().Now() - begin, absl::Seconds(5));
  EXPECT_NE(host.ReasonOf(peer).message().find("it has taken nothing from the bulk lane for"),
            absl::string_view::npos)
      << host.ReasonOf(peer);
  EXPECT_TRUE(world_.Until([&] { return raw.bulk().closed(); }));
  EXPECT_EQ(host.StateOf(good_peer), PeerState::kConnected);
  EXPECT_TRUE(world_.Until([&] { return host.transport().figures().queued_bytes == 0; }));
}

TEST_P(TransportConformance, AReplayedHelloTakesNothingFromThePeerWhoseItWas) {
  Node& host = world_.Add(TransportWorld::SmallOptions("host"));
  const Address address = world_.Listen(host);
  RawPeer raw(world_, host, address);
  const PeerId peer = host.PeerNamed("raw");
  for (size_t lane = 0; lane < kNumLanes; ++lane) {
    RawLink replay(world_.medium().provider(), address, static_cast<Lane>(lane));
    replay.WriteSealed(BuildHello(GoodHello(static_cast<Lane>(lane))), RawPeer::kIncarnation);
    EXPECT_TRUE(world_.Until([&] { return replay.closed(); })) << lane;
  }
  EXPECT_EQ(host.PeerNamed("raw"), peer);
  raw.bulk().WriteSealed(BuildFrame(PositionMessage(Node::kOpenKind, 5, 2, 4), 0, 1),
                         RawPeer::kIncarnation);
  ASSERT_TRUE(world_.Until([&] { return host.num_deliveries() == 1; }));
  EXPECT_EQ(Difference(*host.deliveries()[0].message), "");
}

TEST_P(TransportConformance, APeerThatDiesAtAnyStepOfItsHandshakeLeavesNothing) {
  Node& host = world_.Add(TransportWorld::SmallOptions("host"));
  const Address address = world_.Listen(host);
  // So many lanes are open, so many of them have said hello, and then all ends.
  for (size_t num_links = 1; num_links <= kNumLanes; ++num_links) {
    for (size_t num_hellos = 0; num_hellos <= num_links; ++num_hellos) {
      std::vector<std::unique_ptr<RawLink>> links;
      for (size_t lane = 0; lane < num_links; ++lane) {
        links.push_back(std::make_unique<RawLink>(world_.medium().provider(), address,
                                                  static_cast<Lane>(lane)));
        if (lane >= num_hellos) continue;
        links.back()->WriteSealed(BuildHello(GoodHello(static_cast<Lane>(lane))), 9 + num_links);
      }
      if (num_hellos > 0) {
        EXPECT_TRUE(world_.Until([&] { return !links[0]->frames().empty(); }));
      }
      links.clear();
      EXPECT_TRUE(world_.Until([&] {
        const TransportFigures figures = host.transport().figures();
        return figures.num_links == 0 && figures.num_peers == 0;
      })) << num_links
          << " " << num_hellos;
    }
  }
  Node& guest = world_.Add(TransportWorld::SmallOptions("guest"));
  world_.Connect(guest, address, "host");
  EXPECT_EQ(host.num_deliveries(), 0u);
}

TEST_P(TransportConformance, APartThatFitsNoBeginningIsDropped) {
  Node& host = world_.Add(TransportWorld::SmallOptions("host"));
  RawPeer raw(world_, host, world_.Listen(host));
  const Message large = PositionMessage(Node::kOpenKind, 1, 1024, 2);
  const uint32_t parts = NumParts(MessageBytes(large), 4096);
  ASSERT_EQ(parts, 3u);
  // The middle of a message, then its end; a beginning without an end; then a whole one.
  for (const uint32_t part : {1u, 2u, 0u, 0u, 1u, 2u}) {
    raw.bulk().WriteSealed(BuildFrame(large, part, parts), RawPeer::kIncarnation);
  }
  ASSERT_TRUE(world_.Until([&] { return host.num_deliveries() == 1; }));
  EXPECT_EQ(Difference(*host.deliveries()[0].message), "");
  // Over real connections the delivery is seen a moment before its own books are closed.
  EXPECT_TRUE(world_.Until([&] { return host.transport().figures().assembling_bytes == 0; }));
  const LaneFigures bulk = host.transport().figures().lanes[2];
  EXPECT_EQ(bulk.dropped_messages[static_cast<size_t>(DropReason::kUnreserved)], 1u);
  EXPECT_EQ(bulk.dropped_messages[static_cast<size_t>(DropReason::kAbandoned)], 1u);
}

TEST_P(TransportConformance, AThousandSilentLinksKeepNobodyOut) {
  TransportOptions options = TransportWorld::SmallOptions("host");
  options.max_silent_links = 50;
  Node& host = world_.Add(options);
  const Address address = world_.Listen(host);
  std::vector<std::unique_ptr<RawLink>> silent;
  for (int i = 0; i < 1000; ++i) {
    silent.push_back(std::make_unique<RawLink>(world_.medium().provider(), address, Lane::kBulk));
    if (i % 100 == 0) world_.Settle();
  }
  world_.Settle();
  EXPECT_LE(host.transport().figures().num_links, 60u);
  Node& guest = world_.Add(TransportWorld::SmallOptions("guest"));
  world_.Connect(guest, address, "host");
  // Those that are left are cut when their time for a hello is over.
  world_.Advance(absl::Seconds(2) + absl::Milliseconds(5));
  EXPECT_TRUE(world_.Until([&] { return host.transport().figures().num_links == 3; }))
      << host.transport().figures().num_links;
  EXPECT_EQ(guest.PeerNamed("host").value(), 1u);
}

}  // namespace
}  // namespace moebius
