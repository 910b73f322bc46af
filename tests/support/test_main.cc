// SPDX-License-Identifier: Apache-2.0
#include "gtest/gtest.h"

#include "moebius/base/float_environment.h"

#ifdef __SANITIZE_THREAD__
// The sanitizer does not see the reference counts of the prebuilt absl: whoever frees a status last
// seems to race with those who read it before.
// NOLINTNEXTLINE(bugprone-reserved-identifier): its name for this
extern "C" const char* __tsan_default_suppressions() { return "race:absl::*::Status::Unref\n"; }
#endif

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // Kernels under test run on this thread as they would on an executor's.
  moebius::SetFloatEnvironment();
  return RUN_ALL_TESTS();
}
