// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/base/owned_fd.h"

// Other processes at the ends of pipes, for benchmarks.

namespace moebius {

/// A child with its standard input and output in this process's hands.
struct PipedChild {
  pid_t pid = 0;
  OwnedFd input;   // what it reads
  OwnedFd output;  // what it wrote
};

struct PipedCommand {
  std::string path;                      // the program
  std::vector<std::string> words;        // argv, the program's name included
  std::vector<std::string> environment;  // NAME=VALUE beside this process's own
  int inherited = -1;                    // a descriptor that it finds as `inherited_as`
  int inherited_as = 3;
  bool is_silent = false;  // what it writes to standard error is lost
};

absl::StatusOr<PipedChild> StartPiped(const PipedCommand& command);

/// The next line without its end. UNAVAILABLE when the other end has closed, DEADLINE_EXCEEDED
/// after `patience`, INTERNAL for a line of more than 64 KiB.
absl::StatusOr<std::string> ReadLineFrom(int fd, absl::Duration patience);

/// Waits until the child has ended, and kills it after `patience`.
void ReapChild(pid_t pid, absl::Duration patience);

}  // namespace moebius
