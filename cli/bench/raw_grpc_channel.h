// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/bench/channel.h"

// The ceiling of the gRPC transport: the same library's bidirectional stream of raw bytes, and
// nothing of Moebius above it. One write is under way at a time, as gRPC has it; the receiver drops
// what it reads.

namespace moebius {

absl::StatusOr<std::unique_ptr<BenchServer>> StartRawGrpcServer();
absl::StatusOr<std::unique_ptr<BenchChannel>> OpenRawGrpcChannel(const std::string& address);

}  // namespace moebius
