// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/service/flags.h"
#include "moebius/service/run.h"

namespace moebius {

struct ExpertServerOptions {
  ServiceFlags flags;
  ServiceConfig config;
  std::optional<absl::Duration> mock_delay;  // see ExpertParticipantOptions
};

/// One expert service as a process has it: dials its router, loads the slot that it is given,
/// serves dispatches, and answers probes and scrapes. `notices` outlives it. Failures carry an exit
/// code where one fits better than the default.
absl::StatusOr<std::unique_ptr<ServiceServer>> StartExpertServer(const ExpertServerOptions& options,
                                                                 ProcessNotices& notices);

}  // namespace moebius
