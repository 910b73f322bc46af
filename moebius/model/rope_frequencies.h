// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moebius/model/model_config.h"

namespace moebius {

/// Inverse frequencies of the rotated pairs, [rope.dim / 2], fp32: theta^(-2i/dim), stretched by
/// YaRN where configured. Computed in double without libm and rounded once per step that the widely
/// used implementation rounds. Pure, the same bits on every machine.
std::vector<float> InverseFrequencies(const RopeConfig& rope);

/// YaRN's attention factor: `0.1 * mscale * ln(factor) + 1`, 1 for factor <= 1.
/// Source: Peng et al., "YaRN", 2023, equation 22.
double YarnMagnitude(double factor, double mscale);

}  // namespace moebius
