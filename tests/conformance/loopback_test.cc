// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/loopback/loopback.h"

#include <memory>

#include "gtest/gtest.h"

#include "tests/conformance/transport_world.h"

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

MediumFactory Loopback() {
  return {"loopback", [](Reactor& reactor) { return std::make_unique<LoopbackMedium>(reactor); }};
}

INSTANTIATE_TEST_SUITE_P(Loopback, TransportConformance, ::testing::Values(Loopback()));

TEST(LoopbackTest, DeliversTheSendersOwnBytes) {
  TransportWorld world(Loopback());
  TransportOptions options = TransportWorld::SmallOptions("receiver");
  options.limits.max_payload_bytes = 256 << 10;
  options.window_bytes = {1 << 20, 1 << 20, 1 << 20};
  Node& receiver = world.Add(options);
  options.name = "sender";
  Node& sender = world.Add(options);
  const PeerId peer = world.Connect(sender, world.Listen(receiver), "receiver");
  const Message message = PositionMessage(Node::kOpenKind, 1, 100, 64);
  ASSERT_TRUE(sender.transport().Send(peer, Lane::kBulk, message).ok());
  ASSERT_TRUE(world.Until([&] { return receiver.num_deliveries() == 1; }));
  EXPECT_EQ(receiver.deliveries()[0].message->rows.data(), message.rows.data());
  // The padded metadata is all that was copied.
  EXPECT_EQ(receiver.transport().figures().lanes[2].copied_bytes, 64u);
}

}  // namespace
}  // namespace moebius
