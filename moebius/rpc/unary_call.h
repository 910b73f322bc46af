// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "moebius/rpc/worker_pool.h"

namespace moebius {

/// Answers a unary call from a pool: `work` fills the response and returns its status, which is
/// sent with its detail. A call whose caller has gone before its turn is not worked on.
/// RESOURCE_EXHAUSTED, retryable, when the pool's queue is full.
grpc::ServerUnaryReactor* RunOnPool(grpc::CallbackServerContext* context, WorkerPool& pool,
                                    std::function<absl::Status()> work);

/// Answers at once, for what neither computes nor waits.
grpc::ServerUnaryReactor* AnswerNow(grpc::CallbackServerContext* context,
                                    const absl::Status& status);

/// What is left of the call's deadline, at most `cap`; zero or less when it has passed.
absl::Duration TimeLeft(const grpc::CallbackServerContext& context, absl::Duration cap);

}  // namespace moebius
