// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/base/owned_fd.h"

namespace moebius {

/// How one end of a link wakes the other: a pipe whose bytes nobody counts.
///
/// Each end opens the pipe for itself. A descriptor that another process was given shares its
/// status flags with the one that it came from: whoever took O_NONBLOCK away, by intent or by
/// accident, would make the other's next ring wait for ever.
///
/// Invariants:
/// 1. No call of this class waits, whatever the other end does with its descriptors.
/// 2. Whoever watches it has an event after each ring, and the pipe is not empty until then. Rings
///    that come fast become one event.
///
/// Not thread-safe; an empty one can only be assigned.
class Bell {
 public:
  Bell() = default;

  /// A new one, with the descriptor that is to be handed over. RESOURCE_EXHAUSTED.
  struct Made;
  static absl::StatusOr<Made> Make();
  /// One that another process made. INVALID_ARGUMENT when it is no pipe.
  static absl::StatusOr<Bell> Open(const OwnedFd& handed_over);

  /// To be watched, edge-triggered; never to be handed over.
  int fd() const { return fd_.fd(); }
  void Ring() const;

 private:
  explicit Bell(OwnedFd fd) : fd_(std::move(fd)) {}
  OwnedFd fd_;
};

struct Bell::Made {
  Bell bell;
  OwnedFd for_other_end;
};

}  // namespace moebius
