// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "absl/time/time.h"

namespace moebius {

struct RestartOptions {
  absl::Duration first_delay = absl::Milliseconds(500);  // doubled with each start in a row
  absl::Duration max_delay = absl::Seconds(30);
  int max_restarts = 8;  // in a row; with the delays above a minute and a half
  /// Who has been up for so long is well: its next end counts as the first.
  absl::Duration settled_after = absl::Minutes(1);
};

/// When a process that has ended is started again, if it is. Pure. Not thread-safe.
class RestartPolicy {
 public:
  explicit RestartPolicy(const RestartOptions& options) : options_(options) {}

  void OnStart(absl::Duration now) { started_ = now; }
  /// How long to wait before it is started again; nothing once it has been started max_restarts
  /// times in a row.
  std::optional<absl::Duration> OnEnd(absl::Duration now);
  /// In a row, the one that OnEnd has allowed last included.
  int num_restarts() const { return num_restarts_; }

 private:
  RestartOptions options_;
  absl::Duration started_;
  int num_restarts_ = 0;
};

}  // namespace moebius
