// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace moebius {

/// Runs task(0) … task(count - 1) on `num_threads` threads that live for this call, the caller's
/// included; fewer where the host has no more, and never more than `count`. For loading, where an
/// Executor's bodies would keep others from it: the tasks have no float environment of their own.
///
/// `on_done` is told of each task that ended OK, in any order, on the caller's thread. The first
/// failure is returned; tasks that have not begun by then never do. Returns when no task runs.
absl::Status RunParallelTasks(size_t count, int num_threads,
                              absl::FunctionRef<absl::Status(size_t index)> task,
                              absl::FunctionRef<void(size_t index)> on_done);

}  // namespace moebius
