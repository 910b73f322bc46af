// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/strings/string_view.h"

#include "moebius/telemetry/registry.h"
#include "moebius/transport/transport.h"

namespace moebius {

/// Writes moebius_transport_*: bytes, frames, messages and drops of each lane, peers by state, what
/// was cut, and what is held. `provider`: LinkProvider::name, the label "transport".
void WriteTransportMetrics(const Transport& transport, absl::string_view provider,
                           MetricWriter& writer);

}  // namespace moebius
