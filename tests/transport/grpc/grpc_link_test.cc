// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/transport/grpc/callback_threads.h"
#include "moebius/transport/grpc/grpc_log.h"
#include "moebius/transport/grpc/grpc_provider.h"
#include "moebius/transport/grpc/listen_socket.h"
#include "tests/support/metric_values.h"
#include "tests/transport/link_suite.h"
#include "tests/transport/link_user.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

constexpr Lane kLane = Lane::kControl;

std::unique_ptr<GrpcLinkProvider> MakeProvider(const GrpcOptions& options = {}) {
  auto provider = GrpcLinkProvider::Make(options, std::nullopt);
  EXPECT_TRUE(provider.ok()) << provider.status();
  return *std::move(provider);
}

// A plain TCP connection to 127.0.0.1.
OwnedFd ConnectTo(uint16_t port) {
  OwnedFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

INSTANTIATE_TEST_SUITE_P(Grpc, LinkSuite,
                         ::testing::Values(LinkMedium{
                             "grpc",
                             [](uint64_t max_payload_bytes) {
                               GrpcOptions options;
                               options.max_payload_bytes = max_payload_bytes;
                               return MakeProvider(options);
                             },
                             [](const LinkProvider& provider) {
                               const GrpcFigures figures =
                                   static_cast<const GrpcLinkProvider&>(provider).figures();
                               return figures.num_streams == 0 && figures.num_closing == 0 &&
                                      figures.connections.open == 0;
                             }}));

TEST(GrpcLinkTest, ThreadsThatRestAreCountedForTheProcessAndNoMessageMissesThem) {
  const auto first = std::make_unique<GrpcCallbackThreads>(1);
  EXPECT_GE(first->num_resting(), 1);
  EXPECT_EQ(GrpcCallbackThreads(1).num_resting(), 0) << "one polls, and must go on";
  EXPECT_EQ(GrpcCallbackThreads(0).num_resting(), 0);
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  LinkUser guest(*provider->Dial((*listener)->address(), kLane));
  constexpr size_t kFrames = 200;
  for (size_t i = 0; i < kFrames; ++i) guest.Write(NumberedFrame(i, 1000));
  EXPECT_TRUE(Until([&] { return host.TotalFrames() == kFrames; }));
}

TEST(GrpcLinkTest, ThreadsThatRestedPollAgain) {
  for (int round = 0; round < 20; ++round) {
    const GrpcCallbackThreads threads(1);
    EXPECT_GE(threads.num_resting(), 1) << round;
  }
}

TEST(GrpcLinkTest, SaysWhoIsAtTheOtherEnd) {
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  LinkUser guest(*provider->Dial((*listener)->address(), kLane));
  ASSERT_TRUE(Until([&] { return host.num_links() == 1; }));
  EXPECT_THAT(host.link(0).facts().remote, HasSubstr("127.0.0.1:"));
  EXPECT_EQ(host.link(0).facts().identity, "");
  EXPECT_FALSE(host.link(0).facts().same_host);
}

TEST(GrpcLinkTest, AReaderThatDoesNotReturnHoldsTheWriterBack) {
  GrpcOptions options;
  options.max_outstanding_bytes = 1 << 20;
  auto provider = MakeProvider(options);
  Host host;
  host.Pause();
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  LinkUser guest(*provider->Dial((*listener)->address(), kLane));
  const WireFrame frame = NumberedFrame(1, 500000);
  size_t taken = 0;
  // What is taken and not consumed: the queue, the windows of HTTP/2 and the sockets' buffers.
  for (int i = 0; i < 400; ++i) {
    WireFrame copy = frame;
    if (guest.link().TryWrite(copy)) {
      ++taken;
    } else {
      EXPECT_EQ(PayloadBytes(copy.payload), 500000u);  // left as it was
      absl::SleepFor(absl::Milliseconds(2));
    }
  }
  // The last one was refused, and whoever is refused is told when there is room again.
  size_t num_told = guest.num_writable();
  for (WireFrame copy = frame; guest.link().TryWrite(copy); copy = frame) {
    ++taken;
    num_told = guest.num_writable();
  }
  EXPECT_GE(taken, 2u);
  EXPECT_LE(taken, 60u) << "30 MB";
  host.Resume();
  ASSERT_TRUE(Until([&] { return host.num_links() == 1 && host.link(0).num_frames() == taken; }));
  EXPECT_TRUE(Until([&] { return guest.num_writable() > num_told; }));
  WireFrame copy = frame;
  EXPECT_TRUE(guest.link().TryWrite(copy));
}

TEST(GrpcListenTest, StaysOnThisHostWithoutTlsUnlessAllowed) {
  Host host;
  auto careful = MakeProvider();
  EXPECT_EQ(careful->Listen({"0.0.0.0", 0}, host).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(careful->exposure(), "this host only, without TLS");
  GrpcOptions options;
  options.allow_insecure = true;
  auto open = MakeProvider(options);
  EXPECT_TRUE(open->Listen({"0.0.0.0", 0}, host).ok());
  EXPECT_EQ(open->exposure(), "anybody on the network, without TLS");
}

TEST(GrpcListenTest, TakesIpv4Ipv6AndNames) {
  GrpcOptions options;
  options.allow_insecure = true;
  for (const auto& [listen, dial] :
       std::vector<std::pair<std::string, std::string>>{{"127.0.0.1", "127.0.0.1"},
                                                        {"::1", "::1"},
                                                        {"localhost", "localhost"},
                                                        {"::", "127.0.0.1"},
                                                        {"::", "::1"}}) {
    auto provider = MakeProvider(options);
    Host host;
    auto listener = provider->Listen({listen, 0}, host);
    ASSERT_TRUE(listener.ok()) << listen << ": " << listener.status();
    LinkUser guest(*provider->Dial({dial, (*listener)->address().port}, kLane));
    guest.Write(NumberedFrame(0, 10));
    EXPECT_TRUE(Until([&] { return host.TotalFrames() == 1; })) << listen << " " << dial;
  }
}

TEST(GrpcListenTest, RefusesWhatIsNoAddressOfThisHost) {
  auto provider = MakeProvider([] {
    GrpcOptions options;
    options.allow_insecure = true;
    return options;
  }());
  Host host;
  EXPECT_EQ(provider->Listen({"203.0.113.1", 0}, host).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(provider->Listen({"no-such-name.invalid", 0}, host).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(provider->Dial({"0.0.0.0", 1}, kLane).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GrpcListenTest, CapsConnectionsInAllAndPerAddress) {
  GrpcOptions options;
  options.max_connections = 8;
  options.max_connections_per_address = 5;
  options.silence_limit = absl::Minutes(10);
  std::atomic<int> told{0};
  options.on_refusal = [&told](const LogSource& source, const std::string& sentence) {
    EXPECT_EQ(source.peer, "127.0.0.1");
    if (source.kind == "handshake") return;  // those it took may end before the listener does
    EXPECT_EQ(source.kind, "data connection");
    EXPECT_EQ(sentence,
              "closed a connection of 127.0.0.1 to the data port at once: it takes 8 "
              "connections, 5 of one address");
    ++told;
  };
  auto provider = MakeProvider(options);
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  std::vector<OwnedFd> sockets;
  for (int i = 0; i < 20; ++i) sockets.push_back(ConnectTo((*listener)->address().port));
  ASSERT_TRUE(Until([&] { return provider->figures().connections.refused_for_address == 15; }));
  EXPECT_EQ(provider->figures().connections.open, 5u);
  EXPECT_EQ(provider->figures().connections.accepted, 5u);
  EXPECT_TRUE(Until([&] { return told == 15; }));
  Registry registry;
  const auto handle =
      registry.AddCollector([&](MetricWriter& writer) { provider->WriteMetrics(writer); });
  const std::string scrape = registry.Scrape();
  EXPECT_EQ(ValueOf(scrape, "moebius_rpc_connections{port=\"data\"}"), 5);
  EXPECT_EQ(ValueOf(scrape, "moebius_rpc_connections_refused_total{port=\"data\"}"), 15);
}

TEST(GrpcListenTest, KeepsNoMoreConnectionsThanDescriptorsAllow) {
  const auto bounded = [](uint64_t max_descriptors) {
    GrpcOptions options;
    BoundByDescriptors(max_descriptors, &options);
    return std::pair(options.max_connections, options.max_connections_per_address);
  };
  EXPECT_EQ(bounded(1024), std::pair(128u, 96u));
  EXPECT_EQ(bounded(4096), std::pair(512u, 256u));
  EXPECT_EQ(bounded(3), std::pair(6u, 3u)) << "two peers at least";
  EXPECT_EQ(bounded(8192), std::pair(1024u, 256u));
  EXPECT_EQ(bounded(~uint64_t{0}), std::pair(1024u, 256u)) << "raises nothing";
}

TEST(GrpcListenTest, CutsSilentConnectionsAndKeepsServing) {
  GrpcOptions options;
  options.silence_limit = absl::Milliseconds(300);
  auto provider = MakeProvider(options);
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  LinkUser early(*provider->Dial((*listener)->address(), kLane));
  early.Write(NumberedFrame(0, 10));
  std::vector<OwnedFd> sockets;
  for (int i = 0; i < 200; ++i) sockets.push_back(ConnectTo((*listener)->address().port));
  LinkUser late(*provider->Dial((*listener)->address(), kLane));
  late.Write(NumberedFrame(0, 10));
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == 2; }));
  ASSERT_TRUE(Until([&] { return provider->figures().connections.silent_cut == 200; }));
  ASSERT_TRUE(Until([&] { return provider->figures().connections.open == 2; }));
  // The other end sees it.
  char byte;
  EXPECT_LE(recv(sockets[0].fd(), &byte, 1, MSG_WAITALL), 1);
  // Links with a stream are not silent, however long they say nothing.
  early.Write(NumberedFrame(1, 10));
  EXPECT_TRUE(Until([&] { return host.TotalFrames() == 3; }));
}

TEST(GrpcListenTest, SurvivesPortScansAndGarbage) {
  GrpcOptions options;
  options.silence_limit = absl::Milliseconds(300);
  options.max_connections_per_address = 1000;
  auto provider = MakeProvider(options);
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  const uint16_t port = (*listener)->address().port;
  std::vector<std::string> lines;
  const std::string garbage[] = {"",
                                 "x",
                                 "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                 std::string("\x16\x03\x01\x02\x00\x01\x00", 7),
                                 "PRI * HT",
                                 "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                 "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string(200, '\xff'),
                                 std::string(100000, '\0')};
  std::vector<OwnedFd> held;
  for (int round = 0; round < 40; ++round) {
    for (const std::string& bytes : garbage) {
      OwnedFd socket = ConnectTo(port);
      send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (round % 2 == 0) held.push_back(std::move(socket));
    }
  }
  LinkUser good(*provider->Dial((*listener)->address(), kLane));
  good.Write(NumberedFrame(0, 10));
  EXPECT_TRUE(Until([&] { return host.TotalFrames() == 1; }));
  EXPECT_TRUE(Until([&] { return provider->figures().connections.open == 1; }));
  // On a busy machine the good one may be silent for too long before its stream, and comes again.
  EXPECT_GE(provider->figures().connections.accepted, 40u * 8 + 1);
}

}  // namespace
}  // namespace moebius
