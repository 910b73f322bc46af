// SPDX-License-Identifier: Apache-2.0
// The AMX tier: as the AVX-512 tier with -mamx-tile and -mamx-bf16; its block sum uses the tiles
// for any number of rows. Called only where Linux has granted the tiles' state (tile_state.h).
#include "moebius/kernels/cpu/fp8_tile_sum.h"
#include "moebius/kernels/cpu/tier_kernels.h"
#include "moebius/kernels/cpu/tiers.h"
#include "moebius/kernels/cpu/tile_block_sum.h"
#include "moebius/kernels/cpu/tile_unit_amx.h"
#include "moebius/kernels/cpu/vector_avx512.h"

namespace moebius {
namespace {

using Vector = Avx512Vector;

uint64_t executed = 0;

void BlockSum(const BlockSumCall& call) {
  CountExecution(&executed);
  RunTileBlockSum<Vector, AmxUnit>(call);
}

void Fp8BlockSum(const Fp8BlockSumCall& call) {
  CountExecution(&executed);
  RunFp8TileBlockSum<Vector, AmxUnit>(call);
}

void FloatBlockSum(const FloatBlockSumCall& call) {
  CountExecution(&executed);
  RunFloatBlockSum<WideTiles<FloatWeights<Vector>>>(call);
}

}  // namespace

const TierKernels kAmxKernels = {
    .prepare_rows = CopyRowBlocks,
    .block_sum = BlockSum,
    .fp8_block_sum = Fp8BlockSum,
    .widen_rows = WidenRowBlocks<Vector>,
    .float_block_sum = FloatBlockSum,
    .accumulate_scaled = AccumulateScaledRow<Vector>,
    .executed = &executed,
};

}  // namespace moebius
