// SPDX-License-Identifier: Apache-2.0
// In place of the library's, which an instruction counter would not pass: valgrind knows no mode
// that flushes denormals. The numbers that come out are nobody's answers.
#include <xmmintrin.h>

#include <string>

#include "moebius/base/float_environment.h"
#include "moebius/kernels/self_test.h"

namespace moebius {

// Still set, for runs outside of valgrind.
void SetFloatEnvironment() { _mm_setcsr(0x1F80 | 0x8000 | 0x0040); }
bool HasFloatEnvironment() { return true; }
ScopedFloatEnvironment::ScopedFloatEnvironment() : saved_(_mm_getcsr()) { SetFloatEnvironment(); }
ScopedFloatEnvironment::~ScopedFloatEnvironment() { _mm_setcsr(saved_); }

std::string SelfTestBlockSum(const Kernels& /*kernels*/) { return ""; }
bool FlushesBeforeRounding() { return false; }

}  // namespace moebius
