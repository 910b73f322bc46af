// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moebius/model/model_config.h"
#include "moebius/wire/greeting.h"

namespace moebius {

/// The configurations that another process of the same model has when it was given other numerics:
/// any attention sum and layout, group fill, and spans that are powers of two up to 2^20. Greetings
/// carry hashes alone, and neighbours of an older release always will; who compares them computes
/// what each setting would hash to, and so can say which one differs. Some 130, without
/// `numerics` itself. Pure.
std::vector<NearConfig> NearConfigsOf(const NumericsConfig& numerics, uint64_t model_hash);

}  // namespace moebius
