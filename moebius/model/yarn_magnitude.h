// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moebius {

/// YaRN's magnitude for a stretch by `factor`: 0.1 · mscale · ln(factor) + 1, and 1 for factor
/// <= 1. Without libm: the same bits on every machine, because it reaches outputs. Source: Peng et
/// al., "YaRN", 2023, equation 22; mscale as DeepSeek-V3 adds it.
double YarnMagnitude(double factor, double mscale);

}  // namespace moebius
