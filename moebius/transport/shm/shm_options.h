// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/telemetry/log_limit.h"
#include "moebius/transport/frame/buffer_pool.h"

namespace moebius {

/// What the shared memory transport may use and how long it waits.
struct ShmOptions {
  /// Of one frame, at both ends: FrameLimits::max_payload_bytes of the configuration.
  uint64_t max_payload_bytes = uint64_t{1} << 20;
  /// Of each direction of a dialed link; rounded up to pages. 0: two of the largest frames, so that
  /// one is written while another is read. Pages that were never written cost nothing.
  uint64_t ring_bytes = 0;
  /// Of each direction of an accepted link.
  uint64_t max_ring_bytes = uint64_t{64} << 20;

  /// Of the provider: memory of frames that were consumed, kept for the next ones while there are
  /// links.
  uint64_t max_idle_bytes = uint64_t{8} << 20;

  uint32_t max_connections = 1024;             // of one listener
  uint32_t max_connections_per_process = 256;  // of one listener and dialing process
  /// Connections of one listener that have not handed over their memory yet; one more cuts the
  /// oldest.
  uint32_t max_handshakes = 64;
  /// A connection that has not handed over its memory for this long is cut.
  absl::Duration silence_limit = absl::Seconds(2);
  /// How long a dialing end waits for a listener whose queue of connections is full.
  absl::Duration connect_timeout = absl::Seconds(2);

  /// A connection that a listener closed at once: a sentence for the log; may be null. From the
  /// provider's thread, as often as the processes of this host like: whoever writes it bounds it by
  /// its source. Outlives the provider.
  std::function<void(const LogSource&, const std::string&)> on_refusal;
};

/// What logs and metrics call the port of links.
inline constexpr absl::string_view kShmPort = "shm";

/// Of each connection: its socket, and the bell of either end.
inline constexpr uint64_t kDescriptorsPerShmConnection = 3;

/// Makes a listener keep no more connections than a process of so many descriptors can afford: it
/// has a quarter of them, and no process more than three quarters of the connections. The lanes of
/// two peers always have room. Raises nothing. Pure.
void BoundByDescriptors(uint64_t max_descriptors, ShmOptions* options);

/// Sums over all links and listeners of a provider since the start.
struct ShmFigures {
  uint64_t accepted = 0;    // connections of this user's processes
  uint64_t crowded = 0;     // closed at once, above a bound
  uint64_t refused = 0;     // of other users, or with a handshake that is wrong
  uint64_t silent_cut = 0;  // without a handshake in time
  uint64_t open = 0;        // connections now, at the listening end
  uint64_t num_links = 0;   // now, at both ends
  uint64_t frames_sent = 0;
  uint64_t frames_received = 0;
  uint64_t copied_bytes = 0;  // payload, into rings and out of them
  uint64_t num_wakes = 0;     // of the other end: a system call each
  uint64_t num_waits = 0;     // of the provider's thread: a system call each
  BufferPoolFigures buffers;  // of received frames
};

}  // namespace moebius
