// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/clock.h"

namespace moebius {
namespace {

bool IsIgnored(int signal_number) {
  struct sigaction action = {};
  sigaction(signal_number, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  // nohup says so: a signal that is blocked comes even where it is ignored.
  if (!IsIgnored(SIGHUP)) sigaddset(&signals, SIGHUP);
  return signals;
}

}  // namespace

StopSignal::StopSignal() {
  const sigset_t signals = StopSignals();
  MOEBIUS_CHECK_EQ(pthread_sigmask(SIG_BLOCK, &signals, nullptr), 0);
  signal(SIGPIPE, SIG_IGN);
  signals_ = OwnedFd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  failures_ = OwnedFd(eventfd(0, EFD_CLOEXEC));
  MOEBIUS_CHECK_GE(signals_.fd(), 0);
  MOEBIUS_CHECK_GE(failures_.fd(), 0);
}

bool StopSignal::Wait(absl::Duration timeout, StopReason* reason) {
  const absl::Duration end = Clock::Monotonic().Now() + timeout;
  while (true) {
    pollfd ready[2] = {{signals_.fd(), POLLIN, 0}, {failures_.fd(), POLLIN, 0}};
    const absl::Duration left = end - Clock::Monotonic().Now();
    const int wait_ms =
        timeout == absl::InfiniteDuration()
            ? -1
            : static_cast<int>(std::clamp<int64_t>(
                  absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))), 0, 1 << 30));
    const int count = poll(ready, 2, wait_ms);
    if (count == 0) return false;
    if (count < 0) continue;  // interrupted
    if (ready[1].revents != 0) {
      *reason = StopReason::kFailed;
      return true;
    }
    signalfd_siginfo info;
    if (read(signals_.fd(), &info, sizeof(info)) != sizeof(info)) continue;
    *reason = info.ssi_signo == SIGINT ? StopReason::kStop : StopReason::kDrain;
    return true;
  }
}

void StopSignal::LetSignalsKill() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

void StopSignal::Fail(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = status;
  }
  const uint64_t one = 1;
  MOEBIUS_CHECK_EQ(write(failures_.fd(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
}

absl::Status StopSignal::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

absl::Status DieWithParent(int64_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // After the call above, lest the parent ends in between.
  if (getppid() == parent) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--die-with-parent ", parent, ": the parent is process ", getppid()));
}

void RaiseFileLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

uint64_t MaxDescriptors() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::numeric_limits<uint64_t>::max();
  return limit.rlim_cur;
}

void PrintLine(absl::string_view line) {
  // One call: lines of several threads do not mix.
  const std::string text = absl::StrCat(line, "\n");
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace moebius
