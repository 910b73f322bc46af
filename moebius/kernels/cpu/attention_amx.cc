// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/attention_calls.h"

#if defined(__AMX_BF16__) && defined(__AVX512BW__)
#include "moebius/kernels/cpu/attention_tiles.h"
#include "moebius/kernels/cpu/tier_kernels.h"
#include "moebius/kernels/cpu/tile_unit_amx.h"
#include "moebius/kernels/cpu/vector_avx512.h"

namespace moebius {
namespace {

uint64_t attended = 0;

void AttendBlock(const AttendBlockCall& call) {
  CountExecution(&attended);
  AttendBlockOnTiles<Avx512Vector, AmxUnit>(call);
}

constexpr AttentionKernels kKernels = {
    .weigh_block = WeighBlock<Avx512Vector>, .attend_block = AttendBlock, .attended = &attended};

}  // namespace

const AttentionKernels* AmxAttentionKernels() { return &kKernels; }

}  // namespace moebius
#else
namespace moebius {

const AttentionKernels* AmxAttentionKernels() { return nullptr; }

}  // namespace moebius
#endif
