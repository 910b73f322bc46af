// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/cpu/attention_rows.h"
#include "moebius/kernels/cpu/vector_portable.h"

namespace moebius {

const AttentionKernels* PortableAttentionKernels() { return &kAttentionKernels<PortableVector>; }

}  // namespace moebius
