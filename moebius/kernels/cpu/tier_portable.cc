// SPDX-License-Identifier: Apache-2.0
// The portable tier: the x86-64 baseline, exact without fused multiply-add.
#include "moebius/kernels/cpu/fp8_block_sum.h"
#include "moebius/kernels/cpu/tier_kernels.h"
#include "moebius/kernels/cpu/tiers.h"
#include "moebius/kernels/cpu/vector_portable.h"

namespace moebius {
namespace {

using Vector = PortableVector;

uint64_t executed = 0;

void BlockSum(const BlockSumCall& call) {
  CountExecution(&executed);
  RunBlockSum<Vector, PortableTiles<PairWeights<Vector>>, float, kBlockDepth>(call);
}

void Fp8BlockSum(const Fp8BlockSumCall& call) {
  CountExecution(&executed);
  RunFp8BlockSumByTiles<Vector, PortableTiles<PairWeights<Vector>>, float, kBlockDepth>(call);
}

void FloatBlockSum(const FloatBlockSumCall& call) {
  CountExecution(&executed);
  RunFloatBlockSum<PortableTiles<FloatWeights<Vector>>>(call);
}

}  // namespace

const TierKernels kPortableKernels = {
    .prepare_rows = WidenRowBlocks<Vector>,
    .block_sum = BlockSum,
    .fp8_block_sum = Fp8BlockSum,
    .widen_rows = WidenRowBlocks<Vector>,
    .float_block_sum = FloatBlockSum,
    .accumulate_scaled = AccumulateScaledRow<Vector>,
    .executed = &executed,
};

}  // namespace moebius
