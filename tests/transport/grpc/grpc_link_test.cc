// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/transport/grpc/grpc_log.h"
#include "moebius/transport/grpc/grpc_provider.h"
#include "moebius/transport/grpc/listen_socket.h"
#include "tests/transport/grpc/link_user.h"

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

TEST(GrpcLinkTest, CarriesFramesBothWaysInOrder) {
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_NE((*listener)->address().port, 0);
  LinkUser guest(*provider->Dial((*listener)->address(), kLane));
  for (int i = 0; i < 100; ++i) guest.Write(NumberedFrame(i, 1000 * i));
  ASSERT_TRUE(Until([&] { return host.num_links() == 1; }));
  ASSERT_TRUE(Until([&] { return host.link(0).num_frames() == 100; }));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Difference(host.link(0).frame(i), i, 1000 * i), "");
  for (int i = 0; i < 100; ++i) host.link(0).Write(NumberedFrame(i, 777));
  ASSERT_TRUE(Until([&] { return guest.num_frames() == 100; }));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Difference(guest.frame(i), i, 777), "");
  EXPECT_THAT(host.link(0).facts().remote, HasSubstr("127.0.0.1:"));
  EXPECT_EQ(host.link(0).facts().identity, "");
}

TEST(GrpcLinkTest, CloseDeliversWhatWasTakenAndEndsBothEndsWithOk) {
  for (const bool guest_closes : {true, false}) {
    auto provider = MakeProvider();
    Host host;
    auto listener = provider->Listen({"127.0.0.1", 0}, host);
    LinkUser guest(*provider->Dial((*listener)->address(), kLane));
    guest.Write(NumberedFrame(0, 10));
    ASSERT_TRUE(Until([&] { return host.num_links() == 1; }));
    LinkUser& writer = guest_closes ? guest : host.link(0);
    LinkUser& reader = guest_closes ? host.link(0) : guest;
    for (int i = 1; i <= 20; ++i) writer.Write(NumberedFrame(i, 100000));
    writer.Close();
    ASSERT_TRUE(Until([&] { return writer.closed() && reader.closed(); }));
    EXPECT_EQ(reader.num_frames(), guest_closes ? 21u : 20u);
    EXPECT_TRUE(reader.reason().ok()) << reader.reason();
    EXPECT_TRUE(writer.reason().ok()) << writer.reason();
  }
}

TEST(GrpcLinkTest, ADestroyedEndIsHeardOfAtOnce) {
  for (const bool guest_goes : {true, false}) {
    auto provider = MakeProvider();
    Host host;
    auto listener = provider->Listen({"127.0.0.1", 0}, host);
    auto guest = std::make_unique<LinkUser>(*provider->Dial((*listener)->address(), kLane));
    guest->Write(NumberedFrame(0, 10));
    ASSERT_TRUE(Until([&] { return host.num_links() == 1 && host.link(0).num_frames() == 1; }));
    if (guest_goes) {
      guest.reset();
      ASSERT_TRUE(Until([&] { return host.link(0).closed(); }));
      EXPECT_FALSE(host.link(0).reason().ok());
    } else {
      host.Clear();
      ASSERT_TRUE(Until([&] { return guest->closed(); }));
      EXPECT_FALSE(guest->reason().ok());
    }
  }
}

TEST(GrpcLinkTest, NobodyListeningIsUnavailableWithTheReason) {
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  const Address address = (*listener)->address();
  listener->reset();
  LinkUser guest(*provider->Dial(address, kLane));
  ASSERT_TRUE(Until([&] { return guest.closed(); }));
  EXPECT_EQ(guest.reason().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(guest.reason().message()), HasSubstr("refused"));
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
  EXPECT_GE(taken, 2u);
  EXPECT_LE(taken, 60u) << "30 MB";
  const size_t refusals = guest.num_writable();
  host.Resume();
  ASSERT_TRUE(Until([&] { return host.num_links() == 1 && host.link(0).num_frames() == taken; }));
  EXPECT_GT(guest.num_writable(), refusals);
  WireFrame copy = frame;
  EXPECT_TRUE(guest.link().TryWrite(copy));
}

TEST(GrpcLinkTest, AFrameAboveTheLimitEndsTheLinkAndNobodyElses) {
  GrpcOptions small;
  small.max_payload_bytes = 1000;
  auto strict = MakeProvider(small);
  auto lax = MakeProvider();
  Host host;
  auto listener = strict->Listen({"127.0.0.1", 0}, host);
  LinkUser good(*strict->Dial((*listener)->address(), kLane));
  LinkUser bad(*lax->Dial((*listener)->address(), kLane));
  good.Write(NumberedFrame(0, 1000));
  bad.Write(NumberedFrame(0, 1001));
  ASSERT_TRUE(Until([&] { return bad.closed(); }));
  EXPECT_EQ(bad.reason().code(), absl::StatusCode::kResourceExhausted) << bad.reason();
  good.Write(NumberedFrame(1, 1000));
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == 2; }));
}

TEST(GrpcLinkTest, LinksLiveOnWhenTheListenerHasGone) {
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  const Address address = (*listener)->address();
  LinkUser guest(*provider->Dial(address, kLane));
  guest.Write(NumberedFrame(0, 10));
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == 1; }));
  listener->reset();
  guest.Write(NumberedFrame(1, 10));
  EXPECT_TRUE(Until([&] { return host.TotalFrames() == 2; }));
  // The port is free at once.
  Host next;
  EXPECT_TRUE(provider->Listen(address, next).ok());
}

TEST(GrpcListenTest, ABusyPortNamesTheProcessThatHoldsIt) {
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  const auto second = provider->Listen((*listener)->address(), host);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("held by pid ", getpid(), " (")));
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
  auto provider = MakeProvider(options);
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  std::vector<OwnedFd> sockets;
  for (int i = 0; i < 20; ++i) sockets.push_back(ConnectTo((*listener)->address().port));
  ASSERT_TRUE(Until([&] { return provider->figures().connections.refused_for_address == 15; }));
  EXPECT_EQ(provider->figures().connections.open, 5u);
  EXPECT_EQ(provider->figures().connections.accepted, 5u);
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
  EXPECT_EQ(provider->figures().connections.accepted, 40u * 8 + 1);
}

TEST(GrpcListenTest, NothingIsLeftOfManyConnections) {
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  size_t descriptors = 0;
  for (int cycle = 0; cycle < 200; ++cycle) {
    {
      LinkUser guest(*provider->Dial((*listener)->address(), kLane));
      guest.Write(NumberedFrame(0, 5000));
      ASSERT_TRUE(Until([&] { return host.TotalFrames() == 1; }));
      if (cycle % 2 == 0) guest.Close();
    }
    host.Clear();
    ASSERT_TRUE(Until([&] {
      const GrpcFigures figures = provider->figures();
      return figures.num_streams == 0 && figures.connections.open == 0;
    }));
    if (cycle == 20) descriptors = NumDescriptors();
  }
  EXPECT_TRUE(Until([&] { return NumDescriptors() <= descriptors + 1; })) << NumDescriptors();
}

}  // namespace
}  // namespace moebius
