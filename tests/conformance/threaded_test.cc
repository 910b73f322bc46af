// SPDX-License-Identifier: Apache-2.0
// The transport as processes use it: a reactor thread, real time, and callers on many threads.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "moebius/transport/loopback/loopback.h"
#include "tests/conformance/transport_world.h"

namespace moebius {
namespace {

class ThreadedWorld {
 public:
  Node& Add(const std::string& name) {
    nodes_.push_back(
        std::make_unique<Node>(TransportWorld::SmallOptions(name), provider_, reactor_));
    return *nodes_.back();
  }
  void Remove(Node& node) {
    std::erase_if(nodes_, [&node](const auto& owned) { return owned.get() == &node; });
  }
  static bool Until(const std::function<bool()>& condition) {
    for (int i = 0; i < 10000 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return condition();
  }

 private:
  Reactor reactor_{Clock::Monotonic()};
  LoopbackProvider provider_{reactor_};
  // Nodes end while the thread still runs, as in a process; then the thread, then what it uses.
  ReactorThread thread_{reactor_};
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST(ThreadedTransportTest, CallersOnManyThreadsLoseAndMixNothing) {
  ThreadedWorld world;
  Node& receiver = world.Add("receiver");
  const Address address = *receiver.transport().Listen({"127.0.0.1", 0});
  constexpr int kThreads = 4;
  constexpr uint64_t kEach = 100;
  std::vector<std::thread> threads;
  std::vector<Node*> senders;
  for (int i = 0; i < kThreads; ++i) senders.push_back(&world.Add(absl::StrCat("sender-", i)));
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Node& sender = *senders[static_cast<size_t>(i)];
      const PeerId peer = *sender.transport().Connect(address);
      ASSERT_TRUE(ThreadedWorld::Until([&] { return sender.PeerNamed("receiver") == peer; }));
      for (uint64_t step = 0; step < kEach;) {
        const auto sent = sender.transport().Send(peer, static_cast<Lane>(step % 3),
                                                  PositionMessage(Node::kOpenKind, step, 40, 64));
        if (sent.ok()) {
          ++step;
        } else {
          ASSERT_TRUE(absl::IsResourceExhausted(sent.status())) << sent.status();
          std::this_thread::yield();
        }
        sender.transport().figures();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(ThreadedWorld::Until([&] { return receiver.num_deliveries() == kThreads * kEach; }));
  for (const Delivery& delivery : receiver.deliveries()) {
    ASSERT_TRUE(delivery.message.ok());
    EXPECT_EQ(Difference(*delivery.message), "");
  }
}

TEST(ThreadedTransportTest, PeersComeAndGoUnderLoad) {
  ThreadedWorld world;
  Node& host = world.Add("host");
  const Address address = *host.transport().Listen({"127.0.0.1", 0});
  std::atomic<bool> stopping{false};
  std::thread prober([&] {
    while (!stopping) {
      for (const PeerInfo& peer : host.transport().peers()) {
        ReservationSpec spec;
        spec.source = peer.id;
        spec.key.kind = Node::kClosedKind;
        spec.max_message_bytes = 1024;
        spec.deadline = Clock::Monotonic().Now() + absl::Milliseconds(1);
        spec.on_delivery = [](const Delivery& delivery) { EXPECT_FALSE(delivery.message.ok()); };
        const auto reservation = host.transport().Reserve(spec);
        static_cast<void>(host.transport().Send(peer.id, Lane::kDecode,
                                                PositionMessage(Node::kOpenKind, 1, 2, 8)));
        if (reservation.ok()) host.transport().CancelReservation(*reservation);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  for (int cycle = 0; cycle < 60; ++cycle) {
    Node& guest = world.Add("guest");
    const PeerId peer = *guest.transport().Connect(address);
    ASSERT_TRUE(ThreadedWorld::Until([&] { return guest.PeerNamed("host") == peer; }));
    for (uint64_t step = 0; step < 5; ++step) {
      static_cast<void>(guest.transport().Send(peer, Lane::kBulk,
                                               PositionMessage(Node::kOpenKind, step, 64, 256)));
    }
    if (cycle % 3 == 0) guest.transport().Disconnect(peer, absl::UnavailableError("enough"));
    world.Remove(guest);
  }
  EXPECT_TRUE(ThreadedWorld::Until([&] { return host.transport().peers().empty(); }));
  stopping = true;
  prober.join();
  EXPECT_TRUE(ThreadedWorld::Until([&] { return host.transport().figures().num_links == 0; }));
}

}  // namespace
}  // namespace moebius
