// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"

#include "moebius/base/mutex.h"

namespace moebius {

/// A call that writes to somebody who may not read.
class WatchedCall {
 public:
  virtual ~WatchedCall() = default;
  /// Ends the call where one write has waited for longer than `max_wait`. Thread-safe.
  virtual void EndIfStalled(absl::Duration now, absl::Duration max_wait) = 0;
};

/// Looks after calls whose readers take nothing: flow control holds a write for as long as the
/// other side wants, and with it the call's place among all calls and among its client's.
///
/// Thread-safe. A call that is gone is forgotten at the next look; a look takes no lock of a call
/// for longer than it needs to read a time.
class CallWatch {
 public:
  /// Looks four times in `max_wait`, on a thread of its own.
  explicit CallWatch(absl::Duration max_wait);
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  void Add(const std::weak_ptr<WatchedCall>& call) MOEBIUS_EXCLUDES(mutex_);

 private:
  void Run() MOEBIUS_EXCLUDES(mutex_);
  std::vector<std::shared_ptr<WatchedCall>> TakeStock() MOEBIUS_REQUIRES(mutex_);

  const absl::Duration max_wait_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::weak_ptr<WatchedCall>> calls_ MOEBIUS_GUARDED_BY(mutex_);
  bool stopping_ MOEBIUS_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace moebius
