// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/check.h"

#include "gtest/gtest.h"

namespace moebius {
namespace {

TEST(CheckDeathTest, PrintsFileConditionAndAborts) {
  EXPECT_DEATH(MOEBIUS_CHECK(1 + 1 == 3), "check_test.cc:[0-9]+: check failed: 1 \\+ 1 == 3");
}

TEST(CheckDeathTest, PrintsBothValues) {
  const int rows = 3;
  const int limit = 2;
  EXPECT_DEATH(MOEBIUS_CHECK_LE(rows, limit), "rows <= limit \\(3 vs 2\\)");
}

TEST(CheckTest, EvaluatesEachArgumentOnce) {
  int calls = 0;
  MOEBIUS_CHECK_EQ(++calls, 1);
  MOEBIUS_CHECK(++calls == 2);
  EXPECT_EQ(calls, 2);
}

TEST(CheckTest, IsOneStatementInABranch) {
  bool reached_else = false;
  if (false)
    MOEBIUS_CHECK(false);
  else
    reached_else = true;
  EXPECT_TRUE(reached_else);
}

#ifdef MOEBIUS_CHECKS
TEST(CheckDeathTest, ChecksHotLoopsWhereChecksAreOn) {
  EXPECT_DEATH(MOEBIUS_DCHECK_LT(5, 5), "5 < 5 \\(5 vs 5\\)");
}
#endif

}  // namespace
}  // namespace moebius
