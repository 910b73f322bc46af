// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/reactor.h"

#include <atomic>
#include <string>

#include "gtest/gtest.h"

namespace moebius {
namespace {

TEST(ReactorTest, RunsReactionsAndTimersInOrder) {
  FakeClock clock;
  Reactor reactor(clock);
  std::string order;
  reactor.RunAt(absl::Seconds(2), [&] { order += '2'; });
  reactor.RunAt(absl::Seconds(1), [&] { order += '1'; });
  reactor.RunAt(absl::Seconds(1), [&] { order += 'b'; });
  const auto cancelled = reactor.RunAt(absl::Seconds(1), [&] { order += 'x'; });
  reactor.Post([&] {
    order += 'p';
    reactor.Post([&] { order += 'q'; });
  });
  EXPECT_TRUE(reactor.Cancel(cancelled));
  EXPECT_FALSE(reactor.Cancel(cancelled));
  EXPECT_EQ(reactor.RunReady(), 2);
  EXPECT_EQ(order, "pq");
  EXPECT_EQ(reactor.NextTimer(), absl::Seconds(1));
  clock.Advance(absl::Seconds(2));
  EXPECT_EQ(reactor.RunReady(), 3);
  EXPECT_EQ(order, "pq1b2");
  EXPECT_EQ(reactor.NextTimer(), std::nullopt);
}

TEST(ReactorTest, AThreadRunsWhatIsPostedAndDue) {
  Reactor reactor(Clock::Monotonic());
  std::atomic<int> count{0};
  Mutex mutex;
  CondVar done;
  {
    ReactorThread thread(reactor);
    const auto reaction = [&] {
      MutexLock lock(mutex);
      ++count;
      done.Signal();
    };
    reactor.RunAt(Clock::Monotonic().Now() + absl::Milliseconds(5), reaction);
    for (int i = 0; i < 100; ++i) reactor.Post(reaction);
    MutexLock lock(mutex);
    while (count < 101) done.Wait(mutex);
  }
  EXPECT_EQ(count, 101);
}

}  // namespace
}  // namespace moebius
