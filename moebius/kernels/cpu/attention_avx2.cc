// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/attention_calls.h"

#if defined(__AVX2__) && defined(__FMA__)
#include "moebius/kernels/cpu/attention_rows.h"
#include "moebius/kernels/cpu/vector_avx2.h"

namespace moebius {

const AttentionKernels* Avx2AttentionKernels() { return &kAttentionKernels<Avx2Vector>; }

}  // namespace moebius
#else
namespace moebius {

const AttentionKernels* Avx2AttentionKernels() { return nullptr; }

}  // namespace moebius
#endif
