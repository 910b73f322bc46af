// SPDX-License-Identifier: Apache-2.0
#include "router_service/rpc_ports.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(RpcPortsTest, WarnsOfKeysThatLeaveTheHostInClearText) {
  const Address outside = {"0.0.0.0", 7413};
  ServiceConfig config;
  config.exposure = Exposure::kInsecureAllowed;
  EXPECT_THAT(RpcPorts::WarningsOf(config, outside, true),
              ElementsAre(AllOf(HasSubstr("API keys come in clear text to 0.0.0.0:7413"),
                                HasSubstr("; give --tls-ca"))));
  EXPECT_THAT(RpcPorts::WarningsOf(config, outside, false), IsEmpty());
  EXPECT_THAT(RpcPorts::WarningsOf(config, {"127.0.0.1", 7413}, true), IsEmpty());
  config.tls = TlsOptions();
  EXPECT_THAT(RpcPorts::WarningsOf(config, outside, true), IsEmpty());
}

}  // namespace
}  // namespace moebius
