// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/parallel_tasks.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include "moebius/base/mutex.h"

namespace moebius {
namespace {

// What the threads of one call share.
class TaskRun {
 public:
  TaskRun(size_t count, absl::FunctionRef<absl::Status(size_t)> task)
      : count_(count), task_(task) {}

  // One task after the other until none is left, or one failed.
  void Work() MOEBIUS_EXCLUDES(mutex_) {
    while (RunNext()) {
    }
  }

  // The caller's share: works, too, and tells what ended meanwhile.
  absl::Status WorkAndTell(absl::FunctionRef<void(size_t)> on_done) MOEBIUS_EXCLUDES(mutex_) {
    while (RunNext()) Tell(on_done);
    while (WaitForDone()) Tell(on_done);
    MutexLock lock(mutex_);
    return status_;
  }

 private:
  bool RunNext() MOEBIUS_EXCLUDES(mutex_) {
    size_t index = 0;
    {
      MutexLock lock(mutex_);
      if (next_ == count_ || !status_.ok()) return false;
      index = next_++;
      ++under_way_;
    }
    const absl::Status status = task_(index);
    MutexLock lock(mutex_);
    --under_way_;
    if (status.ok()) {
      done_.push_back(index);
    } else {
      status_.Update(status);
    }
    changed_.SignalAll();
    return true;
  }

  // False when nothing is left to come.
  bool WaitForDone() MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (done_.empty() && under_way_ > 0) changed_.Wait(mutex_);
    return !done_.empty();
  }

  void Tell(absl::FunctionRef<void(size_t)> on_done) MOEBIUS_EXCLUDES(mutex_) {
    std::vector<size_t> done;
    {
      MutexLock lock(mutex_);
      done.swap(done_);
    }
    for (const size_t index : done) on_done(index);
  }

  const size_t count_;
  const absl::FunctionRef<absl::Status(size_t)> task_;

  Mutex mutex_;
  CondVar changed_;
  size_t next_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  int under_way_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  std::vector<size_t> done_ MOEBIUS_GUARDED_BY(mutex_);  // not told yet
  absl::Status status_ MOEBIUS_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status RunParallelTasks(size_t count, int num_threads,
                              absl::FunctionRef<absl::Status(size_t index)> task,
                              absl::FunctionRef<void(size_t index)> on_done) {
  TaskRun run(count, task);
  std::vector<std::thread> threads;
  const size_t helpers = std::min(static_cast<size_t>(std::max(1, num_threads)), count);
  try {
    for (size_t i = 1; i < helpers; ++i) threads.emplace_back([&run] { run.Work(); });
  } catch (const std::system_error&) {
    // The host has no more threads: those that came do the work.
  }
  absl::Status status = run.WorkAndTell(on_done);
  for (std::thread& thread : threads) thread.join();
  return status;
}

}  // namespace moebius
