// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/bell.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"

namespace moebius {
namespace {

// So many rings fit before they are forgotten; all that a pipe can ever hold in memory.
constexpr int kPipeBytes = 4096;

std::string PathOf(const OwnedFd& fd) { return absl::StrCat("/proc/self/fd/", fd.fd()); }

// By its name: looking at a file of an unknown kind may wait for whoever keeps it.
bool IsPipe(const OwnedFd& fd) {
  std::array<char, 32> target = {};
  const ssize_t size = readlink(PathOf(fd).c_str(), target.data(), target.size());
  const absl::string_view kind(target.data(), size > 0 ? static_cast<size_t>(size) : 0);
  return absl::StartsWith(kind, "pipe:[");
}

// For reading too: a pipe that somebody can read from is never broken, so no signal comes of it.
OwnedFd OpenForOneself(const OwnedFd& fd) {
  return OwnedFd(open(PathOf(fd).c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
}

absl::Status CannotOpen() {
  return absl::ResourceExhaustedError(
      absl::StrCat("shared memory: a bell cannot be opened by /proc: ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<Bell::Made> Bell::Make() {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError("no descriptor for a bell");
  }
  const OwnedFd writing(ends[1]);
  Made made;
  made.for_other_end = OwnedFd(ends[0]);
  // It works with the usual size as well.
  fcntl(ends[0], F_SETPIPE_SZ, kPipeBytes);
  made.bell = Bell(OpenForOneself(made.for_other_end));
  if (made.bell.fd() < 0) return CannotOpen();
  return made;
}

absl::StatusOr<Bell> Bell::Open(const OwnedFd& handed_over) {
  if (!IsPipe(handed_over)) return absl::InvalidArgumentError("handover: a bell that is no pipe");
  Bell bell(OpenForOneself(handed_over));
  if (bell.fd() < 0) return CannotOpen();
  return bell;
}

void Bell::Ring() const {
  constexpr char kRing = 1;
  if (write(fd_.fd(), &kRing, 1) == 1 || errno != EAGAIN) return;
  // Full of old rings. Whoever has them waiting has an event waiting too, which is looked at after
  // the ring below: nothing is lost with them. An end that fills its own bell hurts itself.
  std::array<char, kPipeBytes> old;
  [[maybe_unused]] ssize_t size = read(fd_.fd(), old.data(), old.size());
  size = write(fd_.fd(), &kRing, 1);
}

}  // namespace moebius
