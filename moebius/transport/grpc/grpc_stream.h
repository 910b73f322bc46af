// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/impl/codegen/call_op_set.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"

#include "moebius/base/mutex.h"
#include "moebius/base/spare_memory.h"
#include "moebius/transport/link.h"

namespace moebius {

/// Counts the streams of one provider, so that it can outlive them.
class StreamCount {
 public:
  void Increase() MOEBIUS_EXCLUDES(mutex_);
  void Decrease() MOEBIUS_EXCLUDES(mutex_);
  uint64_t value() const MOEBIUS_EXCLUDES(mutex_);
  void WaitForZero() MOEBIUS_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  uint64_t value_ MOEBIUS_GUARDED_BY(mutex_) = 0;
};

struct GrpcStreamOptions {
  uint64_t max_payload_bytes = 0;      // of one frame that arrives
  uint64_t max_outstanding_bytes = 0;  // taken by TryWrite and not yet written to the connection
};

/// What both ends of a stream share: frames out through a bounded queue and one write at a time,
/// frames in one by one, each read begun when the sink has consumed the frame before.
///
/// Invariants:
/// 1. At most one read and one write are under way; reads begin in Start or after OnFrame.
/// 2. Once `ended_` no write begins; what waits is let go.
/// 3. Sinks are called with a lock held that Detach takes, and never with `mutex_`.
///
/// The stream lives until gRPC's OnDone, whether or not its Link does.
class GrpcStream : public std::enable_shared_from_this<GrpcStream> {
 public:
  GrpcStream(const GrpcStreamOptions& options, std::shared_ptr<StreamCount> count);
  virtual ~GrpcStream();
  GrpcStream(const GrpcStream&) = delete;
  GrpcStream& operator=(const GrpcStream&) = delete;

  // The Link's calls.
  void Attach(LinkSink& sink);
  /// Ends the stream at once. No call of the sink runs or begins after this.
  void Detach();
  bool TryWrite(WireFrame& frame) MOEBIUS_EXCLUDES(mutex_);
  void Close() MOEBIUS_EXCLUDES(mutex_);
  LinkFacts facts() const MOEBIUS_EXCLUDES(mutex_);

 protected:
  enum class Flush { kNow, kWithNext };
  static grpc::WriteOptions WriteOptionsOf(Flush flush);

  // gRPC's operations, at this end of the stream.
  virtual void Open() = 0;
  virtual void BeginRead(grpc::ByteBuffer* buffer) = 0;
  /// `flush` kNow: nothing waits behind it. kWithNext: the next write follows at once, gRPC may
  /// keep the bytes for it (at most 64 KiB, its write buffer) and save a system call.
  virtual void BeginWrite(const grpc::ByteBuffer* buffer, Flush flush) MOEBIUS_REQUIRES(mutex_) = 0;
  /// Everything has been written and Close was called.
  virtual void EndWriting() MOEBIUS_REQUIRES(mutex_) = 0;
  /// `ended_` has just become true and no write is under way, or the last one has completed.
  virtual void OnWritesOver() MOEBIUS_REQUIRES(mutex_) = 0;
  /// Ends the stream, and `ended_` with it.
  virtual void Cancel() MOEBIUS_EXCLUDES(mutex_) = 0;
  /// `local_reason_` has been set and `ended_` with it: ends the stream so that the other end hears
  /// the reason, where that is possible without waiting for it.
  virtual void Refuse() MOEBIUS_EXCLUDES(mutex_) = 0;

  // gRPC's reactions.
  void OnRead(bool ok) MOEBIUS_EXCLUDES(mutex_);
  void OnWritten(bool ok) MOEBIUS_EXCLUDES(mutex_);
  /// The last call: the stream is over. A local reason, where there is one, comes first.
  void OnOver(const absl::Status& reason) MOEBIUS_EXCLUDES(mutex_);

  /// No more writes.
  void End() MOEBIUS_REQUIRES(mutex_);
  void SetFacts(LinkFacts facts) MOEBIUS_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  bool ended_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool is_writing_ MOEBIUS_GUARDED_BY(mutex_) = false;
  /// Why this end gave up, where it did.
  absl::Status local_reason_ MOEBIUS_GUARDED_BY(mutex_);
  grpc::ByteBuffer read_buffer_;  // of the read under way

 private:
  struct Outgoing {
    grpc::ByteBuffer buffer;
    uint64_t bytes = 0;
  };
  void WriteNext() MOEBIUS_REQUIRES(mutex_);
  void Deliver(WireFrame frame);

  const GrpcStreamOptions options_;
  const std::shared_ptr<StreamCount> count_;

  Mutex delivery_mutex_;  // held during OnFrame and OnClosed; taken before mutex_
  LinkSink* sink_ MOEBIUS_GUARDED_BY(delivery_mutex_) = nullptr;
  Mutex writable_mutex_;  // held during OnWritable; taken before mutex_
  LinkSink* writable_sink_ MOEBIUS_GUARDED_BY(writable_mutex_) = nullptr;

  SpareDeque<Outgoing> queue_ MOEBIUS_GUARDED_BY(mutex_);  // the first is being written
  uint64_t outstanding_bytes_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  bool was_refused_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool closing_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool writing_ended_ MOEBIUS_GUARDED_BY(mutex_) = false;
  LinkFacts facts_ MOEBIUS_GUARDED_BY(mutex_);
};

/// The Link of a stream.
class GrpcLink final : public Link {
 public:
  explicit GrpcLink(std::shared_ptr<GrpcStream> stream) : stream_(std::move(stream)) {}
  ~GrpcLink() override { stream_->Detach(); }
  void Start(LinkSink& sink) override { stream_->Attach(sink); }
  bool TryWrite(WireFrame& frame) override { return stream_->TryWrite(frame); }
  void Close() override { stream_->Close(); }
  LinkFacts facts() const override { return stream_->facts(); }

 private:
  const std::shared_ptr<GrpcStream> stream_;
};

}  // namespace moebius
