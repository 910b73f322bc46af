// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/strings/string_view.h"

#include "moebius/telemetry/registry.h"
#include "moebius/transport/transport.h"

namespace moebius {

/// Whether a peer is there, from another host, and has proved nothing of itself. Those of this host
/// need no TLS. Pure.
bool IsUnauthenticated(const PeerInfo& peer);

/// Writes moebius_transport_*: bytes, frames, messages and drops of each lane, peers by state, what
/// was cut, and what is held; and round trips. `provider`: LinkProvider::name, the label
/// "transport".
void WriteTransportMetrics(const Transport& transport, absl::string_view provider,
                           MetricWriter& writer);

}  // namespace moebius
