// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/mutex.h"
#include "moebius/telemetry/registry.h"
#include "moebius/transport/shm/shm_provider.h"
#include "moebius/transport/shm/shm_socket.h"
#include "tests/transport/link_suite.h"
#include "tests/transport/link_user.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

constexpr Lane kLane = Lane::kControl;

std::unique_ptr<ShmLinkProvider> MakeProvider(const ShmOptions& options = {}) {
  auto provider = ShmLinkProvider::Make(options);
  EXPECT_TRUE(provider.ok()) << provider.status();
  return *std::move(provider);
}

size_t NumMappings() {
  std::ifstream file("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(file, line);) {
    count += absl::string_view(line).find("moebius-link") != absl::string_view::npos ? 1 : 0;
  }
  return count;
}

INSTANTIATE_TEST_SUITE_P(
    Shm, LinkSuite,
    ::testing::Values(LinkMedium{
        "shm",
        [](uint64_t max_payload_bytes) {
          ShmOptions options;
          options.max_payload_bytes = max_payload_bytes;
          return MakeProvider(options);
        },
        [](const LinkProvider& provider) {
          return static_cast<const ShmLinkProvider&>(provider).figures().num_links == 0;
        }}));

TEST(ShmLinkTest, SaysWhoIsAtTheOtherEnd) {
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  LinkUser guest(*provider->Dial((*listener)->address(), kLane));
  ASSERT_TRUE(Until([&] { return host.num_links() == 1; }));
  EXPECT_TRUE(guest.facts().same_host);
  EXPECT_TRUE(host.link(0).facts().same_host);
  EXPECT_EQ(host.link(0).facts().remote, absl::StrCat("pid ", getpid(), " of this host"));
  EXPECT_EQ(guest.facts().remote, absl::StrCat("127.0.0.1:", (*listener)->address().port));
}

TEST(ShmLinkTest, CopiesEachByteOnceInAndOnceOut) {
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  LinkUser guest(*provider->Dial((*listener)->address(), kLane));
  for (int i = 0; i < 10; ++i) guest.Write(NumberedFrame(i, 1 << 20));
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == 10; }));
  const ShmFigures figures = provider->figures();
  EXPECT_EQ(figures.frames_sent, 10u);
  EXPECT_EQ(figures.frames_received, 10u);
  EXPECT_EQ(figures.copied_bytes, 2u * (10 << 20));
}

TEST(ShmLinkTest, ALinkThatIsClosedAndDestroyedAtOnceDeliversAll) {
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  auto guest = std::make_unique<LinkUser>(*provider->Dial((*listener)->address(), kLane));
  guest->Write(NumberedFrame(0, 10));
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == 1; }));
  host.Pause();
  for (int i = 1; i <= 10; ++i) guest->Write(NumberedFrame(i, 10000));
  guest->Close();
  guest.reset();
  host.Resume();
  ASSERT_TRUE(Until([&] { return host.link(0).closed(); }));
  EXPECT_EQ(host.TotalFrames(), 11u);
  EXPECT_TRUE(host.link(0).reason().ok()) << host.link(0).reason();
}

TEST(ShmLinkTest, AReaderThatDoesNotReturnHoldsTheWriterBack) {
  auto provider = MakeProvider();
  auto others = MakeProvider();  // whose thread is not held up
  Host host;
  host.Pause();
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  LinkUser guest(*others->Dial((*listener)->address(), kLane));
  const WireFrame frame = NumberedFrame(1, 500000);
  size_t taken = 0;
  // The ring's two MiB, and the one that is being delivered.
  const auto is_refused = [&] {
    WireFrame copy = frame;
    if (guest.link().TryWrite(copy)) {
      ++taken;
      return false;
    }
    EXPECT_EQ(PayloadBytes(copy.payload), 500000u);  // left as it was
    return taken >= 5;
  };
  ASSERT_TRUE(Until(is_refused));
  EXPECT_EQ(taken, 5u);
  EXPECT_EQ(guest.num_writable(), 0u);
  host.Resume();
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == taken; }));
  ASSERT_TRUE(Until([&] { return guest.num_writable() == 1; }));
  WireFrame copy = frame;
  EXPECT_TRUE(guest.link().TryWrite(copy));
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == taken + 1; }));
  EXPECT_EQ(guest.num_writable(), 1u);
}

TEST(ShmLinkTest, AFrameAboveTheReadersLimitIsRefusedWithBothNumbers) {
  ShmOptions small;
  small.max_payload_bytes = 1000;
  auto strict = MakeProvider(small);
  auto lax = MakeProvider();
  Host host;
  auto listener = strict->Listen({"127.0.0.1", 0}, host);
  LinkUser bad(*lax->Dial((*listener)->address(), kLane));
  bad.Write(NumberedFrame(0, 1001));
  ASSERT_TRUE(Until([&] { return bad.closed(); }));
  EXPECT_THAT(std::string(bad.reason().message()), HasSubstr("1001 bytes, the limit is 1000"));
}

TEST(ShmLinkTest, AFrameAboveTheWritersLimitEndsTheLink) {
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  LinkUser guest(*provider->Dial((*listener)->address(), kLane));
  guest.Write(NumberedFrame(0, 10));
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == 1; }));
  guest.Write(NumberedFrame(1, (1 << 20) + 1));
  ASSERT_TRUE(Until([&] { return guest.closed(); }));
  EXPECT_EQ(guest.reason().code(), absl::StatusCode::kResourceExhausted) << guest.reason();
  ASSERT_TRUE(Until([&] { return host.link(0).closed(); }));
  EXPECT_EQ(host.link(0).reason().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(host.TotalFrames(), 1u);
}

TEST(ShmLinkTest, RingsThatAreTooSmallForTheListenersFramesAreRefused) {
  ShmOptions small;
  small.max_payload_bytes = 1000;
  auto dialer = MakeProvider(small);
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  LinkUser guest(*dialer->Dial((*listener)->address(), kLane));
  ASSERT_TRUE(Until([&] { return guest.closed(); }));
  EXPECT_EQ(guest.reason().code(), absl::StatusCode::kInvalidArgument) << guest.reason();
  EXPECT_EQ(host.num_links(), 0u);
}

TEST(ShmListenTest, APortIsOneForAllLoopbackAddresses) {
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"::1", 0}, host);
  ASSERT_TRUE(listener.ok()) << listener.status();
  for (const char* name : {"127.0.0.1", "127.0.0.2", "::1", "localhost"}) {
    const size_t before = host.TotalFrames();
    LinkUser guest(*provider->Dial({name, (*listener)->address().port}, kLane));
    guest.Write(NumberedFrame(0, 10));
    EXPECT_TRUE(Until([&] { return host.TotalFrames() == before + 1; })) << name;
  }
}

TEST(ShmListenTest, KnowsNoOtherHost) {
  auto provider = MakeProvider();
  Host host;
  EXPECT_EQ(provider->Listen({"0.0.0.0", 0}, host).status().code(),
            absl::StatusCode::kPermissionDenied);
  for (const Address& address :
       {Address{"10.0.0.1", 5}, Address{"0.0.0.0", 5}, Address{"some.host", 5},
        Address{"127.0.0.1", 0}, Address{"fe80::1", 5}}) {
    EXPECT_EQ(provider->Dial(address, kLane).status().code(), absl::StatusCode::kInvalidArgument)
        << FormatAddress(address);
  }
}

TEST(ShmListenTest, RefusesOptionsThatCannotWorkTogether) {
  ShmOptions options;
  options.max_payload_bytes = 0;
  EXPECT_EQ(ShmLinkProvider::Make(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.max_payload_bytes = uint64_t{1} << 40;
  EXPECT_EQ(ShmLinkProvider::Make(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.max_payload_bytes = 1 << 20;
  options.ring_bytes = 1 << 20;  // less than two frames
  EXPECT_EQ(ShmLinkProvider::Make(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.ring_bytes = 3 << 20;
  EXPECT_TRUE(ShmLinkProvider::Make(options).ok());
  options.max_ring_bytes = 2 << 20;  // would refuse itself
  EXPECT_EQ(ShmLinkProvider::Make(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ShmListenTest, CapsConnectionsAndTakesOthersWhenSomeHaveGone) {
  ShmOptions options;
  options.max_connections = 5;
  auto provider = MakeProvider(options);
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  std::vector<std::unique_ptr<LinkUser>> guests;
  for (int i = 0; i < 8; ++i) {
    guests.push_back(std::make_unique<LinkUser>(*provider->Dial((*listener)->address(), kLane)));
  }
  const auto num_closed = [&] {
    return std::count_if(guests.begin(), guests.end(), [](auto& guest) { return guest->closed(); });
  };
  ASSERT_TRUE(Until([&] { return num_closed() == 3 && host.num_links() == 5; }));
  EXPECT_EQ(provider->figures().crowded, 3u);
  for (const auto& guest : guests) {
    if (!guest->closed()) continue;
    EXPECT_EQ(guest->reason().code(), absl::StatusCode::kResourceExhausted) << guest->reason();
  }
  guests.clear();
  ASSERT_TRUE(Until([&] { return provider->figures().num_links == 0; }));
  LinkUser next(*provider->Dial((*listener)->address(), kLane));
  next.Write(NumberedFrame(0, 10));
  EXPECT_TRUE(Until([&] { return host.TotalFrames() == 1; }));
}

TEST(ShmListenTest, KeepsNoMoreConnectionsThanDescriptorsAllow) {
  const auto bounded = [](uint64_t max_descriptors) {
    ShmOptions options;
    BoundByDescriptors(max_descriptors, &options);
    return std::pair(options.max_connections, options.max_connections_per_process);
  };
  EXPECT_EQ(bounded(1024), std::pair(85u, 63u));
  EXPECT_EQ(bounded(4096), std::pair(341u, 255u));
  EXPECT_EQ(bounded(3), std::pair(6u, 3u)) << "two peers at least";
  EXPECT_EQ(bounded(12288), std::pair(1024u, 256u));
  EXPECT_EQ(bounded(~uint64_t{0}), std::pair(1024u, 256u)) << "raises nothing";
}

TEST(ShmListenTest, ALinkTakesAsManyDescriptorsAtEachEndAsItIsCountedFor) {
  const auto num_descriptors = [] {
    std::filesystem::directory_iterator all("/proc/self/fd");
    return static_cast<uint64_t>(std::distance(begin(all), end(all)));
  };
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  const uint64_t before = num_descriptors();
  std::vector<std::unique_ptr<LinkUser>> guests;
  for (int i = 0; i < 10; ++i) {
    guests.push_back(std::make_unique<LinkUser>(*provider->Dial((*listener)->address(), kLane)));
  }
  ASSERT_TRUE(Until([&] { return host.num_links() == 10; }));
  EXPECT_TRUE(Until([&] {
    return num_descriptors() - before == 10 * 2 * kDescriptorsPerShmConnection;
  })) << num_descriptors() - before;
}

// What a listener has told and counted of those that it closed.
class ShmRefusalTest : public ::testing::Test {
 protected:
  ShmOptions Telling(ShmOptions options) {
    options.on_refusal = [this](const LogSource& source, const std::string& text) {
      MutexLock lock(mutex_);
      told_.push_back(absl::StrCat(source.peer, "|", source.kind, "|", text));
    };
    return options;
  }
  std::vector<std::string> told() {
    MutexLock lock(mutex_);
    return told_;
  }
  static std::string MetricsOf(const LinkProvider& provider) {
    Registry registry;
    const auto handle =
        registry.AddCollector([&](MetricWriter& writer) { provider.WriteMetrics(writer); });
    return registry.Scrape();
  }

  Mutex mutex_;
  std::vector<std::string> told_ MOEBIUS_GUARDED_BY(mutex_);
};

TEST_F(ShmRefusalTest, AProcessHasNoMoreConnectionsThanItsShare) {
  ShmOptions options;
  options.max_connections_per_process = 3;
  auto provider = MakeProvider(Telling(options));
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  std::vector<std::unique_ptr<LinkUser>> guests;
  for (int i = 0; i < 5; ++i) {
    guests.push_back(std::make_unique<LinkUser>(*provider->Dial((*listener)->address(), kLane)));
  }
  const auto num_closed = [&] {
    return std::count_if(guests.begin(), guests.end(), [](auto& guest) { return guest->closed(); });
  };
  ASSERT_TRUE(Until([&] { return num_closed() == 2 && host.num_links() == 3; }));
  for (const auto& guest : guests) {
    if (!guest->closed()) continue;
    EXPECT_EQ(guest->reason().code(), absl::StatusCode::kResourceExhausted) << guest->reason();
    EXPECT_THAT(std::string(guest->reason().message()), HasSubstr("3 connections of this process"));
  }
  const std::string self = absl::StrCat("process ", getpid());
  const std::string sentence =
      absl::StrCat(self, "|shm connection|closed a connection of ", self,
                   " to the shm port at once: it takes 1024 connections, 3 of one process");
  EXPECT_EQ(told(), std::vector<std::string>(2, sentence));
  const std::string metrics = MetricsOf(*provider);
  EXPECT_THAT(metrics, HasSubstr("moebius_rpc_connections{port=\"shm\"} 3\n"));
  EXPECT_THAT(metrics, HasSubstr("moebius_rpc_connections_refused_total{port=\"shm\"} 2\n"));
  // A share that was given back is there again.
  guests.clear();
  ASSERT_TRUE(Until([&] { return provider->figures().open == 0; }));
  LinkUser next(*provider->Dial((*listener)->address(), kLane));
  next.Write(NumberedFrame(0, 10));
  EXPECT_TRUE(Until([&] { return host.TotalFrames() == 1; }));
}

TEST_F(ShmRefusalTest, WhoNeverSpokeIsToldAndCountedAsAHandshake) {
  ShmOptions options;
  options.silence_limit = absl::Milliseconds(50);
  auto provider = MakeProvider(Telling(options));
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  const auto silent = ConnectShmSocket((*listener)->address());
  ASSERT_TRUE(silent.ok() && silent->has_value()) << silent.status();
  ASSERT_TRUE(Until([&] { return told().size() == 1; }));
  EXPECT_EQ(told().front(),
            absl::StrCat("process ", getpid(), "|shm handshake|a connection of process ", getpid(),
                         " to the shm port ended before a peer spoke: it said nothing"));
  EXPECT_THAT(
      MetricsOf(*provider),
      HasSubstr("moebius_transport_errors_total{transport=\"shm\",reason=\"handshake\"} 1\n"));
}

TEST(ShmListenTest, CutsSilentConnectionsAndKeepsServing) {
  ShmOptions options;
  options.silence_limit = absl::Milliseconds(300);
  auto provider = MakeProvider(options);
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  LinkUser early(*provider->Dial((*listener)->address(), kLane));
  early.Write(NumberedFrame(0, 10));
  std::vector<OwnedFd> silent;
  for (int i = 0; i < 200; ++i) {
    auto socket = ConnectShmSocket((*listener)->address());
    ASSERT_TRUE(socket.ok() && socket->has_value()) << socket.status();
    silent.push_back(**std::move(socket));
  }
  LinkUser late(*provider->Dial((*listener)->address(), kLane));
  late.Write(NumberedFrame(0, 10));
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == 2; }));
  // The oldest made room for those that came after; time took the rest.
  ASSERT_TRUE(Until([&] { return provider->figures().silent_cut == 200; }));
  for (const OwnedFd& socket : silent) {
    const auto end = ReceiveEnd(socket.fd());
    EXPECT_TRUE(end.has_value() && end->ok());
  }
  // Links are not silent, however long they say nothing.
  early.Write(NumberedFrame(1, 10));
  EXPECT_TRUE(Until([&] { return host.TotalFrames() == 3; }));
}

TEST(ShmListenTest, NoMappingStaysAfterALinkEvenOneThatNeverOpened) {
  auto provider = MakeProvider();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  for (int cycle = 0; cycle < 100; ++cycle) {
    LinkUser guest(*provider->Dial((*listener)->address(), kLane));
    // Some are gone before they are open.
    if (cycle % 2 == 0) continue;
    guest.Write(NumberedFrame(0, 5000));
    ASSERT_TRUE(Until([&] { return host.TotalFrames() == 1; }));
    EXPECT_GT(NumMappings(), 0u);
    host.Clear();
  }
  EXPECT_TRUE(Until([&] {
    host.Clear();
    return provider->figures().num_links == 0 && NumMappings() == 0;
  }));
}

}  // namespace
}  // namespace moebius
