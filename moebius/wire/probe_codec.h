// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "moebius/transport/frame/message.h"

// What a router asks an attention rank before it serves, to learn what the link and the rank can
// do. Layout: docs/wire_format.md.

namespace moebius {

/// Of a probe's content.
inline constexpr uint64_t kMaxProbeBytes = uint64_t{1} << 20;

/// `num_bytes` zeros, at most kMaxProbeBytes.
Message BuildProbe(uint64_t number, uint64_t num_bytes);

/// The answer to a probe: how fast the rank's attention kernel is, in FLOP/s on all its threads; 0:
/// not known.
Message BuildProbeReply(const Message& probe, double kernel_flops);
/// INVALID_ARGUMENT for anything that BuildProbeReply could not have made.
absl::StatusOr<double> ParseProbeReply(const Message& reply);

}  // namespace moebius
