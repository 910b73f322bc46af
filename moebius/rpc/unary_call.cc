// SPDX-License-Identifier: Apache-2.0
#include "moebius/rpc/unary_call.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/wire/error_detail.h"
#include "moebius/wire/grpc/grpc_status.h"

namespace moebius {
namespace {

absl::Status FullQueue(const WorkerPool& pool) {
  ErrorDetail detail;
  detail.retryable = true;
  return WithHint(
      WithDetail(absl::ResourceExhaustedError(absl::StrCat(
                     pool.capacity(), " calls of this kind wait already, which is the limit")),
                 detail),
      "try again later");
}

}  // namespace

grpc::ServerUnaryReactor* RunOnPool(grpc::CallbackServerContext* context, WorkerPool& pool,
                                    std::function<absl::Status()> work) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const bool taken = pool.TryRun([context, reactor, work = std::move(work)] {
    reactor->Finish(context->IsCancelled() ? grpc::Status::CANCELLED : ToGrpcStatus(work()));
  });
  if (!taken) reactor->Finish(ToGrpcStatus(FullQueue(pool)));
  return reactor;
}

grpc::ServerUnaryReactor* AnswerNow(grpc::CallbackServerContext* context,
                                    const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

absl::Duration TimeLeft(const grpc::CallbackServerContext& context, absl::Duration cap) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return cap;
  // gRPC tells deadlines by the wall clock, rebuilt from the time that travelled.
  return std::min(cap, absl::FromChrono(deadline - std::chrono::system_clock::now()));
}

}  // namespace moebius
