// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/address.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

TEST(AddressTest, ReadsAndWritesEveryKindAlike) {
  const std::vector<std::pair<std::string, Address>> cases = {
      {"127.0.0.1:9000", {"127.0.0.1", 9000}},
      {"0.0.0.0:0", {"0.0.0.0", 0}},
      {"[::1]:9000", {"::1", 9000}},
      {"[fd00::2]:65535", {"fd00::2", 65535}},
      {"[fe80::1%eth0]:1", {"fe80::1%eth0", 1}},
      {"[::ffff:10.0.0.1]:1", {"::ffff:10.0.0.1", 1}},
      {"localhost:80", {"localhost", 80}},
      {"expert-2.experts.moebius.svc:9001", {"expert-2.experts.moebius.svc", 9001}},
  };
  for (const auto& [text, expected] : cases) {
    const auto address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << text << ": " << address.status();
    EXPECT_EQ(address->host, expected.host);
    EXPECT_EQ(address->port, expected.port);
    EXPECT_EQ(FormatAddress(*address), text);
  }
}

TEST(AddressTest, RefusesTheRestWithAHint) {
  for (const char* text : {"",
                           "host",
                           ":9000",
                           "host:",
                           "host:65536",
                           "host:-1",
                           "host:+1",
                           "host: 1",
                           "host:1x",
                           "::1:9000",
                           "fd00::2",
                           "[::1]",
                           "[::1]9000",
                           "[::1",
                           "[10.0.0.1]:1",
                           "[]:1",
                           "[fe80::1%]:1",
                           "1.2.3:4",
                           "1.2.3.4.5:1",
                           "256.0.0.1:1",
                           "ho st:1",
                           "http://host:1",
                           "-host:1",
                           "host:00000000001"}) {
    const auto address = ParseAddress(text);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(HintOf(address.status()), HasSubstr("[address]:port")) << text;
  }
  EXPECT_THAT(std::string(ParseAddress("fd00::2").status().message()), HasSubstr("brackets"));
  EXPECT_THAT(std::string(ParseAddress("http://host:1").status().message()), HasSubstr("a URL"));
  EXPECT_THAT(std::string(ParseAddress("a:1,b:2").status().message()), HasSubstr("more than one"));
}

TEST(AddressTest, KnowsPlacesThatNobodyCanConnectTo) {
  for (const char* host : {"0.0.0.0", "::", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0"}) {
    EXPECT_TRUE(IsUnspecified({host, 1})) << host;
    EXPECT_FALSE(IsLoopback({host, 1})) << host;
  }
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"}) {
    EXPECT_TRUE(IsLoopback({host, 1})) << host;
  }
  for (const char* host : {"10.0.0.1", "fe80::1%eth0", "localhost.example.com", "128.0.0.1"}) {
    EXPECT_FALSE(IsLoopback({host, 1})) << host;
    EXPECT_FALSE(IsUnspecified({host, 1})) << host;
  }
}

TEST(AddressTest, ListensBeyondThisHostOnlyWithTlsOrInsecure) {
  EXPECT_TRUE(ValidateListenAddress({"127.0.0.1", 1}, Exposure::kLoopbackOnly).ok());
  EXPECT_TRUE(ValidateListenAddress({"0.0.0.0", 1}, Exposure::kTls).ok());
  EXPECT_TRUE(ValidateListenAddress({"0.0.0.0", 1}, Exposure::kInsecureAllowed).ok());
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "expert-2"}) {
    const absl::Status status = ValidateListenAddress({host, 1}, Exposure::kLoopbackOnly);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << host;
    EXPECT_THAT(HintOf(status), HasSubstr("--insecure"));
  }
}

TEST(AddressTest, NeverAdvertisesAnUnspecifiedAddress) {
  EXPECT_EQ(AdvertisedAddress({"0.0.0.0", 9001}, {"expert-2", 0})->port, 9001);
  EXPECT_EQ(AdvertisedAddress({"0.0.0.0", 9001}, {"expert-2", 7})->port, 7);
  EXPECT_EQ(AdvertisedAddress({"10.0.0.1", 9001}, {})->host, "10.0.0.1");
  for (const char* host : {"0.0.0.0", "::"}) {
    const auto address = AdvertisedAddress({host, 9001}, {});
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(HintOf(address.status()), HasSubstr("--advertise"));
  }
  EXPECT_FALSE(AdvertisedAddress({"10.0.0.1", 0}, {}).ok());
  EXPECT_FALSE(AdvertisedAddress({"10.0.0.1", 1}, {"0.0.0.0", 1}).ok());
}

}  // namespace
}  // namespace moebius
