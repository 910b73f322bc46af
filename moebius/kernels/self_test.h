// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "moebius/kernels/kernels.h"

namespace moebius {

/// Compares block sums of `kernels` with the scalar statement, bit by bit: ordinary values, values
/// over the whole range of bf16 (denormals, overflow, infinities), and the boundary where a result
/// rounds up to the smallest normal number. Empty when all agree, else what differed first. Takes
/// about a millisecond; sets the float environment for its duration. Thread-safe.
std::string SelfTestBlockSum(const Kernels& kernels);

/// True where the machine flushes a result that rounds up to the smallest normal number: real CPUs
/// decide after rounding, some emulators before. Boundary vectors mean nothing there.
bool FlushesBeforeRounding();

}  // namespace moebius
