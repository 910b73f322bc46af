// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/proved_role.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

TEST(CheckProvedRoleTest, ARolesCertificateIsForThatRoleAlone) {
  EXPECT_TRUE(CheckProvedRole("spiffe://moebius/expert", Role::kExpert).ok());
  for (const char* identity : {"spiffe://moebius/client", "spiffe://moebius/attention",
                               "spiffe://moebius/", "spiffe://moebius/expert/7"}) {
    const absl::Status status = CheckProvedRole(identity, Role::kExpert);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << identity;
    EXPECT_THAT(std::string(status.message()), HasSubstr("it says that it is an expert"));
    EXPECT_THAT(HintOf(status), HasSubstr("spiffe://moebius/expert"));
  }
}

TEST(CheckProvedRoleTest, NamesOfOtherAuthoritiesProveNoRole) {
  for (const char* identity : {"", "10.0.0.7", "node-7.example", "spiffe://elsewhere/client"}) {
    EXPECT_TRUE(CheckProvedRole(identity, Role::kRouter).ok()) << identity;
  }
}

}  // namespace
}  // namespace moebius
