// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/bell.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <utility>

#include "gtest/gtest.h"

#include "tests/transport/link_user.h"

namespace moebius {
namespace {

// Both ends of one bell, as two processes have it.
class BellTest : public ::testing::Test {
 protected:
  BellTest() {
    Bell::Made made = *Bell::Make();
    theirs_ = *Bell::Open(made.for_other_end);
    own_ = std::move(made.bell);
    epoll_ = OwnedFd(epoll_create1(EPOLL_CLOEXEC));
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLET;
    EXPECT_EQ(epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, own_.fd(), &event), 0);
  }
  // An event that has not been seen yet; waits for none.
  bool HasEvent() {
    epoll_event event = {};
    return epoll_wait(epoll_.fd(), &event, 1, 0) == 1;
  }

  Bell own_;
  Bell theirs_;
  OwnedFd epoll_;
};

TEST_F(BellTest, ARingIsOneEventAndSilenceIsNone) {
  EXPECT_FALSE(HasEvent());
  theirs_.Ring();
  EXPECT_TRUE(HasEvent());
  EXPECT_FALSE(HasEvent());
  theirs_.Ring();
  theirs_.Ring();
  EXPECT_TRUE(HasEvent());
  EXPECT_FALSE(HasEvent());
}

TEST_F(BellTest, EveryOfVeryManyRingsThatNobodyTakesAwayIsHeard) {
  for (int i = 0; i < 20000; ++i) {
    theirs_.Ring();
    ASSERT_TRUE(HasEvent()) << i;
  }
}

TEST_F(BellTest, ARingIsHeardAfterMoreThanFitWereNotListenedTo) {
  for (int i = 0; i < 20000; ++i) theirs_.Ring();
  EXPECT_TRUE(HasEvent());
  EXPECT_FALSE(HasEvent());
  theirs_.Ring();
  EXPECT_TRUE(HasEvent());
}

TEST_F(BellTest, NoEndCanChangeWhetherTheOtherWaits) {
  EXPECT_GE(fcntl(own_.fd(), F_SETFL, 0), 0);
  EXPECT_NE(fcntl(theirs_.fd(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_GE(fcntl(theirs_.fd(), F_SETFL, 0), 0);
  EXPECT_GE(fcntl(own_.fd(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(fcntl(theirs_.fd(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(BellTest, TheDescriptorThatIsHandedOverIsNobodysOwn) {
  const Bell::Made made = *Bell::Make();
  ASSERT_GE(fcntl(made.for_other_end.fd(), F_SETFL, 0), 0);
  EXPECT_NE(fcntl(made.bell.fd(), F_GETFL) & O_NONBLOCK, 0);
  // And it opens without waiting although it would wait itself.
  const auto opened = Bell::Open(made.for_other_end);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_NE(fcntl(opened->fd(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(opened->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(BellTest, RingingWhenTheOtherEndHasGoneIsNoSignal) {
  own_ = Bell();
  epoll_ = OwnedFd();
  for (int i = 0; i < 10000; ++i) theirs_.Ring();
}

TEST_F(BellTest, NothingButAPipeIsOpened) {
  const OwnedFd null(open("/dev/null", O_RDWR));
  EXPECT_EQ(Bell::Open(null).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Bell::Open(epoll_).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Bell::Open(OwnedFd()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(BellTest, HoldsOneDescriptorBesideTheOneThatIsHandedOver) {
  const size_t before = NumDescriptors();
  {
    Bell::Made made = *Bell::Make();
    EXPECT_EQ(NumDescriptors(), before + 2);
    made.for_other_end.Close();
    EXPECT_EQ(NumDescriptors(), before + 1);
  }
  EXPECT_EQ(NumDescriptors(), before);
}

}  // namespace
}  // namespace moebius
