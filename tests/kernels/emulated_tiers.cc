// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/emulated_tiers.h"

#include <cstdint>

#include "moebius/kernels/attention_calls.h"
#include "moebius/kernels/cpu/attention_rows.h"
#include "moebius/kernels/cpu/fp8_block_sum.h"
#include "moebius/kernels/cpu/tier_kernels.h"
#include "moebius/kernels/cpu/tiers.h"
#include "tests/kernels/emulated_vector.h"

namespace moebius {
namespace {

using V = EmulatedVector;

uint64_t executed = 0;
uint64_t executed_dots = 0;

void BlockSum(const BlockSumCall& call) {
  CountExecution(&executed);
  RunBlockSum<V, WideTiles<PairWeights<V>>, float, kBlockDepth>(call);
}

void Fp8BlockSum(const Fp8BlockSumCall& call) {
  CountExecution(&executed);
  RunFp8BlockSumByTiles<V, WideTiles<PairWeights<V>>, float, kBlockDepth>(call);
}

void Fp8BlockSumByDots(const Fp8BlockSumCall& call) {
  CountExecution(&executed_dots);
  RunFp8BlockSumByTiles<V, DotTiles<V>, uint32_t, kBlockDepth / 2>(call);
}

void FloatBlockSum(const FloatBlockSumCall& call) {
  CountExecution(&executed);
  RunFloatBlockSum<WideTiles<FloatWeights<V>>>(call);
}

void BlockSumByDots(const BlockSumCall& call) {
  CountExecution(&executed_dots);
  RunBlockSum<V, DotTiles<V>, uint32_t, kBlockDepth / 2>(call);
}

void FloatBlockSumBesideDots(const FloatBlockSumCall& call) {
  CountExecution(&executed_dots);
  RunFloatBlockSum<WideTiles<FloatWeights<V>>>(call);
}

Kernels MakeAvx512() {
  Kernels kernels;
  kernels.prepare_rows = WidenRowBlocks<V>;
  kernels.block_sum = BlockSum;
  kernels.fp8_block_sum = Fp8BlockSum;
  kernels.decode_fp8 = DecodeFp8Portable;
  kernels.decode_name = "portable";
  kernels.widen_rows = WidenRowBlocks<V>;
  kernels.float_block_sum = FloatBlockSum;
  kernels.accumulate_scaled = AccumulateScaledRow<V>;
  kernels.attention = &kAttentionKernels<V>;
  kernels.executed = &executed;
  kernels.tier = Tier::kAvx512;
  kernels.pair_order = PairOrder::kAdjacent;
  kernels.prepared_block_bytes = kBlockDepth * sizeof(float);
  return kernels;
}

Kernels MakeAvx512Bf16() {
  Kernels kernels = MakeAvx512();
  kernels.prepare_rows = PairRowBlocks<V>;
  kernels.block_sum = BlockSumByDots;
  kernels.fp8_block_sum = Fp8BlockSumByDots;
  kernels.float_block_sum = FloatBlockSumBesideDots;
  kernels.executed = &executed_dots;
  kernels.tier = Tier::kAvx512Bf16;
  kernels.pair_order = PairOrder::kWithinChain;
  kernels.prepared_block_bytes = kBlockDepth * sizeof(uint16_t);
  return kernels;
}

}  // namespace

namespace testing {

const Kernels& EmulatedAvx512() {
  static const Kernels kernels = MakeAvx512();
  return kernels;
}

const Kernels& EmulatedAvx512Bf16() {
  static const Kernels kernels = MakeAvx512Bf16();
  return kernels;
}

}  // namespace testing
}  // namespace moebius
