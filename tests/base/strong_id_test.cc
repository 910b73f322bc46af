// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/strong_id.h"

#include <sstream>
#include <type_traits>

#include "gtest/gtest.h"

namespace moebius {
namespace {

static_assert(!std::is_convertible_v<ExpertId, ServiceId>);
static_assert(!std::is_constructible_v<ExpertId, ServiceId>);
static_assert(!std::is_convertible_v<int32_t, ExpertId>);
static_assert(!std::is_convertible_v<ExpertId, int32_t>);
static_assert(sizeof(SessionId) == sizeof(uint64_t));
static_assert(std::is_trivially_copyable_v<ExpertId>);

TEST(StrongIdTest, StartsAtZeroAndKeepsItsValue) {
  EXPECT_EQ(ExpertId().value(), 0);
  EXPECT_EQ(ExpertId(31).value(), 31);
}

TEST(StrongIdTest, ComparesByValue) {
  EXPECT_EQ(ExpertId(3), ExpertId(3));
  EXPECT_NE(ExpertId(3), ExpertId(4));
  EXPECT_LT(ExpertId(3), ExpertId(4));
}

TEST(StrongIdTest, PrintsANumberForNarrowTypesToo) {
  using NarrowId = StrongId<struct NarrowTag, uint8_t>;
  std::ostringstream out;
  out << NarrowId(65) << ' ' << SessionId(0xFFFFFFFFFFFFFFFF);
  EXPECT_EQ(out.str(), "65 18446744073709551615");
}

}  // namespace
}  // namespace moebius
