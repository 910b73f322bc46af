// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/ring.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/transport/shm/streaming_copy.h"

namespace moebius {

absl::StatusOr<bool> RingWriter::TryWrite(const WireFrame& frame) {
  const uint64_t payload_bytes = PayloadBytes(frame.payload);
  const uint64_t record_bytes = RecordBytes(payload_bytes);
  MOEBIUS_CHECK_LE(record_bytes, memory_.bytes / 2);
  MOEBIUS_ASSIGN_OR_RETURN(bool has_room, HasRoomFor(record_bytes));
  if (!has_room) {
    // Either the reader sees the flag after its next step, or that step is seen here. The flag
    // stays: what it asks for is owed to an earlier refusal too.
    memory_.control->writer_waits.store(1);
    MOEBIUS_ASSIGN_OR_RETURN(has_room, HasRoomFor(record_bytes));
    if (!has_room) return false;
  }
  CopyIn(written_, reinterpret_cast<const uint8_t*>(&payload_bytes), sizeof(payload_bytes));
  CopyIn(written_ + kRingLineBytes, frame.header.data(), kFrameHeaderBytes);
  uint64_t position = written_ + kRecordPrefixBytes;
  for (const SharedBytes& piece : frame.payload) {
    CopyIn(position, piece.data(), piece.size());
    position += piece.size();
  }
  written_ += record_bytes;
  memory_.control->written.store(written_);
  return true;
}

bool RingWriter::TakeReaderWaits() {
  std::atomic<uint32_t>& waits = memory_.control->reader_waits;
  return waits.load() != 0 && waits.exchange(0) != 0;
}

absl::StatusOr<bool> RingWriter::HasRoomFor(uint64_t record_bytes) {
  if (written_ - consumed_ + record_bytes <= memory_.bytes) return true;
  const uint64_t consumed = memory_.control->consumed.load();
  if (consumed < consumed_ || consumed > written_) {
    return absl::DataLossError(absl::StrCat("shared memory: the reader is at byte ", consumed,
                                            ", not between ", consumed_, " and ", written_));
  }
  consumed_ = consumed;
  return written_ - consumed_ + record_bytes <= memory_.bytes;
}

void RingWriter::CopyIn(uint64_t position, const uint8_t* bytes, uint64_t size) {
  if (size == 0) return;
  const uint64_t offset = position % memory_.bytes;
  const uint64_t before_end = std::min(size, memory_.bytes - offset);
  StreamingCopy(memory_.data + offset, bytes, before_end);
  StreamingCopy(memory_.data, bytes + before_end, size - before_end);
}

absl::StatusOr<std::optional<WireFrame>> RingReader::Read() {
  if (written_ == consumed_) {
    const uint64_t written = Written();
    if (written == consumed_) return std::nullopt;
    const uint64_t available = written - consumed_;
    if (available > memory_.bytes || available % kRingLineBytes != 0) {
      return absl::DataLossError(absl::StrCat("shared memory: the writer is at byte ", written,
                                              " and the reader at ", consumed_, " of a ring of ",
                                              memory_.bytes));
    }
    written_ = written;
  }
  const uint64_t available = written_ - consumed_;
  if (available < kRecordPrefixBytes) {
    return absl::DataLossError(
        absl::StrCat("shared memory: ", available, " bytes are less than a record"));
  }
  // From here on only the private copy is looked at: the other end can change its own any time.
  uint64_t payload_bytes = 0;
  CopyOut(consumed_, reinterpret_cast<uint8_t*>(&payload_bytes), sizeof(payload_bytes));
  if (payload_bytes > max_payload_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("shared memory: a payload of ", payload_bytes,
                                                     " bytes, the limit is ", max_payload_bytes_));
  }
  if (RecordBytes(payload_bytes) > available) {
    return absl::DataLossError(absl::StrCat("shared memory: a payload of ", payload_bytes,
                                            " bytes in ", available, " bytes of records"));
  }
  WireFrame frame;
  CopyOut(consumed_ + kRingLineBytes, frame.header.data(), kFrameHeaderBytes);
  if (payload_bytes > 0) {
    BytesBuilder builder = buffers_.Make(payload_bytes);
    CopyOut(consumed_ + kRecordPrefixBytes, builder.data(), payload_bytes);
    frame.payload.push_back(std::move(builder).Share());
  }
  consumed_ += RecordBytes(payload_bytes);
  memory_.control->consumed.store(consumed_);
  return frame;
}

bool RingReader::Sleep() {
  // Either the writer sees the flag after its next record, or that record is seen here.
  memory_.control->reader_waits.store(1);
  if (Written() == consumed_ && !HasEnded()) return true;
  memory_.control->reader_waits.store(0);
  return false;
}

bool RingReader::TakeWriterWaits() {
  if (Written() - consumed_ > memory_.bytes / 2) return false;
  std::atomic<uint32_t>& waits = memory_.control->writer_waits;
  return waits.load() != 0 && waits.exchange(0) != 0;
}

void RingReader::Freeze() {
  if (!frozen_.has_value()) frozen_ = memory_.control->written.load();
}

void RingReader::CopyOut(uint64_t position, uint8_t* bytes, uint64_t size) const {
  const uint64_t offset = position % memory_.bytes;
  const uint64_t before_end = std::min(size, memory_.bytes - offset);
  std::memcpy(bytes, memory_.data + offset, before_end);
  if (before_end < size) std::memcpy(bytes + before_end, memory_.data, size - before_end);
}

}  // namespace moebius
