// SPDX-License-Identifier: Apache-2.0
#include "router_service/attention_rule.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

TEST(RankRatesTest, AreMeasuredOrGiven) {
  const auto measured = ParseRankRates("measured");
  ASSERT_TRUE(measured.ok());
  EXPECT_FALSE(measured->has_value());
  const auto given = ParseRankRates("100e9,1e9,100e-6");
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ((*given)->flops, 100e9);
  EXPECT_EQ((*given)->bandwidth, 1e9);
  EXPECT_EQ((*given)->latency, 100e-6);
  EXPECT_EQ(DescribeRankRates(**given), "kernel 100 GFLOP/s, links 1 GB/s, 100 µs a message");
  EXPECT_TRUE(ParseRankRates("1,1,0").ok()) << "a link without latency";
}

TEST(RankRatesTest, RefuseWhatCannotBe) {
  for (const char* text : {"", "fast", "1e9", "1e9,1e9", "1e9,1e9,1e-4,1", "0,1e9,1e-4",
                           "1e9,-1,1e-4", "1e9,1e9,-1", "nan,1e9,1e-4", "1e9,inf,1e-4", ",,"}) {
    const auto rates = ParseRankRates(text);
    EXPECT_EQ(rates.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(rates.status().message()), HasSubstr("100e9,1e9,100e-6")) << text;
  }
}

}  // namespace
}  // namespace moebius
