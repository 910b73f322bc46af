// SPDX-License-Identifier: Apache-2.0
// The AVX-512 bf16 tier: as the AVX-512 tier with -mavx512bf16; its block sum uses the dot
// instruction.
#include "moebius/kernels/cpu/fp8_block_sum.h"
#include "moebius/kernels/cpu/tier_kernels.h"
#include "moebius/kernels/cpu/tiers.h"
#include "moebius/kernels/cpu/vector_avx512bf16.h"

namespace moebius {
namespace {

using Vector = Avx512Bf16Vector;

uint64_t executed = 0;

void BlockSum(const BlockSumCall& call) {
  CountExecution(&executed);
  RunBlockSum<Vector, DotTiles<Vector>, uint32_t, kBlockDepth / 2>(call);
}

void Fp8BlockSum(const Fp8BlockSumCall& call) {
  CountExecution(&executed);
  RunFp8BlockSumByTiles<Vector, DotTiles<Vector>, uint32_t, kBlockDepth / 2>(call);
}

void FloatBlockSum(const FloatBlockSumCall& call) {
  CountExecution(&executed);
  RunFloatBlockSum<WideTiles<FloatWeights<Vector>>>(call);
}

}  // namespace

const TierKernels kAvx512Bf16Kernels = {
    .prepare_rows = PairRowBlocks<Vector>,
    .block_sum = BlockSum,
    .fp8_block_sum = Fp8BlockSum,
    .widen_rows = WidenRowBlocks<Vector>,
    .float_block_sum = FloatBlockSum,
    .accumulate_scaled = AccumulateScaledRow<Vector>,
    .executed = &executed,
};

}  // namespace moebius
