// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moebius/kernels/kernels.h"

namespace moebius::testing {

/// The AVX-512 tiers' own text over sixteen emulated lanes: every fused multiply-add by the scalar
/// statement, the bf16 dot as two of them, high halves first. What is left to a CPU with AVX-512 is
/// one intrinsic per function of cpu/vector_avx512*.h, which the self-test at start checks there.
const Kernels& EmulatedAvx512();
const Kernels& EmulatedAvx512Bf16();

/// The AMX tier's own text over these lanes and an emulated tile unit. What is left to a CPU with
/// AMX is one instruction per function of cpu/tile_unit_amx.h.
const Kernels& EmulatedAmx();

}  // namespace moebius::testing
