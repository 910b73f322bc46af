// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/base/mutex.h"
#include "moebius/base/owned_fd.h"

namespace moebius {

/// Why a process should end.
enum class StopReason {
  kDrain,   // SIGTERM, or SIGHUP: finish what was begun
  kStop,    // SIGINT: at once
  kFailed,  // Fail was called
};

/// Turns signals into something to wait for. Made by the main thread before any other exists: it
/// blocks SIGINT, SIGTERM and, unless it is ignored, SIGHUP in this thread and so in all that
/// follow, and ignores SIGPIPE. One per process. `Fail` is thread-safe.
class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// Waits until there is a reason, or `timeout` has passed (then false).
  bool Wait(absl::Duration timeout, StopReason* reason);
  /// From now on a signal ends the process at once.
  void LetSignalsKill();

  /// The process cannot go on; the first failure wins.
  void Fail(const absl::Status& status) MOEBIUS_EXCLUDES(mutex_);
  absl::Status failure() const MOEBIUS_EXCLUDES(mutex_);

 private:
  OwnedFd signals_;   // signalfd
  OwnedFd failures_;  // eventfd
  mutable Mutex mutex_;
  absl::Status failure_ MOEBIUS_GUARDED_BY(mutex_);
};

/// From now on the kernel kills this process (SIGKILL) when the thread that started it ends.
/// FAILED_PRECONDITION when the parent is not, or no longer, the process `parent`.
absl::Status DieWithParent(int64_t parent);

/// Raises the soft limit of open files to the hard one: each peer takes six descriptors.
void RaiseFileLimit();
/// How many file descriptors this process may have.
uint64_t MaxDescriptors();

/// Writes one whole line to stdout, at once.
void PrintLine(absl::string_view line);

}  // namespace moebius
