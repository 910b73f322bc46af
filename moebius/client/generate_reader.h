// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/client_callback.h>

#include "absl/time/time.h"

#include "moebius/base/mutex.h"
#include "proto/moebius/api/router/v1/router.grpc.pb.h"

namespace moebius {

/// The chunks of one Generate, for a reader that looks up in between: to draw, or to see Ctrl-C.
/// One chunk is fetched at a time. Used by one thread beside gRPC's.
class GenerateReader final
    : public grpc::ClientReadReactor<moebius::api::router::v1::GenerateResponse> {
 public:
  enum class News { kChunk, kNothingYet, kEnd };

  /// Starts the call. `context` and `request` live longer.
  GenerateReader(moebius::api::router::v1::Router::Stub& stub, grpc::ClientContext& context,
                 const moebius::api::router::v1::GenerateRequest& request);
  /// The call has ended: Next has said so.
  ~GenerateReader() override = default;

  /// The next chunk, or nothing within `timeout`. After kEnd `status` is final.
  News Next(absl::Duration timeout, moebius::api::router::v1::GenerateResponse* chunk)
      MOEBIUS_EXCLUDES(mutex_);
  grpc::Status status() const MOEBIUS_EXCLUDES(mutex_);

  void OnReadDone(bool ok) override MOEBIUS_EXCLUDES(mutex_);
  void OnDone(const grpc::Status& status) override MOEBIUS_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  moebius::api::router::v1::GenerateResponse fetched_;  // gRPC's while a read is under way
  bool has_chunk_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool is_done_ MOEBIUS_GUARDED_BY(mutex_) = false;
  grpc::Status status_ MOEBIUS_GUARDED_BY(mutex_);
};

}  // namespace moebius
