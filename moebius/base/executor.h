// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"

namespace moebius {

/// The threads on which output arithmetic runs, each in the float environment of
/// float_environment.h. All output arithmetic of a process runs here and nowhere else.
///
/// Invariants:
/// 1. `Run` executes one body at a time, in the order of arrival, on the executor's first thread.
/// 2. `ParallelFor` may be called only from inside a body; nested calls run their tasks inline.
/// 3. Which thread runs a task never changes a result: tasks write disjoint outputs.
///
/// Thread-safe. The destructor waits for running bodies.
class Executor {
 public:
  /// `num_threads` >= 1, the first thread included.
  explicit Executor(int num_threads);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  int num_threads() const;

  /// Runs `body` on the executor and returns when it has ended. Called from inside a body it runs
  /// inline.
  void Run(absl::FunctionRef<void()> body);

  /// Calls body(index, thread_index) for index in [0, count), thread_index in [0, num_threads),
  /// and returns when all calls have ended. Calls with one thread_index never overlap.
  void ParallelFor(int64_t count, absl::FunctionRef<void(int64_t, int)> body);

  /// True on a thread of any executor.
  static bool OnExecutorThread();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Threads to start when nobody says: min(CPU affinity, ceil(cgroup quota)), at least 1.
/// Reads cgroup v1 and v2.
int DefaultNumThreads();

}  // namespace moebius
