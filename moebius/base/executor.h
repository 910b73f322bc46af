// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"

namespace moebius {

/// Where output arithmetic runs, and nowhere else in a process: inside bodies, whose threads are in
/// the float environment of float_environment.h meanwhile.
///
/// Invariants:
/// 1. `Run` executes one body at a time, in the order of arrival, on the thread that calls it.
/// 2. `ParallelFor` may be called only from inside a body; nested calls run their tasks inline.
/// 3. Which thread runs a task never changes a result: tasks write disjoint outputs.
///
/// Thread-safe. The destructor waits for running bodies.
class Executor {
 public:
  /// `num_threads` >= 1, whoever calls Run included; fewer where the host has no more threads.
  explicit Executor(int num_threads);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  int num_threads() const;

  /// Waits for the bodies that came before, then runs `body` here: no thread is switched to.
  /// Called from inside a body it runs at once.
  void Run(absl::FunctionRef<void()> body);

  /// Calls body(index, thread_index) for index in [0, count), thread_index in [0, num_threads),
  /// and returns when all calls have ended. Calls with one thread_index never overlap.
  void ParallelFor(int64_t count, absl::FunctionRef<void(int64_t, int)> body);

  /// True inside a body or a task of any executor.
  static bool OnExecutorThread();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Threads to start when nobody says: min(CPU affinity, ceil(cgroup quota)), at least 1.
/// Reads cgroup v1 and v2.
int DefaultNumThreads();

}  // namespace moebius
