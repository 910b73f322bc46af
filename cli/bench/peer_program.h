// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/base/owned_fd.h"

namespace moebius {

/// Somebody else's program as a baseline: it is asked on its standard input, one line a question,
/// and answers on its standard output, one line each. bench/README.md has the questions.
///
/// Not thread-safe.
class PeerProgram {
 public:
  /// Starts `command` by the shell, with `tier` in MOEBIUS_BENCH_TIER and `num_threads` in
  /// MOEBIUS_BENCH_THREADS and OMP_NUM_THREADS, and reads its name: its first line. Its standard
  /// error is this program's.
  static absl::StatusOr<std::unique_ptr<PeerProgram>> Start(const std::string& command,
                                                            const std::string& tier,
                                                            int num_threads);
  /// Closes its input, and kills it when it does not end by that.
  ~PeerProgram();
  PeerProgram(const PeerProgram&) = delete;
  PeerProgram& operator=(const PeerProgram&) = delete;

  const std::string& name() const { return name_; }

  /// Seconds that it measured; nothing where it answers "unsupported". UNAVAILABLE when it has
  /// ended, INTERNAL for anything that is no number, DEADLINE_EXCEEDED after a minute.
  absl::StatusOr<std::optional<double>> Ask(const std::string& question);

 private:
  PeerProgram(pid_t pid, OwnedFd input, OwnedFd output)
      : pid_(pid), input_(std::move(input)), output_(std::move(output)) {}
  absl::StatusOr<std::string> ReadLine(absl::Duration patience);

  const pid_t pid_;
  OwnedFd input_;
  OwnedFd output_;
  std::string name_;
};

}  // namespace moebius
