// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/base/owned_fd.h"
#include "moebius/transport/shm/ring.h"

namespace moebius {

/// The memory of one link, mapped: a page with the control words of two rings, then the data of
/// ring 0 (written by the dialing end), then that of ring 1.
class SharedSegment {
 public:
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  /// New memory without a name, zero, whose size can never change again, and its descriptor for the
  /// other end. RESOURCE_EXHAUSTED when there is none. `ring_bytes` > 0, whole pages.
  struct Created;
  static absl::StatusOr<Created> Create(uint64_t ring_bytes);

  /// Maps what another process sent. INVALID_ARGUMENT unless it is ordinary memory of exactly the
  /// right size that nobody can shrink, grow or unseal: then no access to it can fail.
  /// `ring_bytes` > 0, at most 2^40, whole pages.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Map(const OwnedFd& memory,
                                                            uint64_t ring_bytes);

  /// `index` is 0 or 1.
  RingMemory ring(int index) const;

 private:
  SharedSegment(uint8_t* base, uint64_t ring_bytes) : base_(base), ring_bytes_(ring_bytes) {}
  static absl::StatusOr<std::unique_ptr<SharedSegment>> MapSealed(const OwnedFd& memory,
                                                                  uint64_t ring_bytes);

  uint8_t* const base_;
  const uint64_t ring_bytes_;
};

struct SharedSegment::Created {
  std::unique_ptr<SharedSegment> segment;
  OwnedFd memory;
};

inline constexpr uint64_t kSegmentPageBytes = 4096;

}  // namespace moebius
