// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"

#include "moebius/base/mutex.h"
#include "moebius/rpc/worker_pool.h"
#include "proto/moebius/api/router/v1/router.pb.h"
#include "router_service/client_gate.h"
#include "router_service/front.h"
#include "router_service/rpc/call_watch.h"

namespace moebius {

/// The longest that a Generate may take when nobody says: a fixed part and one per token.
inline constexpr absl::Duration kGenerateAllowance = absl::Seconds(60);
inline constexpr absl::Duration kGenerateAllowancePerToken = absl::Seconds(1);

class CallWatch;

/// What all Generate calls of a router share.
struct GenerateCalls {
  RouterFront& front;
  WorkerPool& pool;  // its queue holds one task of each call that was let in
  int64_t max_calls = 0;
  ClientGate* gate = nullptr;         // null: anybody may call
  CallWatch* watch = nullptr;         // ends calls whose reader takes nothing; null: nobody
  std::atomic<int64_t> num_calls{0};  // that were let in and exist
};

/// One Generate: from the request to the last chunk, one outstanding write at a time.
///
/// gRPC's threads and the lead's only leave word here; conversion and writing run on the pool. The
/// request is cancelled at once when the caller has gone. Lives until gRPC's OnDone.
class GenerateCall final
    : public grpc::ServerWriteReactor<moebius::api::router::v1::GenerateResponse>,
      public WatchedCall,
      public std::enable_shared_from_this<GenerateCall> {
 public:
  /// Begins the call, or ends it with RESOURCE_EXHAUSTED where there are too many. Borrows all
  /// three; `context` and `request` live as long as the call.
  static GenerateCall* Start(GenerateCalls& calls, grpc::CallbackServerContext* context,
                             const moebius::api::router::v1::GenerateRequest* request);

  GenerateCall(GenerateCalls& calls, grpc::CallbackServerContext* context,
               const moebius::api::router::v1::GenerateRequest* request)
      : calls_(calls), context_(context), request_(request) {}
  ~GenerateCall() override {
    if (is_counted_) --calls_.num_calls;
  }

  void OnWriteDone(bool ok) override MOEBIUS_EXCLUDES(mutex_);
  void OnCancel() override MOEBIUS_EXCLUDES(mutex_);
  void OnDone() override MOEBIUS_EXCLUDES(mutex_);

  void EndIfStalled(absl::Duration now, absl::Duration max_wait) override MOEBIUS_EXCLUDES(mutex_);

 private:
  // Asks for a turn on the pool, unless one is due anyway.
  void Schedule();
  void TakeTurn() MOEBIUS_EXCLUDES(mutex_);
  // Takes a place among the client's calls and among all; once, before anything else.
  absl::Status TakePlace() MOEBIUS_EXCLUDES(mutex_);
  void Submit() MOEBIUS_REQUIRES(mutex_);
  void WriteNext() MOEBIUS_REQUIRES(mutex_);
  void FinishOnce(const absl::Status& status) MOEBIUS_REQUIRES(mutex_);

  GenerateCalls& calls_;
  grpc::CallbackServerContext* const context_;
  const moebius::api::router::v1::GenerateRequest* const request_;
  std::shared_ptr<GenerateCall> self_;  // until OnDone
  bool is_counted_ = false;             // has a place; strangers have none
  std::atomic<bool> is_scheduled_{false};

  Mutex mutex_;
  std::shared_ptr<GenerateStream> stream_ MOEBIUS_GUARDED_BY(mutex_);
  moebius::api::router::v1::GenerateResponse response_ MOEBIUS_GUARDED_BY(mutex_);
  std::shared_ptr<ClientPass> pass_ MOEBIUS_GUARDED_BY(mutex_);  // with a gate
  bool is_writing_ MOEBIUS_GUARDED_BY(mutex_) = false;
  absl::Duration write_begun_at_ MOEBIUS_GUARDED_BY(mutex_);
  bool is_stalled_ MOEBIUS_GUARDED_BY(mutex_) = false;  // and being ended: not finished meanwhile
  bool is_cancelled_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool is_finished_ MOEBIUS_GUARDED_BY(mutex_) = false;
};

/// The metadata "authorization" of a call; empty where there is none, and no known key where there
/// are several.
absl::string_view AuthorizationOf(const grpc::CallbackServerContext& context);
/// The metadata "traceparent" of a call; empty where there is none, or more than one.
std::string TraceparentOf(const grpc::CallbackServerContext& context);

/// The deadline of a request: what is left of the call's, the field's, and the allowance for its
/// tokens, whichever is least. Pure.
absl::Duration GenerateDeadline(const GenerateRequest& request, absl::Duration call_time_left);

}  // namespace moebius
