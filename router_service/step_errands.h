// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "moebius/base/mutex.h"

namespace moebius {

/// Calls that wait for a moment between two steps, in the order in which they came. Thread-safe.
class StepErrands {
 public:
  using Body = absl::FunctionRef<void(uint64_t* next_step)>;

  /// Waits until the stepping thread has run `body`. Lead::RunBetweenSteps has the refusals.
  /// `wake` is called when the body waits to be run.
  absl::Status Run(Body body, absl::Duration timeout, absl::FunctionRef<void()> wake)
      MOEBIUS_EXCLUDES(mutex_);

  /// The stepping thread's: runs the oldest one; false when there is none.
  bool RunOne(uint64_t* next_step) MOEBIUS_EXCLUDES(mutex_);

  /// Refuses those that wait, and new ones.
  void Shutdown() MOEBIUS_EXCLUDES(mutex_);

 private:
  enum class State { kWaiting, kRunning, kEnded };
  // On the stack of who waits.
  struct Errand {
    Body body;
    State state = State::kWaiting;
  };

  Mutex mutex_;
  CondVar changed_;
  std::deque<Errand*> waiting_ MOEBIUS_GUARDED_BY(mutex_);
  bool is_shut_down_ MOEBIUS_GUARDED_BY(mutex_) = false;
};

}  // namespace moebius
