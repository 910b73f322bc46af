// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/greeting.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/transport/hello.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

Greeting Sample() {
  Greeting greeting;
  greeting.role = Role::kAttention;
  greeting.config_hash = "0123456789abcdef";
  greeting.model_hash = "fedcba9876543210";
  greeting.numeric_class = "cpu";
  greeting.tier = "avx2";
  greeting.version = "0.1.0";
  greeting.wanted_index = 3;
  greeting.data_address = "[::1]:4001";
  greeting.http_address = "10.0.0.1:80";
  greeting.pid = 4711;
  return greeting;
}

TEST(GreetingTest, BringsEveryField) {
  const auto parsed = ParseGreeting(EncodeGreeting(Sample()));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, Sample());
}

TEST(GreetingTest, FitsAHelloWhateverItsTextsAre) {
  Greeting greeting = Sample();
  const std::string text(5000, 'x');
  greeting.config_hash = greeting.model_hash = greeting.numeric_class = greeting.tier = text;
  greeting.version = greeting.data_address = greeting.admin_address = greeting.http_address = text;
  const std::string bytes = EncodeGreeting(greeting);
  EXPECT_LE(bytes.size(), kMaxGreetingBytes);
  EXPECT_TRUE(ParseGreeting(bytes).ok());
}

TEST(GreetingTest, RefusesEveryCutAndEveryTail) {
  const std::string bytes = EncodeGreeting(Sample());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseGreeting(bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(ParseGreeting(bytes + std::string(1, '\0')).ok());
}

TEST(GreetingTest, RefusesWhatNoProcessSays) {
  std::string other_layout = EncodeGreeting(Sample());
  other_layout[0] = 9;
  EXPECT_THAT(std::string(ParseGreeting(other_layout).status().message()), HasSubstr("layout 9"));
  std::string other_role = EncodeGreeting(Sample());
  other_role[1] = 4;
  EXPECT_THAT(std::string(ParseGreeting(other_role).status().message()), HasSubstr("4 is no role"));
  for (const int32_t index : {-2, kMaxSlotIndex}) {
    Greeting greeting = Sample();
    greeting.wanted_index = index;
    EXPECT_FALSE(ParseGreeting(EncodeGreeting(greeting)).ok()) << index;
  }
  Greeting escape = Sample();
  escape.tier = "\x1b[2J";
  EXPECT_THAT(std::string(ParseGreeting(EncodeGreeting(escape)).status().message()),
              HasSubstr("tier is not printable"));
}

TEST(CheckGreetingTest, ShowsBothHashesOfDifferentConfigurations) {
  const Greeting own = Sample();
  EXPECT_TRUE(CheckGreeting(own, own).ok());
  Greeting other = Sample();
  other.role = Role::kRouter;
  other.tier = "portable";
  EXPECT_TRUE(CheckGreeting(own, other).ok());
  other.config_hash = "00000000deadbeef";
  const absl::Status status = CheckGreeting(own, other);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the attention has 0123456789abcdef"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the router has 00000000deadbeef"));
  EXPECT_THAT(HintOf(status), HasSubstr("other settings"));
  other.model_hash = "1";
  EXPECT_THAT(HintOf(CheckGreeting(own, other)), HasSubstr("same model folder"));
}

// The hint is for who has to change, whoever of the two refuses: the router's settings stay.
TEST(CheckGreetingTest, NamesTheSettingsThatDifferWhereItKnowsTheOthersHash) {
  Greeting router = Sample();
  router.role = Role::kRouter;
  Greeting attention = Sample();
  attention.config_hash = "00000000deadbeef";
  const ConfigWords canonical{"sums attention canonical", "--attention-sum canonical"};
  const ConfigWords striped{"sums attention per-degree (striped)",
                            "--attention-sum per-degree --attention-layout striped"};
  const absl::Status by_router = CheckGreeting(
      router, attention, {{"1", {}, {}}, {attention.config_hash, canonical, striped}});
  EXPECT_EQ(by_router.message(),
            "the configuration differs: the router has 0123456789abcdef, the attention has "
            "00000000deadbeef; the router sums attention canonical, the attention sums attention "
            "per-degree (striped)");
  EXPECT_EQ(HintOf(by_router), "start the attention with --attention-sum canonical");
  EXPECT_EQ(HintOf(CheckGreeting(attention, router, {{router.config_hash, striped, canonical}})),
            "start the attention with --attention-sum canonical");
  EXPECT_THAT(HintOf(CheckGreeting(router, attention, {{"1", {}, {}}})),
              HasSubstr("give both the same --span"));
}

TEST(CheckGreetingTest, RefusesAnotherNumericClass) {
  Greeting other = Sample();
  other.numeric_class = "gpu";
  EXPECT_EQ(CheckGreeting(Sample(), other).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace moebius
