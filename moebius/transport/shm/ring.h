// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/transport/frame/buffer_pool.h"
#include "moebius/transport/link.h"

// One direction of a link in memory that another process can write to at any time. Both classes
// keep their own position in private memory and believe of the other's only what can be true.

namespace moebius {

/// A record: a line whose first 8 bytes are the payload's size, the frame's header, the payload;
/// padded to whole lines. Records follow one another around the ring, without gaps.
inline constexpr uint64_t kRingLineBytes = 64;
inline constexpr uint64_t kRecordPrefixBytes = kRingLineBytes + kFrameHeaderBytes;
constexpr uint64_t RecordBytes(uint64_t payload_bytes) {
  return (kRecordPrefixBytes + payload_bytes + kRingLineBytes - 1) / kRingLineBytes *
         kRingLineBytes;
}

/// The shared words of a ring. Zero at first. Each is written by one end, but for the two flags of
/// waiting: set by who waits, cleared by who is about to ring the other's bell.
struct RingControl {
  alignas(kRingLineBytes) std::atomic<uint64_t> written;  // bytes, since the beginning
  std::atomic<uint32_t> ended;                            // no record will follow
  std::atomic<uint32_t> writer_waits;
  alignas(kRingLineBytes) std::atomic<uint64_t> consumed;  // bytes, since the beginning
  std::atomic<uint32_t> reader_waits;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(RingControl) == 2 * kRingLineBytes);

/// Where a ring is: `bytes`, a multiple of kRingLineBytes, at a line's begin. Borrowed.
struct RingMemory {
  RingControl* control = nullptr;
  uint8_t* data = nullptr;
  uint64_t bytes = 0;
};

/// Not thread-safe.
class RingWriter {
 public:
  explicit RingWriter(const RingMemory& memory) : memory_(memory) {}

  /// Copies the frame into the ring: true. False: there is no room; once the reader has emptied
  /// half of the ring it takes `writer_waits` back and rings. DATA_LOSS when the reader's position
  /// is impossible. The frame's record must be at most half of the ring.
  absl::StatusOr<bool> TryWrite(const WireFrame& frame);
  /// After TryWrite or End: true when the reader has gone to sleep and its bell must be rung.
  bool TakeReaderWaits();
  /// TryWrite has said false, and the reader has made room since.
  bool IsReleased() const { return memory_.control->writer_waits.load() == 0; }
  void End() { memory_.control->ended.store(1); }
  /// The reader has consumed everything.
  bool IsDrained() const { return memory_.control->consumed.load() == written_; }

 private:
  absl::StatusOr<bool> HasRoomFor(uint64_t record_bytes);
  void CopyIn(uint64_t position, const uint8_t* bytes, uint64_t size);

  const RingMemory memory_;
  uint64_t written_ = 0;
  uint64_t consumed_ = 0;  // the reader's, as last read
};

/// Not thread-safe.
class RingReader {
 public:
  /// Payload above `max_payload_bytes` is refused before anything is allocated for it; `buffers`
  /// outlives the reader.
  RingReader(const RingMemory& memory, uint64_t max_payload_bytes, BufferPool& buffers)
      : memory_(memory), max_payload_bytes_(max_payload_bytes), buffers_(buffers) {}

  /// The next frame, in private memory, its payload in one 64-byte aligned piece. Nothing: the ring
  /// is empty. DATA_LOSS when the writer's position or a record is impossible, RESOURCE_EXHAUSTED
  /// when a payload is above the limit; nothing can be read after a failure.
  absl::StatusOr<std::optional<WireFrame>> Read();
  /// Goes to sleep: true. False: something has come meanwhile, read again.
  bool Sleep();
  /// After Read: true when the writer waits and has room now; its bell must be rung.
  bool TakeWriterWaits();
  /// The writer has said that nothing will follow what is in the ring.
  bool HasEnded() const { return memory_.control->ended.load() != 0; }
  /// What has been written up to now is all that will be read.
  void Freeze();

 private:
  void CopyOut(uint64_t position, uint8_t* bytes, uint64_t size) const;
  uint64_t Written() const { return frozen_.value_or(memory_.control->written.load()); }

  const RingMemory memory_;
  const uint64_t max_payload_bytes_;
  BufferPool& buffers_;
  uint64_t consumed_ = 0;
  uint64_t written_ = 0;  // the writer's, as last read and believed
  std::optional<uint64_t> frozen_;
};

}  // namespace moebius
