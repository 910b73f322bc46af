// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moebius/kernels/kernel_calls.h"

namespace moebius {

/// One per tier's source file. Only kernels.cc reads them, after it has asked the CPU.
extern const TierKernels kPortableKernels;
extern const TierKernels kAvx2Kernels;
extern const TierKernels kAvx512Kernels;
extern const TierKernels kAvx512Bf16Kernels;
extern const TierKernels kAmxKernels;

}  // namespace moebius
