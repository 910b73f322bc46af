// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#ifdef MOEBIUS_THREAD_SANITIZER
#include <chrono>
#include <condition_variable>
#include <mutex>
#else
#include "absl/synchronization/mutex.h"
#endif

/// Lock annotations, checked by the clang preset.
#define MOEBIUS_GUARDED_BY(mutex) ABSL_GUARDED_BY(mutex)
#define MOEBIUS_REQUIRES(...) ABSL_EXCLUSIVE_LOCKS_REQUIRED(__VA_ARGS__)
#define MOEBIUS_EXCLUDES(...) ABSL_LOCKS_EXCLUDED(__VA_ARGS__)

namespace moebius {

/// absl::Mutex, or std::mutex under the thread sanitizer, which reports false races inside the
/// distribution's prebuilt absl::Mutex.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { LockImpl(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { UnlockImpl(); }

 private:
  friend class CondVar;
#ifdef MOEBIUS_THREAD_SANITIZER
  void LockImpl() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }
  void UnlockImpl() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.unlock(); }
  std::mutex mutex_;
#else
  void LockImpl() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Lock(); }
  void UnlockImpl() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }
  absl::Mutex mutex_;
#endif
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Waits may wake without a signal: always wait in a loop on the condition.
class CondVar {
 public:
  void Wait(Mutex& mutex) MOEBIUS_REQUIRES(mutex) {
#ifdef MOEBIUS_THREAD_SANITIZER
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
#else
    condition_.Wait(&mutex.mutex_);
#endif
  }

  /// Returns true when `timeout` passed without a signal.
  bool WaitWithTimeout(Mutex& mutex, absl::Duration timeout) MOEBIUS_REQUIRES(mutex) {
#ifdef MOEBIUS_THREAD_SANITIZER
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool timed_out =
        condition_.wait_for(lock, absl::ToChronoNanoseconds(timeout)) == std::cv_status::timeout;
    lock.release();
    return timed_out;
#else
    return condition_.WaitWithTimeout(&mutex.mutex_, timeout);
#endif
  }

  void Signal() {
#ifdef MOEBIUS_THREAD_SANITIZER
    condition_.notify_one();
#else
    condition_.Signal();
#endif
  }

  void SignalAll() {
#ifdef MOEBIUS_THREAD_SANITIZER
    condition_.notify_all();
#else
    condition_.SignalAll();
#endif
  }

 private:
#ifdef MOEBIUS_THREAD_SANITIZER
  std::condition_variable condition_;
#else
  absl::CondVar condition_;
#endif
};

}  // namespace moebius
