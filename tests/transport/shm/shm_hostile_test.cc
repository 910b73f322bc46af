// SPDX-License-Identifier: Apache-2.0
// A peer that speaks the handshake and then does what no good peer would.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "moebius/transport/shm/bell.h"
#include "moebius/transport/shm/ring.h"
#include "moebius/transport/shm/shared_segment.h"
#include "moebius/transport/shm/shm_provider.h"
#include "moebius/transport/shm/shm_socket.h"
#include "tests/transport/link_user.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

constexpr Lane kLane = Lane::kBulk;
constexpr uint64_t kMaxPayload = 4096;
constexpr uint64_t kRingBytes = 4 * kSegmentPageBytes;

ShmOptions SmallOptions() {
  ShmOptions options;
  options.max_payload_bytes = kMaxPayload;
  return options;
}

// The dialing end of a link, with its memory in the hands of the test.
class RawPeer {
 public:
  explicit RawPeer(const Address& address) {
    auto socket = ConnectShmSocket(address);
    EXPECT_TRUE(socket.ok() && socket->has_value()) << socket.status();
    socket_ = **std::move(socket);
    auto created = SharedSegment::Create(kRingBytes);
    EXPECT_TRUE(created.ok()) << created.status();
    segment_ = std::move(created->segment);
    handover_.ring_bytes = kRingBytes;
    handover_.memory = std::move(created->memory);
    auto own_bell = Bell::Make();
    auto their_bell = Bell::Make();
    EXPECT_TRUE(own_bell.ok() && their_bell.ok());
    own_bell_ = std::move(own_bell->bell);
    their_bell_ = std::move(their_bell->bell);
    handover_.dialer_bell = std::move(own_bell->for_other_end);
    handover_.listener_bell = std::move(their_bell->for_other_end);
  }
  // What is handed over can be changed before.
  ShmHandover& handover() { return handover_; }
  void HandOver() { EXPECT_TRUE(SendHandover(socket_.fd(), handover_).ok()); }
  int socket() const { return socket_.fd(); }
  void RingBell() { their_bell_.Ring(); }
  // All descriptors of its bells that this end has.
  std::vector<int> BellDescriptors() const {
    return {own_bell_.fd(), their_bell_.fd(), handover_.dialer_bell.fd(),
            handover_.listener_bell.fd()};
  }
  // To be written by this end, and to be read.
  RingMemory out() const { return segment_->ring(0); }
  RingMemory in() const { return segment_->ring(1); }
  // What the listening end has said when it ended the link.
  absl::Status End() {
    std::optional<absl::Status> end;
    EXPECT_TRUE(Until([&] {
      end = ReceiveEnd(socket_.fd());
      return end.has_value();
    }));
    return end.value_or(absl::OkStatus());
  }

 private:
  OwnedFd socket_;
  std::unique_ptr<SharedSegment> segment_;
  Bell own_bell_;
  Bell their_bell_;
  ShmHandover handover_;
};

class ShmHostileTest : public ::testing::Test {
 protected:
  ShmHostileTest() {
    provider_ = *ShmLinkProvider::Make(SmallOptions());
    listener_ = *provider_->Listen({"127.0.0.1", 0}, host_);
  }
  Address address() const { return listener_->address(); }
  // A link of others goes on whatever happened.
  void ExpectOthersAreServed() {
    const size_t before = host_.TotalFrames();
    LinkUser good(*provider_->Dial(address(), kLane));
    good.Write(NumberedFrame(1, 100));
    EXPECT_TRUE(Until([&] { return host_.TotalFrames() > before; }));
  }

  std::unique_ptr<ShmLinkProvider> provider_;
  Host host_;
  std::unique_ptr<LinkListener> listener_;
};

TEST_F(ShmHostileTest, LiesInTheWritersWordsEndTheLinkWithTheReason) {
  const struct {
    std::function<void(const RingMemory&)> lie;
    absl::StatusCode code;
  } cases[] = {
      {[](const RingMemory& ring) { ring.control->written.store(~uint64_t{0}); },
       absl::StatusCode::kDataLoss},
      {[](const RingMemory& ring) { ring.control->written.store(1); }, absl::StatusCode::kDataLoss},
      {[](const RingMemory& ring) { ring.control->written.store(2 * kRingBytes); },
       absl::StatusCode::kDataLoss},
      {[](const RingMemory& ring) {
         std::memset(ring.data, 0xff, 8);
         ring.control->written.store(RecordBytes(0));
       },
       absl::StatusCode::kResourceExhausted},
      {[](const RingMemory& ring) {
         const uint64_t size = kMaxPayload;
         std::memcpy(ring.data, &size, sizeof(size));
         ring.control->written.store(RecordBytes(0));
       },
       absl::StatusCode::kDataLoss},
  };
  for (const auto& wrong : cases) {
    RawPeer peer(address());
    wrong.lie(peer.out());
    peer.HandOver();
    EXPECT_EQ(peer.End().code(), wrong.code);
    ASSERT_TRUE(Until([&] { return host_.num_links() == 1 && host_.link(0).closed(); }));
    EXPECT_EQ(host_.link(0).reason().code(), wrong.code) << host_.link(0).reason();
    host_.Clear();
  }
  ExpectOthersAreServed();
}

TEST_F(ShmHostileTest, LiesInTheReadersWordsEndTheLinkWhenItIsWrittenTo) {
  RawPeer peer(address());
  peer.HandOver();
  ASSERT_TRUE(Until([&] { return host_.num_links() == 1; }));
  LinkUser& end = host_.link(0);
  peer.in().control->consumed.store(uint64_t{1} << 50);
  ASSERT_TRUE(Until([&] {
    WireFrame frame = NumberedFrame(0, 4000);
    end.link().TryWrite(frame);
    return end.closed();
  }));
  EXPECT_EQ(end.reason().code(), absl::StatusCode::kDataLoss) << end.reason();
  EXPECT_EQ(peer.End().code(), absl::StatusCode::kDataLoss);
  ExpectOthersAreServed();
}

TEST_F(ShmHostileTest, AFrameThatIsChangedAfterItWasTakenIsWhatItWas) {
  RawPeer peer(address());
  RingWriter writer(peer.out());
  ASSERT_TRUE(*writer.TryWrite(NumberedFrame(7, 4000)));
  peer.HandOver();
  ASSERT_TRUE(Until([&] { return host_.TotalFrames() == 1; }));
  std::memset(peer.out().data, 0xff, kRingBytes);
  EXPECT_EQ(Difference(host_.link(0).frame(0), 7, 4000), "");
}

TEST_F(ShmHostileTest, ScribblingWhileFramesFlowHurtsNobodyElse) {
  LinkUser good(*provider_->Dial(address(), kLane));
  good.Write(NumberedFrame(0, 100));
  ASSERT_TRUE(Until([&] { return host_.num_links() == 1 && host_.TotalFrames() == 1; }));
  uint64_t good_frames = 1;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    RawPeer peer(address());
    peer.HandOver();
    ASSERT_TRUE(Until([&] { return host_.num_links() == seed + 2; }));
    std::atomic<bool> stopping{false};
    std::thread scribbler([&] {
      Random random(seed);
      // Its own view of the memory, as another process has.
      const auto view = SharedSegment::Map(peer.handover().memory, kRingBytes);
      ASSERT_TRUE(view.ok()) << view.status();
      uint8_t* const base = reinterpret_cast<uint8_t*>((*view)->ring(0).control);
      while (!stopping.load()) {
        // Anywhere in the control words and both rings; half of the strokes in the words.
        const uint64_t end = random.Below(2) == 0 ? 256 : kSegmentPageBytes + 2 * kRingBytes;
        base[random.Below(end)] = static_cast<uint8_t>(random.Bits());
        if (random.Below(16) == 0) peer.RingBell();
      }
    });
    RingWriter writer(peer.out());
    LinkUser& end = host_.link(seed + 1);
    for (int i = 0; i < 200 && !end.closed(); ++i) {
      if (!writer.TryWrite(NumberedFrame(i, 4000)).ok()) break;
      peer.RingBell();
      WireFrame back = NumberedFrame(i, 2000);
      end.link().TryWrite(back);
    }
    good.Write(NumberedFrame(good_frames, 4000));
    ++good_frames;
    EXPECT_TRUE(Until([&] { return host_.link(0).num_frames() == good_frames; })) << seed;
    stopping.store(true);
    scribbler.join();
    for (size_t i = 0; i < end.num_frames(); ++i) {
      EXPECT_LE(PayloadBytes(end.frame(i).payload), kMaxPayload);
    }
  }
  for (uint64_t i = 1; i < good_frames; ++i) {
    EXPECT_EQ(Difference(host_.link(0).frame(i), i, 4000), "");
  }
}

TEST_F(ShmHostileTest, AHandoverThatIsWrongIsRefusedAndLeavesNothing) {
  const size_t descriptors = NumDescriptors();
  const std::vector<std::function<void(RawPeer&)>> breaches = {
      [](RawPeer& peer) { peer.handover().ring_bytes = 0; },
      [](RawPeer& peer) { peer.handover().ring_bytes = kRingBytes + 1; },
      [](RawPeer& peer) { peer.handover().ring_bytes = 2 * kRingBytes; },  // more than there is
      [](RawPeer& peer) { peer.handover().ring_bytes = kSegmentPageBytes; },
      [](RawPeer& peer) { peer.handover().ring_bytes = uint64_t{1} << 63; },
      [](RawPeer& peer) { peer.handover().memory = OwnedFd(open("/dev/zero", O_RDWR)); },
      [](RawPeer& peer) { peer.handover().memory = OwnedFd(memfd_create("open", 0)); },
      [](RawPeer& peer) { peer.handover().dialer_bell = OwnedFd(open("/dev/null", O_RDWR)); },
      [](RawPeer& peer) { peer.handover().listener_bell = OwnedFd(dup(peer.socket())); },
      [](RawPeer& peer) { peer.handover().listener_bell = OwnedFd(eventfd(0, EFD_NONBLOCK)); },
      [](RawPeer& peer) { peer.handover().dialer_bell = OwnedFd(memfd_create("pipe:[1]", 0)); },
  };
  for (size_t i = 0; i < breaches.size(); ++i) {
    RawPeer peer(address());
    breaches[i](peer);
    peer.HandOver();
    EXPECT_EQ(peer.End().code(), absl::StatusCode::kInvalidArgument) << "breach " << i;
  }
  EXPECT_EQ(host_.num_links(), 0u);
  EXPECT_EQ(provider_->figures().refused, breaches.size());
  ExpectOthersAreServed();
  host_.Clear();
  EXPECT_TRUE(Until([&] { return NumDescriptors() <= descriptors; }));
}

// A message with as many descriptors as given, all the same file.
void SendBytes(int socket, const std::string& bytes, size_t num_descriptors) {
  const OwnedFd file(open("/dev/null", O_RDWR));
  const std::vector<int> descriptors(num_descriptors, file.fd());
  std::vector<uint64_t> control(CMSG_SPACE(num_descriptors * sizeof(int)) / 8 + 1);
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (num_descriptors > 0) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(num_descriptors * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(num_descriptors * sizeof(int));
    std::memcpy(CMSG_DATA(rights), descriptors.data(), num_descriptors * sizeof(int));
  }
  EXPECT_GE(sendmsg(socket, &header, MSG_NOSIGNAL), 0) << std::strerror(errno);
}

TEST_F(ShmHostileTest, GarbageAndForeignDescriptorsAreRefusedAndClosed) {
  const size_t descriptors = NumDescriptors();
  const std::string good_size("MOEBSHM2\0\0\0\0\0\0\1\0", 16);
  const std::string garbage[] = {"x", "GET / HTTP/1.1\r\n\r\n", good_size, good_size + "more",
                                 std::string(1000, '\xff')};
  for (const std::string& bytes : garbage) {
    for (const size_t count : {0, 1, 2, 4, 100, 253}) {
      auto socket = ConnectShmSocket(address());
      ASSERT_TRUE(socket.ok() && socket->has_value());
      SendBytes((*socket)->fd(), bytes, count);
      std::optional<absl::Status> end;
      ASSERT_TRUE(Until([&] {
        end = ReceiveEnd((*socket)->fd());
        return end.has_value();
      }));
      EXPECT_EQ(end->code(), absl::StatusCode::kInvalidArgument) << bytes << " " << count;
    }
  }
  ExpectOthersAreServed();
  host_.Clear();
  EXPECT_TRUE(Until([&] { return NumDescriptors() <= descriptors; })) << NumDescriptors();
}

TEST_F(ShmHostileTest, BytesAndDescriptorsOverAnOpenLinksSocketEndIt) {
  RawPeer peer(address());
  peer.HandOver();
  ASSERT_TRUE(Until([&] { return host_.num_links() == 1; }));
  const size_t descriptors = NumDescriptors();
  SendBytes(peer.socket(), "more", 100);
  ASSERT_TRUE(Until([&] { return host_.link(0).closed(); }));
  EXPECT_EQ(host_.link(0).reason().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_LE(NumDescriptors(), descriptors);
}

TEST_F(ShmHostileTest, ARefusalsTextIsCleanedBeforeAnybodySeesIt) {
  RawPeer peer(address());
  peer.HandOver();
  ASSERT_TRUE(Until([&] { return host_.num_links() == 1; }));
  SendRefusal(peer.socket(), absl::AbortedError("\x1b[31mred\n" + std::string(1000, 'a')));
  ASSERT_TRUE(Until([&] { return host_.link(0).closed(); }));
  const absl::Status reason = host_.link(0).reason();
  EXPECT_EQ(reason.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(reason.message()), HasSubstr("?[31mred?aaa"));
  EXPECT_LT(reason.message().size(), 300u);
}

TEST_F(ShmHostileTest, APeerThatDiesAtAnyStepLeavesNothing) {
  const size_t descriptors = NumDescriptors();
  const std::vector<std::function<void(RawPeer&)>> steps = {
      [](RawPeer&) {},  // connected, nothing handed over
      [](RawPeer& peer) { peer.HandOver(); },
      // In the middle of a record: it is not announced yet.
      [](RawPeer& peer) {
        std::memset(peer.out().data, 0x11, 100);
        peer.HandOver();
      },
      [](RawPeer& peer) {
        RingWriter writer(peer.out());
        EXPECT_TRUE(*writer.TryWrite(NumberedFrame(1, 100)));
        peer.HandOver();
      },
      // When the other end waits for it to read.
      [this](RawPeer& peer) {
        const size_t before = host_.num_links();
        peer.HandOver();
        ASSERT_TRUE(Until([&] { return host_.num_links() == before + 1; }));
        WireFrame frame = NumberedFrame(1, 4000);
        while (host_.link(before).link().TryWrite(frame)) frame = NumberedFrame(1, 4000);
      },
  };
  for (size_t step = 0; step < steps.size(); ++step) {
    {
      RawPeer peer(address());
      steps[step](peer);
    }
    ExpectOthersAreServed();
    EXPECT_TRUE(Until([&] {
      host_.Clear();
      return provider_->figures().num_links == 0 && NumDescriptors() <= descriptors;
    })) << step
        << ": " << NumDescriptors();
  }
}

// The status flags of a descriptor belong to all that it was handed to: an end that shared one
// would wait here for ever.
TEST_F(ShmHostileTest, BellsThatAreFullAndWouldWaitHoldUpNobody) {
  RawPeer peer(address());
  peer.HandOver();
  ASSERT_TRUE(Until([&] { return host_.num_links() == 1; }));
  const std::string rings(1 << 20, 'r');
  for (const int fd : peer.BellDescriptors()) {
    ASSERT_GE(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    while (write(fd, rings.data(), rings.size()) > 0) {
    }
  }
  for (const int fd : peer.BellDescriptors()) ASSERT_GE(fcntl(fd, F_SETFL, 0), 0);
  BufferPool buffers(0);
  RingReader reader(peer.in(), kMaxPayload, buffers);
  ASSERT_TRUE(reader.Sleep());
  std::atomic<bool> is_written{false};
  std::thread writer([&] {
    host_.link(0).Write(NumberedFrame(0, 10));
    is_written.store(true);
  });
  EXPECT_TRUE(Until([&] { return is_written.load(); }));
  // Lets a writer go that waits after all.
  for (const int fd : peer.BellDescriptors()) {
    ASSERT_GE(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    std::string old(1 << 20, ' ');
    while (read(fd, old.data(), old.size()) > 0) {
    }
  }
  writer.join();
  EXPECT_TRUE(reader.Read()->has_value());
  ExpectOthersAreServed();
}

TEST_F(ShmHostileTest, AFloodOfRingsHoldsUpNobody) {
  RawPeer peer(address());
  peer.HandOver();
  ASSERT_TRUE(Until([&] { return host_.num_links() == 1; }));
  std::atomic<bool> stopping{false};
  std::thread ringer([&] {
    while (!stopping.load()) peer.RingBell();
  });
  for (int i = 0; i < 5; ++i) ExpectOthersAreServed();
  stopping.store(true);
  ringer.join();
}

}  // namespace
}  // namespace moebius
