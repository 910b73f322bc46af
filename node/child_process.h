// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "moebius/base/owned_fd.h"

namespace moebius {

/// How a process ended.
struct ChildEnd {
  std::optional<int> exit_code;
  std::optional<int> signal;  // that ended it, instead of an exit code
};
/// "ended with exit code 3", "was killed by SIGKILL".
std::string ChildEndWords(const ChildEnd& end);

/// A program that this one started: stdout comes back in lines, stderr goes to a file, stdin is
/// empty. It is in a process group of its own, so that a terminal's Ctrl-C reaches the starter
/// alone. Not thread-safe; must be started by a thread that lives as long as the child should
/// (moebius/service/process.h, DieWithParent).
class ChildProcess {
 public:
  /// NOT_FOUND or another reason of the operating system. `log_file` is appended to.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& command,
                                            const std::string& log_file);
  /// A child that still runs is killed and waited for.
  ~ChildProcess();
  ChildProcess(ChildProcess&&) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  pid_t pid() const { return pid_; }
  /// Readable when there are lines or the child has ended: for poll. -1 after the end.
  int fd() const { return stdout_.fd(); }
  /// The whole lines that have come since the last call, without their ends. Never waits.
  std::vector<std::string> ReadLines();
  /// How it ended, once it has. Never waits.
  std::optional<ChildEnd> TryWait();
  void Signal(int signal_number) const;

 private:
  ChildProcess(pid_t pid, OwnedFd out) : pid_(pid), stdout_(std::move(out)) {}

  pid_t pid_ = -1;  // -1: moved from
  OwnedFd stdout_;
  std::string partial_;
  std::optional<ChildEnd> end_;
};

/// The last lines of a file, at most `max_bytes` of them; empty where it cannot be read.
std::string LastLines(const std::string& path, size_t max_bytes);

}  // namespace moebius
