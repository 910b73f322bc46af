// SPDX-License-Identifier: Apache-2.0
#include "node/restart_policy.h"

#include <algorithm>

namespace moebius {

std::optional<absl::Duration> RestartPolicy::OnEnd(absl::Duration now) {
  if (now - started_ >= options_.settled_after) num_restarts_ = 0;
  if (num_restarts_ >= options_.max_restarts) return std::nullopt;
  absl::Duration delay = std::min(options_.first_delay, options_.max_delay);
  for (int i = 0; i < num_restarts_ && delay < options_.max_delay; ++i) {
    delay = std::min(delay * 2, options_.max_delay);
  }
  ++num_restarts_;
  return delay;
}

}  // namespace moebius
