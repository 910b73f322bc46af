// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/float_environment.h"

#include <xmmintrin.h>

#include "gtest/gtest.h"

namespace moebius {
namespace {

constexpr unsigned kProcessDefault = 0x1F80;

TEST(FloatEnvironmentTest, RoundsToNearestEven) {
  ScopedFloatEnvironment scope;
  volatile float one = 1.0f;
  volatile float half_ulp = 0x1p-24f;
  EXPECT_EQ(one + half_ulp, 1.0f);                          // a tie goes down to even
  EXPECT_EQ((one + 0x1p-23f) + half_ulp, 1.0f + 0x1p-22f);  // and up to even
}

TEST(FloatEnvironmentTest, FlushesResultsAndInputs) {
  ScopedFloatEnvironment scope;
  volatile float smallest_normal = 0x1p-126f;
  EXPECT_EQ(smallest_normal * 0.5f, 0.0f);
  volatile float denormal = 0x1p-130f;
  EXPECT_EQ(denormal * 0x1p60f, 0.0f);
}

TEST(FloatEnvironmentTest, StickyFlagsDoNotCount) {
  ScopedFloatEnvironment scope;
  volatile float one = 1.0f;
  volatile float three = 3.0f;
  volatile float inexact = one / three;  // raises the inexact flag
  EXPECT_GT(inexact, 0.0f);
  EXPECT_TRUE(HasFloatEnvironment());
}

TEST(FloatEnvironmentTest, NoticesEveryOtherMode) {
  ScopedFloatEnvironment scope;
  ASSERT_TRUE(HasFloatEnvironment());
  const unsigned right = _mm_getcsr();
  for (const unsigned bit : {0x0040u, 0x8000u, 0x2000u, 0x4000u, 0x0080u, 0x1000u}) {
    _mm_setcsr((right ^ bit) & ~0x3Fu);
    EXPECT_FALSE(HasFloatEnvironment()) << std::hex << bit;
    _mm_setcsr(right);
  }
}

TEST(FloatEnvironmentTest, ScopeRestoresTheFormerMode) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kProcessDefault);
  {
    ScopedFloatEnvironment scope;
    EXPECT_TRUE(HasFloatEnvironment());
  }
  EXPECT_EQ(_mm_getcsr() & ~0x3Fu, kProcessDefault);
  _mm_setcsr(before);
}

}  // namespace
}  // namespace moebius
