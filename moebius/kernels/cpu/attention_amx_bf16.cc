// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/attention_calls.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include "moebius/kernels/cpu/attention_tiles.h"
#include "moebius/kernels/cpu/tile_unit_amx.h"
#include "moebius/kernels/cpu/vector_avx512bf16.h"

namespace moebius {

const AttentionKernels* AmxBf16AttentionKernels() {
  return &TileAttentionKernels<Avx512Bf16Vector, AmxUnit>::kKernels;
}

}  // namespace moebius
#else
namespace moebius {

const AttentionKernels* AmxBf16AttentionKernels() { return nullptr; }

}  // namespace moebius
#endif
