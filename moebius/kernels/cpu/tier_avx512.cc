// SPDX-License-Identifier: Apache-2.0
// The AVX-512 tier: compiled with -mavx512f, -bw, -dq and -vl, called only where the CPU has them.
#include "moebius/kernels/cpu/fp8_block_sum.h"
#include "moebius/kernels/cpu/tier_kernels.h"
#include "moebius/kernels/cpu/tiers.h"
#include "moebius/kernels/cpu/vector_avx512.h"

namespace moebius {
namespace {

using Vector = Avx512Vector;

uint64_t executed = 0;

void BlockSum(const BlockSumCall& call) {
  CountExecution(&executed);
  RunBlockSum<Vector, WideTiles<PairWeights<Vector>>, float, kBlockDepth>(call);
}

void Fp8BlockSum(const Fp8BlockSumCall& call) {
  CountExecution(&executed);
  RunFp8BlockSumByTiles<Vector, WideTiles<PairWeights<Vector>>, float, kBlockDepth>(call);
}

void FloatBlockSum(const FloatBlockSumCall& call) {
  CountExecution(&executed);
  RunFloatBlockSum<WideTiles<FloatWeights<Vector>>>(call);
}

}  // namespace

const TierKernels kAvx512Kernels = {
    .prepare_rows = WidenRowBlocks<Vector>,
    .block_sum = BlockSum,
    .fp8_block_sum = Fp8BlockSum,
    .widen_rows = WidenRowBlocks<Vector>,
    .float_block_sum = FloatBlockSum,
    .accumulate_scaled = AccumulateScaledRow<Vector>,
    .executed = &executed,
};

}  // namespace moebius
