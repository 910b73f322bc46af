// SPDX-License-Identifier: Apache-2.0
#include "gtest/gtest.h"

#include "moebius/base/float_environment.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // Kernels under test run on this thread as they would on an executor's.
  moebius::SetFloatEnvironment();
  return RUN_ALL_TESTS();
}
