// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/shared_segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

constexpr uint64_t SegmentBytes(uint64_t ring_bytes) { return kSegmentPageBytes + 2 * ring_bytes; }

absl::Status NoMemory(const char* step) {
  return absl::ResourceExhaustedError(
      absl::StrCat("shared memory: ", step, ": ", std::strerror(errno)));
}

}  // namespace

SharedSegment::~SharedSegment() { munmap(base_, SegmentBytes(ring_bytes_)); }

absl::StatusOr<SharedSegment::Created> SharedSegment::Create(uint64_t ring_bytes) {
  Created created;
  created.memory = OwnedFd(memfd_create("moebius-link", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (created.memory.fd() < 0) return NoMemory("memfd_create");
  if (ftruncate(created.memory.fd(), static_cast<off_t>(SegmentBytes(ring_bytes))) != 0) {
    return NoMemory("ftruncate");
  }
  if (fcntl(created.memory.fd(), F_ADD_SEALS, kSeals) != 0) return NoMemory("sealing");
  MOEBIUS_ASSIGN_OR_RETURN(created.segment, MapSealed(created.memory, ring_bytes));
  return created;
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Map(const OwnedFd& memory,
                                                                  uint64_t ring_bytes) {
  // First: it fails for all that is not memory, and unlike the calls below it never waits for
  // whoever keeps a file of an unknown kind.
  const int seals = fcntl(memory.fd(), F_GET_SEALS);
  if (seals < 0) {
    return absl::InvalidArgumentError("shared memory: the descriptor is not of memory");
  }
  if ((seals & kSeals) != kSeals || (seals & F_SEAL_WRITE) != 0) {
    return absl::InvalidArgumentError("shared memory: its size is not sealed");
  }
  struct stat status = {};
  struct statfs file_system = {};
  if (fstat(memory.fd(), &status) != 0 || fstatfs(memory.fd(), &file_system) != 0) {
    return absl::InvalidArgumentError("shared memory: the descriptor cannot be looked at");
  }
  // Huge pages can be missing when they are touched; ordinary ones cannot.
  if (!S_ISREG(status.st_mode) || file_system.f_type != TMPFS_MAGIC) {
    return absl::InvalidArgumentError("shared memory: the descriptor is not of ordinary memory");
  }
  // After the seals: the answer stays true.
  if (static_cast<uint64_t>(status.st_size) != SegmentBytes(ring_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory: ", status.st_size, " bytes, not ", SegmentBytes(ring_bytes)));
  }
  return MapSealed(memory, ring_bytes);
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::MapSealed(const OwnedFd& memory,
                                                                        uint64_t ring_bytes) {
  void* base =
      mmap(nullptr, SegmentBytes(ring_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd(), 0);
  if (base == MAP_FAILED) return NoMemory("mmap");
  return std::unique_ptr<SharedSegment>(new SharedSegment(static_cast<uint8_t*>(base), ring_bytes));
}

RingMemory SharedSegment::ring(int index) const {
  MOEBIUS_CHECK(index == 0 || index == 1);
  // Fresh memory is zero, which is what the words begin with.
  auto* controls = reinterpret_cast<RingControl*>(base_);
  const uint64_t begin = kSegmentPageBytes + static_cast<uint64_t>(index) * ring_bytes_;
  return {controls + index, base_ + begin, ring_bytes_};
}

}  // namespace moebius
