// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/bench/channel.h"

// The transport as services use it, with the options that services have.

namespace moebius {

/// The kinds that can be measured on this build: "loopback", "grpc", …
std::vector<std::string> MessageKinds();

/// A transport of `kind` that listens on this host and answers channels.
absl::StatusOr<std::unique_ptr<BenchServer>> StartMessageServer(absl::string_view kind);

/// A transport of `kind`, connected to the server at `address` in another process.
absl::StatusOr<std::unique_ptr<BenchChannel>> OpenMessageChannel(absl::string_view kind,
                                                                 const std::string& address);

/// Both ends in this process.
absl::StatusOr<std::unique_ptr<BenchChannel>> OpenLoopbackChannel();

}  // namespace moebius
