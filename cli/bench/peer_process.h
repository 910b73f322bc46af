// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/bench/pipe.h"

namespace moebius {

/// How a far end learns that it is no longer needed.
enum class PeerEnd {
  kByInput,        // its standard input ends: also when this process dies
  kByTermination,  // SIGTERM, too: `moebius serve`, whose children die with it
};

struct PeerProcessOptions {
  int inherited = -1;  // a descriptor that it finds as kInheritedDescriptor
  PeerEnd end = PeerEnd::kByInput;
  absl::Duration start_patience = absl::Seconds(20);
  bool is_silent = false;  // its standard error is lost
};

/// This program again, in another process, as the far end of a measurement. It says one line when
/// it is ready.
class PeerProcess {
 public:
  /// Starts this program with `arguments` and waits for its line.
  static absl::StatusOr<std::unique_ptr<PeerProcess>> Start(
      const std::vector<std::string>& arguments,
      const PeerProcessOptions& options = PeerProcessOptions());
  /// Ends the process, and waits for that.
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  const std::string& line() const { return line_; }

  static constexpr int kInheritedDescriptor = 3;

 private:
  PeerProcess(PipedChild child, PeerEnd end) : child_(std::move(child)), end_(end) {}

  PipedChild child_;
  const PeerEnd end_;
  std::string line_;
};

/// The far end's side of it: says the line, and returns when standard input ends.
void ServeUntilInputEnds(const std::string& line);

}  // namespace moebius
