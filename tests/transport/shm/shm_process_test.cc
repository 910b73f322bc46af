// SPDX-License-Identifier: Apache-2.0
// Two real processes: each test forks before it has made a thread.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/transport/shm/shm_provider.h"
#include "moebius/transport/shm/shm_socket.h"
#include "tests/support/skip.h"
#include "tests/transport/link_user.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

constexpr Lane kLane = Lane::kBulk;

// A process that runs `body`, which tells its parent a number and ends when it is killed.
class Child {
 public:
  explicit Child(const std::function<void(const std::function<void(uint64_t)>& tell)>& body) {
    EXPECT_EQ(pipe(ends_), 0);
    pid_ = fork();
    if (pid_ == 0) {
      body([this](uint64_t number) {
        if (write(ends_[1], &number, sizeof(number)) != sizeof(number)) _exit(3);
      });
      _exit(0);
    }
  }
  ~Child() {
    Kill();
    close(ends_[0]);
    close(ends_[1]);
  }
  uint64_t Hear() {
    uint64_t number = 0;
    EXPECT_EQ(read(ends_[0], &number, sizeof(number)), ssize_t{sizeof(number)});
    return number;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  int ends_[2] = {-1, -1};
  pid_t pid_ = -1;
};

// Returns each frame to its sender.
class EchoHost final : public LinkAcceptor, public LinkSink {
 public:
  void OnLink(std::unique_ptr<Link> link) override {
    link_ = std::move(link);
    link_->Start(*this);
  }
  void OnFrame(WireFrame frame) override {
    // The other end waits for each answer, so there is always room.
    if (!link_->TryWrite(frame)) _exit(4);
  }
  void OnWritable() override {}
  void OnClosed(absl::Status) override {}

 private:
  std::unique_ptr<Link> link_;
};

void RunEcho(const std::function<void(uint64_t)>& tell) {
  auto provider = ShmLinkProvider::Make({});
  if (!provider.ok()) _exit(1);
  EchoHost host;
  auto listener = (*provider)->Listen({"127.0.0.1", 0}, host);
  if (!listener.ok()) _exit(2);
  tell((*listener)->address().port);
  pause();
}

Address PortOf(uint64_t port) { return {"127.0.0.1", static_cast<uint16_t>(port)}; }

TEST(ShmProcessTest, FramesGoToAnotherProcessAndBack) {
  Child child(RunEcho);
  const Address address = PortOf(child.Hear());
  auto provider = *ShmLinkProvider::Make({});
  LinkUser user(*provider->Dial(address, kLane));
  for (uint64_t i = 0; i < 200; ++i) {
    const size_t size = i * i * 20;
    user.Write(NumberedFrame(i, size));
    ASSERT_TRUE(Until([&] { return user.num_frames() == i + 1 || user.closed(); }));
    ASSERT_FALSE(user.closed()) << user.reason();
    EXPECT_EQ(Difference(user.frame(i), i, size), "");
  }
}

TEST(ShmProcessTest, AKilledPeerIsNoticedAtOnceAndWhatItWroteIsDelivered) {
  Child child(RunEcho);
  const Address address = PortOf(child.Hear());
  auto provider = *ShmLinkProvider::Make({});
  Gate gate;
  LinkUser user(*provider->Dial(address, kLane), &gate);
  user.Write(NumberedFrame(0, 100));
  ASSERT_TRUE(Until([&] { return user.num_frames() == 1; }));
  // Answers that nobody takes: two rings are full of them.
  gate.Close();
  uint64_t written = 1;
  for (; written < 30; ++written) {
    WireFrame frame = NumberedFrame(written, 1000);
    ASSERT_TRUE(user.link().TryWrite(frame));
  }
  ASSERT_TRUE(Until([&] { return provider->figures().frames_received >= 2; }));
  child.Kill();
  const absl::Time killed = absl::Now();
  gate.Open();
  ASSERT_TRUE(Until([&] { return user.closed(); }));
  const absl::Duration took = absl::Now() - killed;
  EXPECT_LT(took, absl::Milliseconds(2500));  // five times what is promised
  RecordProperty("milliseconds", static_cast<int>(absl::ToInt64Milliseconds(took)));
  EXPECT_EQ(user.reason().code(), absl::StatusCode::kUnavailable) << user.reason();
  EXPECT_GE(user.num_frames(), 2u);
  for (size_t i = 0; i < user.num_frames(); ++i) {
    EXPECT_EQ(Difference(user.frame(i), i, i == 0 ? 100 : 1000), "");
  }
}

TEST(ShmProcessTest, ABusyPortNamesTheProcessThatHoldsIt) {
  Child child(RunEcho);
  const Address address = PortOf(child.Hear());
  auto provider = *ShmLinkProvider::Make({});
  Host host;
  const auto listener = provider->Listen(address, host);
  EXPECT_EQ(listener.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(listener.status().message()),
              HasSubstr(absl::StrCat("address already in use: 127.0.0.1:", address.port,
                                     " is held by pid ", child.pid())));
}

TEST(ShmProcessTest, AnotherUserIsRefusedByBothEnds) {
  if (geteuid() != 0) MOEBIUS_SKIP("needs to be root to run a process of another user");
  // The stranger dials a listener of ours.
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  Child dialer([&](const std::function<void(uint64_t)>& tell) {
    uint64_t port = 0;
    if (read(go[0], &port, sizeof(port)) != sizeof(port) || setuid(1) != 0) _exit(1);
    // Its own check, after the connection that the listener is to refuse.
    tell(static_cast<uint64_t>(ConnectShmSocket(PortOf(port)).status().code()));
    pause();
  });
  // The stranger listens, and we dial.
  Child stranger([](const std::function<void(uint64_t)>& tell) {
    if (setuid(1) != 0) _exit(1);
    RunEcho(tell);
  });
  const Address theirs = PortOf(stranger.Hear());
  auto provider = *ShmLinkProvider::Make({});
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const uint64_t port = (*listener)->address().port;
  ASSERT_EQ(write(go[1], &port, sizeof(port)), ssize_t{sizeof(port)});
  EXPECT_EQ(static_cast<absl::StatusCode>(dialer.Hear()), absl::StatusCode::kPermissionDenied);
  ASSERT_TRUE(Until([&] { return provider->figures().refused == 1; }));
  EXPECT_EQ(host.num_links(), 0u);

  LinkUser user(*provider->Dial(theirs, kLane));
  ASSERT_TRUE(Until([&] { return user.closed(); }));
  EXPECT_EQ(user.reason().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(user.reason().message()), HasSubstr("runs as user 1"));
  close(go[0]);
  close(go[1]);
}

TEST(ShmProcessTest, AProcessThatHasItsShareTakesNothingFromAnother) {
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  Child other([&](const std::function<void(uint64_t)>&) {
    uint64_t port = 0;
    if (read(go[0], &port, sizeof(port)) != sizeof(port)) _exit(1);
    const auto socket = ConnectShmSocket(PortOf(port));
    if (socket.ok() && socket->has_value()) pause();
  });
  ShmOptions options;
  options.max_connections_per_process = 3;
  options.silence_limit = absl::Seconds(60);
  auto provider = *ShmLinkProvider::Make(options);
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  ASSERT_TRUE(listener.ok()) << listener.status();
  std::vector<OwnedFd> sockets;
  for (int i = 0; i < 5; ++i) {
    auto socket = ConnectShmSocket((*listener)->address());
    ASSERT_TRUE(socket.ok() && socket->has_value()) << socket.status();
    sockets.push_back(**std::move(socket));
  }
  ASSERT_TRUE(Until([&] { return provider->figures().crowded == 2; }));
  EXPECT_TRUE(Until([&] { return provider->figures().open == 3; }));
  const uint64_t port = (*listener)->address().port;
  ASSERT_EQ(write(go[1], &port, sizeof(port)), ssize_t{sizeof(port)});
  EXPECT_TRUE(Until([&] { return provider->figures().open == 4; }));
  EXPECT_EQ(provider->figures().crowded, 2u);
  close(go[0]);
  close(go[1]);
}

}  // namespace
}  // namespace moebius
