// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/attention_calls.h"

#if defined(__AMX_BF16__) && defined(__AVX512BW__)
#include "moebius/kernels/cpu/attention_tiles.h"
#include "moebius/kernels/cpu/tile_unit_amx.h"
#include "moebius/kernels/cpu/vector_avx512.h"

namespace moebius {

const AttentionKernels* AmxAttentionKernels() {
  return &TileAttentionKernels<Avx512Vector, AmxUnit>::kKernels;
}

}  // namespace moebius
#else
namespace moebius {

const AttentionKernels* AmxAttentionKernels() { return nullptr; }

}  // namespace moebius
#endif
