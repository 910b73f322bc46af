// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moebius/api/placement_table.h"
#include "moebius/model/model_config.h"
#include "moebius/placement/placement.h"

namespace moebius {

/// A placement for people and programs: who holds what, and its bytes as bf16. Services are named
/// "expert-0" and so on, their state is empty, and nothing has been served. Reads no weights; pure.
PlacementTable DescribePlacement(const ModelConfig& config, const Placement& placement);

}  // namespace moebius
