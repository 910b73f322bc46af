// SPDX-License-Identifier: Apache-2.0
#include "moebius/client/generate_reader.h"

#include "moebius/base/clock.h"

namespace moebius {

namespace pb = ::moebius::api::router::v1;

GenerateReader::GenerateReader(pb::Router::Stub& stub, grpc::ClientContext& context,
                               const pb::GenerateRequest& request) {
  stub.async()->Generate(&context, &request, this);
  // Reads are started from outside gRPC's calls: without the hold it could be done in between.
  AddHold();
  StartRead(&fetched_);
  StartCall();
}

GenerateReader::News GenerateReader::Next(absl::Duration timeout, pb::GenerateResponse* chunk) {
  const absl::Duration end = Clock::Monotonic().Now() + timeout;
  {
    MutexLock lock(mutex_);
    while (!has_chunk_) {
      if (is_done_) return News::kEnd;
      const absl::Duration left = end - Clock::Monotonic().Now();
      if (left <= absl::ZeroDuration()) return News::kNothingYet;
      changed_.WaitWithTimeout(mutex_, left);
    }
    has_chunk_ = false;
    chunk->Swap(&fetched_);
  }
  StartRead(&fetched_);
  return News::kChunk;
}

grpc::Status GenerateReader::status() const {
  MutexLock lock(mutex_);
  return status_;
}

void GenerateReader::OnReadDone(bool ok) {
  if (!ok) return RemoveHold();  // no read follows
  MutexLock lock(mutex_);
  has_chunk_ = true;
  changed_.Signal();
}

void GenerateReader::OnDone(const grpc::Status& status) {
  MutexLock lock(mutex_);
  is_done_ = true;
  status_ = status;
  changed_.Signal();
}

}  // namespace moebius
