// SPDX-License-Identifier: Apache-2.0
// The AVX2 tier: compiled with -mavx2 -mfma, called only where the CPU has both.
#include "moebius/kernels/cpu/fp8_block_sum.h"
#include "moebius/kernels/cpu/tier_kernels.h"
#include "moebius/kernels/cpu/tiers.h"
#include "moebius/kernels/cpu/vector_avx2.h"

namespace moebius {
namespace {

using Vector = Avx2Vector;

uint64_t executed = 0;

void BlockSum(const BlockSumCall& call) {
  CountExecution(&executed);
  RunBlockSum<Vector, NarrowTiles<PairWeights<Vector>>, float, kBlockDepth>(call);
}

void Fp8BlockSum(const Fp8BlockSumCall& call) {
  CountExecution(&executed);
  RunFp8BlockSumByTiles<Vector, NarrowTiles<PairWeights<Vector>>, float, kBlockDepth>(call);
}

void FloatBlockSum(const FloatBlockSumCall& call) {
  CountExecution(&executed);
  RunFloatBlockSum<NarrowTiles<FloatWeights<Vector>>>(call);
}

}  // namespace

const TierKernels kAvx2Kernels = {
    .prepare_rows = WidenRowBlocks<Vector>,
    .block_sum = BlockSum,
    .fp8_block_sum = Fp8BlockSum,
    .widen_rows = WidenRowBlocks<Vector>,
    .float_block_sum = FloatBlockSum,
    .accumulate_scaled = AccumulateScaledRow<Vector>,
    .executed = &executed,
};

}  // namespace moebius
