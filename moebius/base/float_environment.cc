// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/float_environment.h"

#include <xmmintrin.h>

namespace moebius {
namespace {

// MXCSR: all exceptions masked (0x1F80), flush to zero (0x8000), denormals are zero (0x0040),
// rounding control 00 = nearest even. The low six bits are sticky flags and do not count.
constexpr unsigned kMode = 0x1F80 | 0x8000 | 0x0040;
constexpr unsigned kStickyFlags = 0x3F;

}  // namespace

void SetFloatEnvironment() { _mm_setcsr(kMode); }

bool HasFloatEnvironment() { return (_mm_getcsr() & ~kStickyFlags) == kMode; }

ScopedFloatEnvironment::ScopedFloatEnvironment() : saved_(_mm_getcsr()) { SetFloatEnvironment(); }

ScopedFloatEnvironment::~ScopedFloatEnvironment() { _mm_setcsr(saved_); }

}  // namespace moebius
