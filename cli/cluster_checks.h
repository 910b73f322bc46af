// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cli/doctor_command.h"

#include "moebius/api/router_info.h"

namespace moebius {

/// What one process of a cluster said at its HTTP port.
struct ProcessFacts {
  std::string name;                    // "expert-0"; its address where nobody knows a name
  std::string http_address;            // HOST:PORT
  absl::Status reached;                // OK, or why it said nothing
  std::vector<std::string> unhealthy;  // what /livez, /readyz and /startupz complain of
  std::string version;                 // empty: not said
  std::string config_hash;
  std::optional<int64_t> epoch;        // of the placement; routers alone say one
  std::optional<absl::Duration> skew;  // its clock less ours, as good as a second
};

/// Asks one process; takes at most `timeout`.
ProcessFacts AskProcess(const std::string& name, const std::string& http_address,
                        absl::Duration timeout);

/// What a router says of its cluster. Pure.
std::vector<DoctorCheck> JudgeRouter(const ServerInfo& info);
/// Whether processes answer, are healthy, and agree: on version, configuration hash, epoch of the
/// placement, and the time. Pure.
std::vector<DoctorCheck> JudgeProcesses(absl::Span<const ProcessFacts> processes);

/// Both, of the router at --router and the processes that it lists, and of the HTTP addresses of
/// --peers. INVALID_ARGUMENT for flags that are wrong; a router that does not answer is a fault
/// among the checks.
absl::StatusOr<std::vector<DoctorCheck>> ExamineCluster(const DoctorFlags& flags);

}  // namespace moebius
