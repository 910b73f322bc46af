// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moebius/api/route.h"

namespace moebius {

/// What a capacity by weight would drop of a dry run, its tokens taken as one dispatch batch.
struct CapacityPreview {
  double factor = 0;
  int64_t capacity = 0;          // of each expert
  std::vector<int64_t> dropped;  // [E]
  int64_t total_dropped = 0;
};

/// `factor` is more than 0. Pure.
CapacityPreview PreviewCapacity(const RouteAnswer& answer, double factor);

/// "with --capacity-factor 1.25 (5 per expert): 11 of 104 would drop: e1 4, e17 3", one line.
std::string FormatPreview(const RouteAnswer& answer, const CapacityPreview& preview);

}  // namespace moebius
