// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "moebius/transport/loopback/loopback.h"
#include "moebius/transport/metrics.h"
#include "tests/conformance/transport_world.h"
#include "tests/support/metric_values.h"

namespace moebius {
namespace {

class LoopbackMedium final : public Medium {
 public:
  explicit LoopbackMedium(Reactor& reactor) : provider_(reactor) {}
  LinkProvider& provider() override { return provider_; }
  bool takes_real_time() const override { return false; }

 private:
  LoopbackProvider provider_;
};

std::string Show(Node& node) {
  Registry registry;
  const auto handle = registry.AddCollector(
      [&](MetricWriter& writer) { WriteTransportMetrics(node.transport(), "loopback", writer); });
  return registry.Scrape();
}

std::string Lane(const std::string& metric, const std::string& lane, const std::string& rest) {
  return absl::StrCat("moebius_transport_", metric, "{transport=\"loopback\",lane=\"", lane, "\",",
                      rest, "}");
}

TEST(TransportMetricsTest, CountKnownTrafficExactlyOnBothSides) {
  TransportWorld world(
      {"loopback", [](Reactor& reactor) { return std::make_unique<LoopbackMedium>(reactor); }});
  Node& receiver = world.Add(TransportWorld::SmallOptions("receiver"));
  Node& sender = world.Add(TransportWorld::SmallOptions("sender"));
  const PeerId peer = world.Connect(sender, world.Listen(receiver), "receiver");
  // Five that are expected, and three that nobody reserved.
  for (uint64_t step = 1; step <= 5; ++step) {
    ASSERT_TRUE(
        sender.transport()
            .Send(peer, moebius::Lane::kBulk, PositionMessage(Node::kOpenKind, step, step, 16))
            .ok());
  }
  for (uint64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(
        sender.transport()
            .Send(peer, moebius::Lane::kDecode, PositionMessage(Node::kClosedKind, step, 1, 16))
            .ok());
  }
  ASSERT_TRUE(world.Until([&] { return receiver.num_deliveries() == 5; }));
  world.Advance(absl::Milliseconds(300));

  const std::string sent = Show(sender);
  const std::string received = Show(receiver);
  EXPECT_EQ(ValueOf(sent, Lane("messages_total", "bulk", "direction=\"sent\"")), 5);
  EXPECT_EQ(ValueOf(received, Lane("messages_total", "bulk", "direction=\"received\"")), 5);
  EXPECT_EQ(ValueOf(sent, Lane("messages_total", "decode", "direction=\"sent\"")), 3);
  EXPECT_EQ(ValueOf(received, Lane("messages_total", "decode", "direction=\"received\"")), 0);
  EXPECT_EQ(ValueOf(received, Lane("dropped_messages_total", "decode", "reason=\"unreserved\"")),
            3);
  for (const char* lane : {"control", "decode", "bulk"}) {
    for (const char* metric : {"bytes_total", "frames_total"}) {
      EXPECT_EQ(ValueOf(sent, Lane(metric, lane, "direction=\"sent\"")),
                ValueOf(received, Lane(metric, lane, "direction=\"received\"")));
      EXPECT_EQ(ValueOf(sent, Lane(metric, lane, "direction=\"received\"")),
                ValueOf(received, Lane(metric, lane, "direction=\"sent\"")));
    }
  }
  // 1 + … + 5 rows of 16 fp32 values at the least.
  EXPECT_GE(ValueOf(sent, Lane("bytes_total", "bulk", "direction=\"sent\"")), 15 * 16 * 4);
  for (const char* lane : {"control", "decode", "bulk"}) {
    for (const char* stage : {"queued", "delivered"}) {
      const std::string series =
          Lane("stage_seconds_total", lane, absl::StrCat("stage=\"", stage, "\""));
      EXPECT_GE(ValueOf(sent, series), 0);
      EXPECT_GE(ValueOf(received, series), 0);
    }
  }
  EXPECT_EQ(ValueOf(sent, "moebius_transport_retries_total{transport=\"loopback\"}"), 0);
  // Beats found messages without a credit on their way, and had their answers.
  const auto round_trips = [](const std::string& scrape, const std::string& lane) {
    return ValueOf(
        scrape,
        absl::StrCat("moebius_peer_rtt_seconds_count{transport=\"loopback\",lane=\"", lane, "\"}"));
  };
  EXPECT_GE(round_trips(sent, "bulk"), 1);
  EXPECT_GE(round_trips(sent, "decode"), 1);
  EXPECT_EQ(round_trips(received, "bulk"), 0) << "it sent none";
  EXPECT_EQ(ValueOf(sent, "moebius_transport_unauthenticated_peers{transport=\"loopback\"}"), 0);
  EXPECT_EQ(MetricsErrors(sent), 0);
  EXPECT_EQ(MetricsErrors(received), 0);
}

TEST(TransportMetricsTest, APeerIsUnauthenticatedWhenItIsOfAnotherHostAndProvedNothing) {
  PeerInfo peer;
  peer.state = PeerState::kConnected;
  peer.facts.remote = "10.0.0.7:41200";
  EXPECT_TRUE(IsUnauthenticated(peer));
  peer.facts.remote = "expert-0.experts:7410";
  EXPECT_TRUE(IsUnauthenticated(peer));
  peer.state = PeerState::kSuspect;
  EXPECT_TRUE(IsUnauthenticated(peer));
  for (const char* here : {"127.0.0.1:41200", "[::1]:41200"}) {
    peer.facts.remote = here;
    EXPECT_FALSE(IsUnauthenticated(peer)) << here;
  }
  peer.facts.remote = "10.0.0.7:41200";
  peer.facts.identity = "spiffe://moebius/expert";
  EXPECT_FALSE(IsUnauthenticated(peer));
  peer.facts = LinkFacts();
  peer.facts.remote = "pid 7 of this host";
  peer.facts.same_host = true;
  EXPECT_FALSE(IsUnauthenticated(peer));
  peer.facts.same_host = false;
  for (const PeerState state : {PeerState::kConnecting, PeerState::kDead}) {
    peer.state = state;
    EXPECT_FALSE(IsUnauthenticated(peer));
  }
}

TEST(TransportMetricsTest, ShowPeersByStateAndTheirDeaths) {
  TransportWorld world(
      {"loopback", [](Reactor& reactor) { return std::make_unique<LoopbackMedium>(reactor); }});
  Node& host = world.Add(TransportWorld::SmallOptions("host"));
  Node& guest = world.Add(TransportWorld::SmallOptions("guest"));
  world.Connect(guest, world.Listen(host), "host");
  const auto peers = [](const std::string& scrape, const std::string& state) {
    return ValueOf(scrape, absl::StrCat("moebius_transport_peers{transport=\"loopback\",state=\"",
                                        state, "\"}"));
  };
  EXPECT_EQ(peers(Show(host), "connected"), 1);
  EXPECT_EQ(peers(Show(host), "dead"), 0);
  EXPECT_EQ(ValueOf(Show(host), "moebius_transport_links{transport=\"loopback\"}"), 3);
  const PeerId id = host.PeerNamed("guest");
  world.Remove(guest);
  ASSERT_TRUE(world.Until([&] { return host.StateOf(id) == PeerState::kDead; }));
  EXPECT_EQ(peers(Show(host), "connected"), 0);
  EXPECT_EQ(ValueOf(Show(host),
                    "moebius_transport_errors_total{transport=\"loopback\",reason=\"peer_died\"}"),
            1);
  EXPECT_EQ(ValueOf(Show(host), "moebius_transport_links{transport=\"loopback\"}"), 0);
}

}  // namespace
}  // namespace moebius
