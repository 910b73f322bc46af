// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/grpc_stream.h"

#include <utility>

#include "moebius/base/check.h"
#include "moebius/transport/grpc/grpc_frame.h"

namespace moebius {

void StreamCount::Increase() {
  MutexLock lock(mutex_);
  ++value_;
}

void StreamCount::Decrease() {
  MutexLock lock(mutex_);
  MOEBIUS_CHECK_GT(value_, 0u);
  --value_;
  changed_.SignalAll();
}

uint64_t StreamCount::value() const {
  MutexLock lock(mutex_);
  return value_;
}

void StreamCount::WaitForZero() {
  MutexLock lock(mutex_);
  while (value_ > 0) changed_.Wait(mutex_);
}

GrpcStream::GrpcStream(const GrpcStreamOptions& options, std::shared_ptr<StreamCount> count)
    : options_(options), count_(std::move(count)) {
  count_->Increase();
}

GrpcStream::~GrpcStream() { count_->Decrease(); }

void GrpcStream::Attach(LinkSink& sink) {
  {
    MutexLock delivery(delivery_mutex_);
    sink_ = &sink;
  }
  {
    MutexLock writable(writable_mutex_);
    writable_sink_ = &sink;
  }
  Open();
}

void GrpcStream::Detach() {
  {
    MutexLock delivery(delivery_mutex_);
    sink_ = nullptr;
  }
  {
    MutexLock writable(writable_mutex_);
    writable_sink_ = nullptr;
  }
  Cancel();
}

bool GrpcStream::TryWrite(WireFrame& frame) {
  const uint64_t bytes = kFrameHeaderBytes + PayloadBytes(frame.payload);
  MutexLock lock(mutex_);
  if (ended_ || closing_) {
    // Nobody reads it any more: OnClosed is on its way.
    frame = WireFrame();
    return true;
  }
  if (!queue_.empty() && outstanding_bytes_ + bytes > options_.max_outstanding_bytes) {
    was_refused_ = true;
    return false;
  }
  queue_.push_back({EncodeGrpcFrame(std::move(frame)), bytes});
  frame = WireFrame();
  outstanding_bytes_ += bytes;
  if (!is_writing_) WriteNext();
  return true;
}

void GrpcStream::Close() {
  MutexLock lock(mutex_);
  closing_ = true;
  if (!is_writing_ && !ended_) WriteNext();
}

LinkFacts GrpcStream::facts() const {
  MutexLock lock(mutex_);
  return facts_;
}

void GrpcStream::SetFacts(LinkFacts facts) {
  MutexLock lock(mutex_);
  facts_ = std::move(facts);
}

grpc::WriteOptions GrpcStream::WriteOptionsOf(Flush flush) {
  grpc::WriteOptions options;
  if (flush == Flush::kWithNext) options.set_buffer_hint();
  return options;
}

void GrpcStream::WriteNext() {
  if (!queue_.empty()) {
    is_writing_ = true;
    BeginWrite(&queue_.front().buffer, queue_.size() > 1 ? Flush::kWithNext : Flush::kNow);
  } else if (closing_ && !std::exchange(writing_ended_, true)) {
    EndWriting();
  }
}

void GrpcStream::End() {
  if (std::exchange(ended_, true)) return;
  // The write under way still needs its buffer.
  while (queue_.size() > (is_writing_ ? 1u : 0u)) {
    outstanding_bytes_ -= queue_.back().bytes;
    queue_.pop_back();
  }
  if (!is_writing_) OnWritesOver();
}

void GrpcStream::OnWritten(bool ok) {
  bool has_room = false;
  {
    MutexLock lock(mutex_);
    is_writing_ = false;
    outstanding_bytes_ -= queue_.front().bytes;
    queue_.pop_front();
    if (ended_) {
      OnWritesOver();
    } else if (!ok) {
      End();
    } else {
      WriteNext();
    }
    const bool is_low = ended_ || outstanding_bytes_ <= options_.max_outstanding_bytes / 2;
    has_room = was_refused_ && is_low;
    if (has_room) was_refused_ = false;
  }
  if (!has_room) return;
  MutexLock writable(writable_mutex_);
  if (writable_sink_ != nullptr) writable_sink_->OnWritable();
}

void GrpcStream::OnRead(bool ok) {
  if (!ok) {
    MutexLock lock(mutex_);
    End();
    return;
  }
  absl::StatusOr<WireFrame> frame = DecodeGrpcFrame(read_buffer_, options_.max_payload_bytes);
  read_buffer_.Clear();
  if (!frame.ok()) {
    {
      MutexLock lock(mutex_);
      local_reason_ = frame.status();
      End();
    }
    return Refuse();
  }
  Deliver(*std::move(frame));
}

void GrpcStream::Deliver(WireFrame frame) {
  MutexLock delivery(delivery_mutex_);
  // Detached: it has been cancelled, and ends without another read.
  if (sink_ == nullptr) return;
  sink_->OnFrame(std::move(frame));
  BeginRead(&read_buffer_);
}

void GrpcStream::OnOver(const absl::Status& reason) {
  absl::Status why = reason;
  {
    MutexLock lock(mutex_);
    if (!local_reason_.ok()) why = local_reason_;
    ended_ = true;
    queue_.clear();
    outstanding_bytes_ = 0;
  }
  MutexLock delivery(delivery_mutex_);
  if (sink_ != nullptr) std::exchange(sink_, nullptr)->OnClosed(std::move(why));
}

}  // namespace moebius
