// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "expert_service/control.h"
#include "expert_service/dispatch_server.h"
#include "moebius/telemetry/registry.h"

namespace moebius {

/// What an expert service shows of its dispatches: how they ended, their rows, what waits, and how
/// waits and forward passes are spread.
void WriteDispatchMetrics(const DispatchServerFigures& figures,
                          const DispatchInstruments& instruments, MetricWriter& writer);

/// The rows of each expert of the MoE layers, from the same counts.
ComputedLoad ComputedLoadOf(const DispatchServerFigures& figures,
                            const std::vector<bool>& moe_layers, int64_t num_experts);

}  // namespace moebius
