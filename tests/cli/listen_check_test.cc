// SPDX-License-Identifier: Apache-2.0
#include "cli/listen_check.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/transport/grpc/listen_socket.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

const Address kAnyPort = {"127.0.0.1", 0};

TEST(ListenCheckTest, FreeAddressesAreStillFreeAfterwards) {
  const Address free = OpenListenSockets(kAnyPort)->address;
  for (int i = 0; i < 2; ++i) {
    const DoctorCheck check = CheckListenAddresses({free, kAnyPort});
    EXPECT_EQ(check.state, CheckState::kOk) << check.detail;
    EXPECT_EQ(check.detail, absl::StrCat(FormatAddress(free), ", 127.0.0.1:0 are free"));
    EXPECT_EQ(check.hint, "");
  }
}

TEST(ListenCheckTest, NamesWhoHoldsAPortAndWhatIsNotOfThisHost) {
  const auto taken = OpenListenSockets(kAnyPort);
  const DoctorCheck check =
      CheckListenAddresses({kAnyPort, taken->address, {"192.0.2.1", 7410}, kAnyPort});
  EXPECT_EQ(check.state, CheckState::kFault);
  EXPECT_THAT(check.detail, HasSubstr(absl::StrCat(FormatAddress(taken->address), " is held by")));
  EXPECT_THAT(check.detail, HasSubstr("; cannot listen on 192.0.2.1:7410"));
  EXPECT_THAT(check.hint, HasSubstr("stop that process"));
}

TEST(ListenCheckTest, TwoOfTheListMayNotShareAPort) {
  const Address free = OpenListenSockets(kAnyPort)->address;
  const DoctorCheck check = CheckListenAddresses({free, {"0.0.0.0", free.port}});
  EXPECT_EQ(check.state, CheckState::kFault);
  EXPECT_EQ(check.detail, absl::StrCat("0.0.0.0:", free.port, " is also another one's of these"));
  EXPECT_EQ(check.hint, "give each a port of its own");
}

TEST(ListenCheckTest, RefusesWhatIsNoListOfAddresses) {
  for (const char* text : {"", "7410", "a:1,", "a:1 b:2", "a:65536"}) {
    const absl::Status status = ParseListenAddresses(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--listen")) << text;
  }
  std::string many = "a:1";
  for (int i = 0; i < 64; ++i) many += ",a:1";
  EXPECT_TRUE(absl::IsInvalidArgument(ParseListenAddresses(many).status()));
  EXPECT_EQ(ParseListenAddresses("[::1]:7410,127.0.0.1:0")->size(), 2u);
}

}  // namespace
}  // namespace moebius
