// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/base/owned_fd.h"
#include "moebius/transport/link.h"
#include "moebius/transport/shm/poll_loop.h"
#include "moebius/transport/shm/ring.h"
#include "moebius/transport/shm/shm_options.h"
#include "moebius/transport/shm/shm_socket.h"

namespace moebius {

/// What all links and listeners of a provider share. It outlives the links' and listeners' owners.
struct ShmContext {
  using Counter = std::atomic<uint64_t>;

  explicit ShmContext(const ShmOptions& shm_options)
      : options(shm_options), buffers(shm_options.max_idle_bytes) {}

  const ShmOptions options;
  uint64_t ring_bytes = 0;  // of each direction of a dialed link
  Counter accepted{0}, crowded{0}, refused{0}, silent_cut{0}, open{0}, num_links{0};
  Counter frames_sent{0}, frames_received{0}, copied_bytes{0}, num_wakes{0};
  BufferPool buffers;              // of received frames
  std::unique_ptr<PollLoop> loop;  // last: its end is the end of all uses of the above

  /// Rings that every end takes: a writer that waits for half a ring has room for any frame.
  uint64_t MinRingBytes() const { return 2 * RecordBytes(options.max_payload_bytes); }
};

inline void Increase(ShmContext::Counter& counter, uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

/// A link with memory of its own, to whoever listens on `address` when it is started.
/// RESOURCE_EXHAUSTED without memory or descriptors.
absl::StatusOr<std::unique_ptr<Link>> MakeDialedShmLink(ShmContext& context,
                                                        const Address& address);

/// What a listener has found good: the same user, at least MinRingBytes.
struct ShmAccepted {
  OwnedFd socket;
  ShmHandover handover;
  ShmPeer peer;
  std::shared_ptr<void> connection;  // let go when the link has ended
};
/// Fails as SharedSegment::Map and Bell::Open do; the socket is left.
absl::StatusOr<std::unique_ptr<Link>> MakeAcceptedShmLink(ShmContext& context,
                                                          ShmAccepted& accepted);

}  // namespace moebius
