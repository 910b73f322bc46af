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

/// Decoders of FP8 codes: one per source file, chosen beside the tier.
void DecodeFp8Portable(const DecodeFp8Call& call);
void DecodeFp8Avx2(const DecodeFp8Call& call);
void DecodeFp8Avx512(const DecodeFp8Call& call);
/// AVX-512 with VBMI, which a host of the avx512 and avx512bf16 tiers may lack.
void DecodeFp8Vbmi(const DecodeFp8Call& call);

}  // namespace moebius
