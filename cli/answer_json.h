// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moebius/api/generate.h"
#include "moebius/model/json.h"

namespace moebius {

/// Parts of an answer as every --json object has them. Pure.
Json ExactnessJson(const Exactness& exactness);
Json TimingJson(const GenerateTiming& timing);

}  // namespace moebius
