// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/attention_calls.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "moebius/kernels/cpu/attention_rows.h"
#include "moebius/kernels/cpu/vector_avx512bf16.h"

namespace moebius {

const AttentionKernels* Avx512Bf16AttentionKernels() {
  return &kAttentionKernels<Avx512Bf16Vector>;
}

}  // namespace moebius
#else
namespace moebius {

const AttentionKernels* Avx512Bf16AttentionKernels() { return nullptr; }

}  // namespace moebius
#endif
