// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/service/flags.h"
#include "moebius/service/run.h"

namespace moebius {

struct AttentionServerOptions {
  ServiceFlags flags;
  ServiceConfig config;
  int64_t kv_budget_bytes = 0;  // 0: DefaultKvBudgetBytes of this host
  /// Set: a stand-in; see AttentionPipeline::MakeMock.
  std::optional<absl::Duration> mock_delay;
};

/// One attention rank as a process has it: dials its router, loads the slot that it is given, finds
/// the other ranks, and answers probes and scrapes. `notices` outlives it. Failures carry an exit
/// code where one fits better than the default.
absl::StatusOr<std::unique_ptr<ServiceServer>> StartAttentionServer(
    const AttentionServerOptions& options, ProcessNotices& notices);

}  // namespace moebius
