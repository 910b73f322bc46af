// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "moebius/api/router_info.h"

namespace moebius {

/// The load by layer and expert as shades of the layer's mean, with the busiest expert of each
/// layer. Layers are never summed: their experts are different networks. Pure.
std::string FormatHeatMap(const ExpertLoadTable& table);

/// The object of `moebius experts --json`, one line. Pure.
std::string FormatExpertLoadJson(const ExpertLoadTable& table);

}  // namespace moebius
