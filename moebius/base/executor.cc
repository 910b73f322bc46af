// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/executor.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "moebius/base/check.h"
#include "moebius/base/cpu_quota.h"
#include "moebius/base/float_environment.h"
#include "moebius/base/mutex.h"

namespace moebius {
namespace {

thread_local bool on_executor_thread = false;
thread_local bool inside_parallel_task = false;

// A thread inside a body: in the executor's float environment, and known by OnExecutorThread.
class BodyScope {
 public:
  BodyScope() { on_executor_thread = true; }
  ~BodyScope() {
    MOEBIUS_DCHECK(HasFloatEnvironment());
    on_executor_thread = false;
  }
  BodyScope(const BodyScope&) = delete;
  BodyScope& operator=(const BodyScope&) = delete;

 private:
  const ScopedFloatEnvironment environment_;
};

}  // namespace

class Executor::Impl {
 public:
  explicit Impl(int num_threads) {
    MOEBIUS_CHECK_GE(num_threads, 1);
    threads_.reserve(static_cast<size_t>(num_threads));
    // The first thread is whoever calls Run.
    for (int index = 1; index < num_threads; ++index) {
      try {
        threads_.emplace_back([this, index] { Follow(index); });
      } catch (const std::system_error&) {
        // The host has no more threads (ulimit -u, memory for stacks): those that came do the work,
        // with the same results.
        return;
      }
    }
  }

  ~Impl() {
    {
      MutexLock lock(mutex_);
      while (serving_ticket_ != next_ticket_) caller_wakeup_.Wait(mutex_);
      stopping_ = true;
      work_wakeup_.SignalAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  void Run(absl::FunctionRef<void()> body) {
    if (on_executor_thread) {
      body();
      return;
    }
    {
      MutexLock lock(mutex_);
      const uint64_t ticket = next_ticket_++;
      while (ticket != serving_ticket_) caller_wakeup_.Wait(mutex_);
    }
    {
      const BodyScope scope;
      body();
    }
    MutexLock lock(mutex_);
    ++serving_ticket_;
    caller_wakeup_.SignalAll();
  }

  void ParallelFor(int64_t count, absl::FunctionRef<void(int64_t, int)> body) {
    MOEBIUS_CHECK(on_executor_thread);
    if (count <= 0) return;
    if (num_threads() == 1 || count == 1 || inside_parallel_task) {
      for (int64_t index = 0; index < count; ++index) body(index, 0);
      return;
    }
    next_index_.store(0, std::memory_order_relaxed);
    {
      MutexLock lock(mutex_);
      task_count_ = count;
      task_body_ = &body;
      ++generation_;
      work_wakeup_.SignalAll();
    }
    RunTasks(count, body, 0);
    // Whoever has not woken by now finds no work: only those at a task are waited for.
    MutexLock lock(mutex_);
    task_body_ = nullptr;
    while (followers_running_ > 0) done_wakeup_.Wait(mutex_);
  }

 private:
  void RunTasks(int64_t count, absl::FunctionRef<void(int64_t, int)> body, int thread_index) {
    inside_parallel_task = true;
    while (true) {
      const int64_t index = next_index_.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) break;
      body(index, thread_index);
    }
    inside_parallel_task = false;
  }

  void Follow(int thread_index) {
    on_executor_thread = true;
    SetFloatEnvironment();
    uint64_t seen_generation = 0;
    while (true) {
      int64_t count = 0;
      absl::FunctionRef<void(int64_t, int)>* body = nullptr;
      {
        MutexLock lock(mutex_);
        while ((generation_ == seen_generation || task_body_ == nullptr) && !stopping_) {
          work_wakeup_.Wait(mutex_);
        }
        if (task_body_ == nullptr) return;  // no body runs when it stops
        seen_generation = generation_;
        count = task_count_;
        body = task_body_;
        ++followers_running_;
      }
      RunTasks(count, *body, thread_index);
      MutexLock lock(mutex_);
      if (--followers_running_ == 0) done_wakeup_.Signal();
    }
  }

  Mutex mutex_;
  CondVar caller_wakeup_;
  CondVar work_wakeup_;
  CondVar done_wakeup_;
  bool stopping_ MOEBIUS_GUARDED_BY(mutex_) = false;
  uint64_t next_ticket_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  uint64_t serving_ticket_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  uint64_t generation_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  int64_t task_count_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  absl::FunctionRef<void(int64_t, int)>* task_body_ MOEBIUS_GUARDED_BY(mutex_) = nullptr;
  int followers_running_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> next_index_{0};
  std::vector<std::thread> threads_;  // all but the first
};

Executor::Executor(int num_threads) : impl_(std::make_unique<Impl>(num_threads)) {}
Executor::~Executor() = default;
int Executor::num_threads() const { return impl_->num_threads(); }
void Executor::Run(absl::FunctionRef<void()> body) { impl_->Run(body); }
void Executor::ParallelFor(int64_t count, absl::FunctionRef<void(int64_t, int)> body) {
  impl_->ParallelFor(count, body);
}
bool Executor::OnExecutorThread() { return on_executor_thread; }

int DefaultNumThreads() {
  int affinity_cpus = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  cpu_set_t affinity;
  if (sched_getaffinity(0, sizeof(affinity), &affinity) == 0) affinity_cpus = CPU_COUNT(&affinity);
  return NumThreadsFor(affinity_cpus, CpuQuota(""));
}

}  // namespace moebius
