// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "moebius/service/flags.h"
#include "moebius/service/run.h"
#include "router_service/config.h"

namespace moebius {

struct RouterServerOptions {
  ServiceFlags flags;
  ServiceConfig config;
  RouterFlags router;
};

/// A router as a process has it: waits for the expert services and attention ranks that join it,
/// gives them their slots, and serves requests once a canary token went through all of them.
///
/// After the listening line it announces, a line each: "waiting role=router … why=WORDS" whenever
/// what is missing changes, and "ready role=router … loaded_bytes=N seconds=S" whenever nothing is
/// missing any more.
/// `notices` outlives it. Failures carry an exit code where one fits better than the default.
absl::StatusOr<std::unique_ptr<ServiceServer>> StartRouterServer(const RouterServerOptions& options,
                                                                 ProcessNotices& notices);

}  // namespace moebius
