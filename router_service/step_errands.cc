// SPDX-License-Identifier: Apache-2.0
#include "router_service/step_errands.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "moebius/base/clock.h"

namespace moebius {
namespace {

// Each waits on a thread of its own.
constexpr size_t kMaxErrands = 64;

}  // namespace

absl::Status StepErrands::Run(Body body, absl::Duration timeout, absl::FunctionRef<void()> wake) {
  const Clock& clock = Clock::Monotonic();
  const absl::Duration end = clock.Now() + timeout;
  Errand errand{body};
  {
    MutexLock lock(mutex_);
    if (is_shut_down_) return absl::UnavailableError("shutting down");
    if (waiting_.size() >= kMaxErrands) {
      return absl::ResourceExhaustedError(
          absl::StrCat(kMaxErrands, " calls wait for a moment between two steps already"));
    }
    waiting_.push_back(&errand);
  }
  wake();
  MutexLock lock(mutex_);
  while (errand.state != State::kEnded) {
    if (errand.state == State::kRunning) {
      changed_.Wait(mutex_);
      continue;
    }
    const absl::Duration left = end - clock.Now();
    if (!is_shut_down_ && left > absl::ZeroDuration()) {
      changed_.WaitWithTimeout(mutex_, left);
      continue;
    }
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &errand));
    if (is_shut_down_) return absl::UnavailableError("shutting down");
    return absl::DeadlineExceededError(absl::StrCat("there was no moment between two steps within ",
                                                    absl::FormatDuration(timeout)));
  }
  return absl::OkStatus();
}

bool StepErrands::RunOne(uint64_t* next_step) {
  Errand* errand = nullptr;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) return false;
    errand = waiting_.front();
    waiting_.pop_front();
    errand->state = State::kRunning;
  }
  errand->body(next_step);
  MutexLock lock(mutex_);
  errand->state = State::kEnded;
  changed_.SignalAll();
  return true;
}

void StepErrands::Shutdown() {
  MutexLock lock(mutex_);
  is_shut_down_ = true;
  changed_.SignalAll();
}

}  // namespace moebius
