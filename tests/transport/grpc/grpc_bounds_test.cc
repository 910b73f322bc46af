// SPDX-License-Identifier: Apache-2.0
// What the gRPC transport may cost: memory, and copies.
#include <arpa/inet.h>
#include <grpc/grpc.h>
#include <ifaddrs.h>
#include <malloc.h>
#include <net/if.h>
#include <netinet/in.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/transport/grpc/grpc_frame.h"
#include "moebius/transport/grpc/grpc_provider.h"
#include "moebius/transport/transport.h"
#include "tests/support/skip.h"
#include "tests/transport/link_user.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

constexpr Lane kLane = Lane::kControl;

// Bytes that the process's allocator has given out and not got back.
uint64_t LiveBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(GrpcMemoryTest, BothEndsHaveTheQuotaOfTheOptions) {
  GrpcOptions options;
  options.max_connections = 10;
  EXPECT_GE(GrpcLinkBytes(options), options.max_outstanding_bytes + 3 * options.max_payload_bytes);
  const auto bounded = WithQuota(options);
  ASSERT_TRUE(bounded.ok()) << bounded.status();
  EXPECT_EQ(bounded->max_memory_bytes, 10 * GrpcLinkBytes(options));
  const grpc::ChannelArguments arguments = BuildChannelArguments(*bounded);
  bool has_quota = false;
  const grpc_channel_args channel_args = arguments.c_channel_args();
  for (size_t i = 0; i < channel_args.num_args; ++i) {
    has_quota |= std::string(channel_args.args[i].key) == GRPC_ARG_RESOURCE_QUOTA;
  }
  EXPECT_TRUE(has_quota);
  // A quota that is shared stays the one that it is.
  EXPECT_EQ(WithQuota(*bounded)->quota, bounded->quota);
}

TEST(GrpcMemoryTest, TooLittleForTwoPeersIsRefusedAndJustEnoughWorks) {
  GrpcOptions options;
  options.max_memory_bytes = MinGrpcMemoryBytes(options) - 1;
  const auto refused = GrpcLinkProvider::Make(options, std::nullopt);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(HintOf(refused.status()), HasSubstr("memory"));
  options.max_memory_bytes += 1;
  auto provider = GrpcLinkProvider::Make(options, std::nullopt);
  ASSERT_TRUE(provider.ok()) << provider.status();
  Host host;
  auto listener = (*provider)->Listen({"127.0.0.1", 0}, host);
  std::vector<std::unique_ptr<LinkUser>> guests;
  for (size_t i = 0; i < kNumLanes; ++i) {
    guests.push_back(std::make_unique<LinkUser>(*(*provider)->Dial((*listener)->address(), kLane)));
  }
  for (int number = 0; number < 5; ++number) {
    for (auto& guest : guests) guest->Write(NumberedFrame(number, options.max_payload_bytes));
  }
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == 5 * kNumLanes; }));
  for (auto& guest : guests) EXPECT_FALSE(guest->closed()) << guest->reason();
}

TEST(GrpcMemoryTest, AThousandConnectionsThatCameAndWentLeaveNoMemory) {
  auto provider = GrpcLinkProvider::Make(GrpcOptions(), std::nullopt);
  ASSERT_TRUE(provider.ok()) << provider.status();
  Host host;
  auto listener = (*provider)->Listen({"127.0.0.1", 0}, host);
  uint64_t live_bytes = 0;
  constexpr int kWarmCycles = 400;
  constexpr int kCycles = 1000;
  for (int cycle = 0; cycle < kWarmCycles + kCycles; ++cycle) {
    {
      LinkUser guest(*(*provider)->Dial((*listener)->address(), kLane));
      guest.Write(NumberedFrame(0, 5000));
      ASSERT_TRUE(Until([&] { return host.TotalFrames() == 1; })) << cycle;
      if (cycle % 2 == 0) guest.Close();
    }
    host.Clear();
    ASSERT_TRUE(Until([&] {
      const GrpcFigures figures = (*provider)->figures();
      return figures.num_streams == 0 && figures.connections.open == 0;
    })) << cycle;
    if (cycle == kWarmCycles) live_bytes = LiveBytes();
  }
  // The allocator counts as live what threads keep for their next allocations: that grows for a
  // while. A lost channel, call or stream is more than 512 bytes and passes the slack.
  constexpr uint64_t kSlackBytes = 512 << 10;
  EXPECT_TRUE(Until([&] { return LiveBytes() <= live_bytes + kSlackBytes; }))
      << LiveBytes() << " bytes live, " << live_bytes << " after the first " << kWarmCycles;
}

// Waits for its peer.
class Watcher final : public PeerWatcher {
 public:
  void OnPeerState(const PeerInfo& peer) override {
    if (peer.state != PeerState::kConnected) return;
    MutexLock lock(mutex_);
    peer_ = peer.id;
  }
  PeerId peer() const {
    MutexLock lock(mutex_);
    return peer_;
  }

 private:
  mutable Mutex mutex_;
  PeerId peer_ MOEBIUS_GUARDED_BY(mutex_);
};

// One process's transport over gRPC.
struct Node {
  explicit Node(const std::string& name) {
    FrameLimitsConfig limits;
    limits.max_rows = 4096;
    limits.max_row_width = 1024;
    TransportOptions options;
    options.name = name;
    options.limits = *BuildFrameLimits(limits);
    options.window_bytes = {4 << 20, 4 << 20, 8 << 20};
    transport = *Transport::Make(options, *provider, reactor, watcher);
  }
  LaneFigures Bulk() const { return transport->figures().lanes[LaneIndex(Lane::kBulk)]; }

  Watcher watcher;
  Reactor reactor{Clock::Monotonic()};
  std::unique_ptr<GrpcLinkProvider> provider = *GrpcLinkProvider::Make(GrpcOptions(), std::nullopt);
  ReactorThread thread{reactor};
  std::unique_ptr<Transport> transport;
};

TEST(GrpcCopiesTest, AtMostOneCopyOfAPayloadByteAtEachEnd) {
  Node sender("sender");
  Node receiver("receiver");
  Mutex mutex;
  std::vector<Message> arrived;
  ReservationSpec spec;
  spec.scope = ReservationScope::kKind;
  spec.key.kind = kFirstMessageKind;
  spec.max_message_bytes = 16 << 20;
  spec.max_messages = 4;
  spec.on_delivery = [&](Delivery delivery) {
    MutexLock lock(mutex);
    if (delivery.message.ok()) arrived.push_back(*std::move(delivery.message));
  };
  ASSERT_TRUE(receiver.transport->Reserve(spec).ok());
  const auto address = receiver.transport->Listen({"127.0.0.1", 0});
  ASSERT_TRUE(address.ok()) << address.status();
  ASSERT_TRUE(sender.transport->Connect(*address).ok());
  ASSERT_TRUE(Until([&] { return sender.watcher.peer() != PeerId(); }));

  // One of several frames (4 MiB and more), one of a single frame, and one with odd metadata.
  uint64_t payload_bytes = 0;
  size_t num_sent = 0;
  for (const uint64_t num_rows : {4096u, 1024u, 100u}) {
    BytesBuilder rows(num_rows * 1024);
    for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<uint8_t>(i * 7 + i / 256);
    Message message;
    message.key.kind = kFirstMessageKind;
    message.num_rows = num_rows;
    message.row_width = 256;
    message.dtype = DType::kF32;
    message.metadata = SharedBytes::Copy(absl::string_view("some metadata"));
    message.rows = std::move(rows).Share();
    payload_bytes += MessageBytes(message);
    const SharedBytes sent_rows = message.rows;
    ASSERT_TRUE(sender.transport->Send(sender.watcher.peer(), Lane::kBulk, message).ok());
    ++num_sent;
    ASSERT_TRUE(Until([&] {
      MutexLock lock(mutex);
      return arrived.size() == num_sent;
    }));
    MutexLock lock(mutex);
    EXPECT_EQ(arrived.back().rows.view(), sent_rows.view());
  }
  EXPECT_EQ(sender.Bulk().sent.payload_bytes, payload_bytes);
  EXPECT_EQ(receiver.Bulk().received.payload_bytes, payload_bytes);
  // gRPC's slices share the sender's bytes (GrpcFrameTest), so what is counted is all there is.
  EXPECT_EQ(sender.Bulk().copied_bytes, 0u);
  EXPECT_LE(receiver.Bulk().copied_bytes, payload_bytes);
}

// A link-local address of this machine with its zone, "fe80::1%eth0"; empty where there is none.
std::string ScopedAddress() {
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return "";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(interfaces, freeifaddrs);
  for (const ifaddrs* one = interfaces; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET6) continue;
    if ((one->ifa_flags & IFF_UP) == 0) continue;
    const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
    if (!IN6_IS_ADDR_LINKLOCAL(&address)) continue;
    char text[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, &address, text, sizeof(text));
    return absl::StrCat(text, "%", one->ifa_name);
  }
  return "";
}

TEST(GrpcListenTest, TakesAnIpv6AddressWithItsZone) {
  const std::string scoped = ScopedAddress();
  if (scoped.empty()) MOEBIUS_SKIP("this machine has no link-local IPv6 address");
  const auto address = ParseAddress(absl::StrCat("[", scoped, "]:0"));
  ASSERT_TRUE(address.ok()) << address.status();
  GrpcOptions options;
  options.allow_insecure = true;
  auto provider = *GrpcLinkProvider::Make(options, std::nullopt);
  Host host;
  auto listener = provider->Listen(*address, host);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ((*listener)->address().host, scoped);
  LinkUser guest(*provider->Dial((*listener)->address(), kLane));
  guest.Write(NumberedFrame(0, 10));
  EXPECT_TRUE(Until([&] { return host.TotalFrames() == 1; })) << guest.reason();
  // The connection counts once, whatever its zone is called.
  EXPECT_EQ(provider->figures().connections.open, 1u);
}

}  // namespace
}  // namespace moebius
