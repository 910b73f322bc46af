// SPDX-License-Identifier: Apache-2.0
// What frames cost in system calls and fresh memory: counts, never times.
#include <atomic>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/base/mutex.h"
#include "moebius/transport/delivery_cond_var.h"
#include "moebius/transport/shm/shm_provider.h"
#include "tests/transport/link_user.h"

namespace moebius {
namespace {

constexpr Lane kLane = Lane::kDecode;
// Frames that a link may deliver before others have their turn.
constexpr uint64_t kFramesPerTurn = 16;

std::unique_ptr<ShmLinkProvider> MakeProvider() {
  auto provider = ShmLinkProvider::Make({});
  EXPECT_TRUE(provider.ok()) << provider.status();
  return *std::move(provider);
}

// Calls of write() by this process, as the kernel counts them.
uint64_t NumWriteCalls() {
  std::ifstream file("/proc/self/io");
  std::string word;
  uint64_t count = 0;
  while (file >> word) {
    if (word == "syscw:") file >> count;
  }
  return count;
}

TEST(ShmWakeTest, FramesToAReaderThatIsAwakeCostNoSystemCall) {
  auto reading = MakeProvider();
  auto writing = MakeProvider();
  Host host;
  host.Pause();
  auto listener = reading->Listen({"127.0.0.1", 0}, host);
  ASSERT_TRUE(listener.ok()) << listener.status();
  LinkUser guest(*writing->Dial((*listener)->address(), kLane));
  guest.Write(NumberedFrame(0, 100));
  // The first is being delivered: the reader sleeps no more.
  ASSERT_TRUE(Until([&] { return reading->figures().frames_received == 1; }));
  const uint64_t wakes = writing->figures().num_wakes;
  const uint64_t calls = NumWriteCalls();
  constexpr uint64_t kFrames = 200;
  for (uint64_t i = 1; i <= kFrames; ++i) guest.Write(NumberedFrame(i, 100));
  EXPECT_EQ(writing->figures().num_wakes, wakes);
  EXPECT_EQ(NumWriteCalls(), calls);

  // And what waits is taken without waiting in between, but for the others' turns.
  const uint64_t waits = reading->figures().num_waits;
  host.Resume();
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == kFrames + 1; }));
  EXPECT_LE(reading->figures().num_waits, waits + kFrames / kFramesPerTurn + 2);
  EXPECT_EQ(writing->figures().num_wakes, wakes);
}

// Answers each frame with itself.
class Echo final : public LinkAcceptor, public LinkSink {
 public:
  void OnLink(std::unique_ptr<Link> link) override {
    link_ = std::move(link);
    link_->Start(*this);
  }
  void OnFrame(WireFrame frame) override { EXPECT_TRUE(link_->TryWrite(frame)); }
  void OnWritable() override {}
  void OnClosed(absl::Status) override {}

 private:
  std::unique_ptr<Link> link_;
};

// Two providers, one of which answers the other.
struct Answering {
  Answering() : listener(*answering->Listen({"127.0.0.1", 0}, echo)) {}
  Address address() const { return listener->address(); }

  std::unique_ptr<ShmLinkProvider> answering = MakeProvider();
  std::unique_ptr<ShmLinkProvider> asking = MakeProvider();
  Echo echo;
  std::unique_ptr<LinkListener> listener;
};

TEST(ShmWakeTest, AQuestionAndItsAnswerCostARingAndAWaitAtEachEnd) {
  Answering pair;
  const ShmLinkProvider& answering = *pair.answering;
  ShmLinkProvider& asking = *pair.asking;
  LinkUser user(*asking.Dial(pair.address(), kLane));
  uint64_t asked = 0;
  const auto ask = [&](uint64_t rounds) {
    for (uint64_t i = 0; i < rounds; ++i) {
      user.Write(NumberedFrame(asked++, 100));
      ASSERT_TRUE(Until([&] { return user.num_frames() == asked; }));
    }
  };
  // What the making of the link has posted is over after the first of them.
  ask(10);
  const ShmFigures answering_before = answering.figures();
  const ShmFigures asking_before = asking.figures();
  constexpr uint64_t kRounds = 300;
  ask(kRounds);
  // Of the last answer before, the ring and the wait after it may not have begun when the counts
  // were taken: its frame is seen without them by a reader that had not yet slept.
  EXPECT_LE(asking.figures().num_wakes - asking_before.num_wakes, kRounds + 1);
  EXPECT_LE(answering.figures().num_wakes - answering_before.num_wakes, kRounds + 1);
  EXPECT_LE(asking.figures().num_waits - asking_before.num_waits, kRounds + 1);
  EXPECT_LE(answering.figures().num_waits - answering_before.num_waits, kRounds + 1);
}

// Waits for answers as a step does, and knows which thread delivers them.
class Waiting final : public LinkSink {
 public:
  Waiting(ShmLinkProvider& provider, const Address& address)
      : changed_(provider.poller()), link_(*provider.Dial(address, kLane)) {
    link_->Start(*this);
  }
  ~Waiting() override { link_.reset(); }

  void Write(WireFrame frame) { ASSERT_TRUE(link_->TryWrite(frame)); }
  void AwaitFrames(uint64_t count) {
    MutexLock lock(mutex_);
    while (num_frames_ < count) changed_.Wait(mutex_);
  }
  bool AwaitFramesAsleep(uint64_t count) {
    MutexLock lock(mutex_);
    while (num_frames_ < count) {
      if (changed_.WaitWithTimeout(mutex_, absl::Seconds(20))) return num_frames_ >= count;
    }
    return true;
  }
  // Frames that the thread delivered which calls this.
  uint64_t NumDeliveredHere() {
    MutexLock lock(mutex_);
    return by_thread_[std::this_thread::get_id()];
  }

  void OnFrame(WireFrame) override {
    MutexLock lock(mutex_);
    ++num_frames_;
    ++by_thread_[std::this_thread::get_id()];
    changed_.SignalAll();
  }
  void OnWritable() override {}
  void OnClosed(absl::Status) override {}

 private:
  Mutex mutex_;
  DeliveryCondVar changed_;
  uint64_t num_frames_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  std::map<std::thread::id, uint64_t> by_thread_ MOEBIUS_GUARDED_BY(mutex_);
  std::unique_ptr<Link> link_;
};

TEST(ShmWakeTest, WhoWaitsForAnAnswerReceivesItWithoutAnotherThread) {
  Answering pair;
  Waiting user(*pair.asking, pair.address());
  constexpr uint64_t kRounds = 300;
  for (uint64_t i = 1; i <= kRounds; ++i) {
    user.Write(NumberedFrame(i, 100));
    user.AwaitFrames(i);
  }
  // Between two rounds the provider's own thread comes back only when a machine stands still.
  EXPECT_GE(user.NumDeliveredHere(), kRounds / 2);
}

TEST(ShmWakeTest, WhenNobodyWaitsTheOwnThreadDeliversAgain) {
  Answering pair;
  Waiting user(*pair.asking, pair.address());
  for (uint64_t i = 1; i <= 20; ++i) {
    user.Write(NumberedFrame(2 * i, 100));
    user.AwaitFrames(2 * i - 1);
    const uint64_t here = user.NumDeliveredHere();
    user.Write(NumberedFrame(2 * i + 1, 100));
    ASSERT_TRUE(user.AwaitFramesAsleep(2 * i)) << "round " << i;
    EXPECT_EQ(user.NumDeliveredHere(), here);
  }
}

TEST(ShmWakeTest, SeveralThatWaitAreAllServed) {
  auto answering = MakeProvider();
  auto asking = MakeProvider();
  constexpr int kUsers = 3;
  constexpr uint64_t kRounds = 200;
  std::vector<std::unique_ptr<Echo>> echoes;
  std::vector<std::unique_ptr<LinkListener>> listeners;
  std::vector<std::unique_ptr<Waiting>> users;
  for (int i = 0; i < kUsers; ++i) {
    echoes.push_back(std::make_unique<Echo>());
    listeners.push_back(*answering->Listen({"127.0.0.1", 0}, *echoes.back()));
    users.push_back(std::make_unique<Waiting>(*asking, listeners.back()->address()));
  }
  std::vector<std::thread> threads;
  for (const auto& user : users) {
    threads.emplace_back([&user] {
      for (uint64_t i = 1; i <= kRounds; ++i) {
        user->Write(NumberedFrame(i, 100));
        user->AwaitFrames(i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ShmWakeTest, AfterALargeFrameTheRingIsLookedAtABoundedNumberOfTimes) {
  auto reading = MakeProvider();
  auto writing = MakeProvider();
  Host host;
  auto listener = reading->Listen({"127.0.0.1", 0}, host);
  ASSERT_TRUE(listener.ok()) << listener.status();
  LinkUser guest(*writing->Dial((*listener)->address(), kLane));
  uint64_t number = 0;
  for (const uint64_t size : {100, 8 << 10, 64 << 10, 1 << 20}) {
    guest.Write(NumberedFrame(number++, 100));
    // Asleep when the next one rings.
    ASSERT_TRUE(Until([&] { return host.TotalFrames() == number; }));
    uint64_t wakes = 0;
    uint64_t waits = 0;
    ASSERT_TRUE(Until([&] {
      wakes = writing->figures().num_wakes;
      waits = reading->figures().num_waits;
      guest.Write(NumberedFrame(number++, size));
      EXPECT_TRUE(Until([&] { return host.TotalFrames() == number; }));
      return writing->figures().num_wakes == wakes + 1;
    }));
    // It goes back to sleep: another one must ring again.
    const uint64_t rung = writing->figures().num_wakes;
    ASSERT_TRUE(Until([&] {
      guest.Write(NumberedFrame(number++, 100));
      EXPECT_TRUE(Until([&] { return host.TotalFrames() == number; }));
      return writing->figures().num_wakes > rung;
    }));
    const uint64_t num_looks = size < (256 << 10) ? size / (8 << 10) : 0;
    const uint64_t num_rings = writing->figures().num_wakes - wakes;
    EXPECT_LE(reading->figures().num_waits - waits, num_looks + num_rings + 1) << size;
  }
}

// Uses up each frame at once.
class Taker final : public LinkAcceptor, public LinkSink {
 public:
  void OnLink(std::unique_ptr<Link> link) override {
    link_ = std::move(link);
    link_->Start(*this);
  }
  void OnFrame(WireFrame frame) override {
    const uint64_t number = num_taken_.load();
    EXPECT_EQ(Difference(frame, number, 64 << 10), "");
    num_taken_.store(number + 1);
  }
  void OnWritable() override {}
  void OnClosed(absl::Status) override {}
  uint64_t num_taken() const { return num_taken_.load(); }

 private:
  std::atomic<uint64_t> num_taken_{0};
  std::unique_ptr<Link> link_;
};

TEST(ShmWakeTest, FramesThatAreUsedUpNeedNoNewMemory) {
  auto reading = MakeProvider();
  auto writing = MakeProvider();
  Taker taker;
  auto listener = reading->Listen({"127.0.0.1", 0}, taker);
  ASSERT_TRUE(listener.ok()) << listener.status();
  {
    LinkUser user(*writing->Dial((*listener)->address(), kLane));
    constexpr uint64_t kFrames = 200;
    for (uint64_t i = 0; i < kFrames; ++i) user.Write(NumberedFrame(i, 64 << 10));
    ASSERT_TRUE(Until([&] { return taker.num_taken() == kFrames; }));
    // Counted when it is made, kept a moment after it was used up.
    ASSERT_TRUE(Until([&] { return reading->figures().buffers.idle_bytes > 0; }));
    const BufferPoolFigures buffers = reading->figures().buffers;
    EXPECT_EQ(buffers.num_fresh, 1u);
    EXPECT_EQ(buffers.num_reused, kFrames - 1);
  }
  // Nothing is kept for links that there are not.
  EXPECT_TRUE(Until([&] {
    const ShmFigures figures = reading->figures();
    return figures.num_links == 0 && figures.buffers.idle_bytes == 0;
  }));
}

}  // namespace
}  // namespace moebius
