// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/link_suite.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"

#include "tests/transport/link_user.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

TEST_P(LinkSuite, CarriesFramesBothWaysInOrder) {
  auto provider = Make();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_NE((*listener)->address().port, 0);
  LinkUser guest(*provider->Dial((*listener)->address(), kLane));
  for (int i = 0; i < 100; ++i) guest.Write(NumberedFrame(i, 1000 * i));
  ASSERT_TRUE(Until([&] { return host.num_links() == 1; }));
  ASSERT_TRUE(Until([&] { return host.link(0).num_frames() == 100; }));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Difference(host.link(0).frame(i), i, 1000 * i), "");
  for (int i = 0; i < 100; ++i) host.link(0).Write(NumberedFrame(i, 777));
  ASSERT_TRUE(Until([&] { return guest.num_frames() == 100; }));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Difference(guest.frame(i), i, 777), "");
}

TEST_P(LinkSuite, CarriesAFrameWithoutPayloadAndOneAtTheLimit) {
  auto provider = Make(5000);
  Host host;
  auto listener = provider->Listen({"localhost", 0}, host);
  ASSERT_TRUE(listener.ok()) << listener.status();
  LinkUser guest(*provider->Dial((*listener)->address(), kLane));
  for (int i = 0; i < 50; ++i) {
    guest.Write(NumberedFrame(2 * i, 0));
    guest.Write(NumberedFrame(2 * i + 1, 5000));
  }
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == 100; }));
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(Difference(host.link(0).frame(2 * i), 2 * i, 0), "");
    EXPECT_TRUE(host.link(0).frame(2 * i).payload.empty());
    EXPECT_EQ(Difference(host.link(0).frame(2 * i + 1), 2 * i + 1, 5000), "");
  }
}

TEST_P(LinkSuite, CloseDeliversWhatWasTakenAndEndsBothEndsWithOk) {
  for (const bool guest_closes : {true, false}) {
    auto provider = Make();
    Host host;
    auto listener = provider->Listen({"127.0.0.1", 0}, host);
    LinkUser guest(*provider->Dial((*listener)->address(), kLane));
    guest.Write(NumberedFrame(0, 10));
    ASSERT_TRUE(Until([&] { return host.num_links() == 1; }));
    LinkUser& writer = guest_closes ? guest : host.link(0);
    LinkUser& reader = guest_closes ? host.link(0) : guest;
    for (int i = 1; i <= 20; ++i) writer.Write(NumberedFrame(i, 100000));
    writer.Close();
    ASSERT_TRUE(Until([&] { return writer.closed() && reader.closed(); }));
    EXPECT_EQ(reader.num_frames(), guest_closes ? 21u : 20u);
    EXPECT_TRUE(reader.reason().ok()) << reader.reason();
    EXPECT_TRUE(writer.reason().ok()) << writer.reason();
    // There is nothing left to write to, and nobody to say so.
    WireFrame frame = NumberedFrame(0, 10);
    EXPECT_TRUE(writer.link().TryWrite(frame));
  }
}

TEST_P(LinkSuite, ADestroyedEndIsHeardOfAtOnce) {
  for (const bool guest_goes : {true, false}) {
    auto provider = Make();
    Host host;
    auto listener = provider->Listen({"127.0.0.1", 0}, host);
    auto guest = std::make_unique<LinkUser>(*provider->Dial((*listener)->address(), kLane));
    guest->Write(NumberedFrame(0, 10));
    ASSERT_TRUE(Until([&] { return host.num_links() == 1 && host.link(0).num_frames() == 1; }));
    if (guest_goes) {
      guest.reset();
      ASSERT_TRUE(Until([&] { return host.link(0).closed(); }));
      EXPECT_FALSE(host.link(0).reason().ok());
    } else {
      host.Clear();
      ASSERT_TRUE(Until([&] { return guest->closed(); }));
      EXPECT_FALSE(guest->reason().ok());
    }
  }
}

TEST_P(LinkSuite, NobodyListeningIsUnavailableWithTheReason) {
  auto provider = Make();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  const Address address = (*listener)->address();
  listener->reset();
  LinkUser guest(*provider->Dial(address, kLane));
  ASSERT_TRUE(Until([&] { return guest.closed(); }));
  EXPECT_EQ(guest.reason().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(guest.reason().message()), HasSubstr("refused"));
}

TEST_P(LinkSuite, AFrameAboveTheReadersLimitEndsTheLinkAndNobodyElses) {
  auto strict = Make(1000);
  auto lax = Make();
  Host host;
  auto listener = strict->Listen({"127.0.0.1", 0}, host);
  LinkUser good(*strict->Dial((*listener)->address(), kLane));
  LinkUser bad(*lax->Dial((*listener)->address(), kLane));
  good.Write(NumberedFrame(0, 1000));
  bad.Write(NumberedFrame(0, 1001));
  ASSERT_TRUE(Until([&] { return bad.closed(); }));
  EXPECT_EQ(bad.reason().code(), absl::StatusCode::kResourceExhausted) << bad.reason();
  good.Write(NumberedFrame(1, 1000));
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == 2; }));
}

TEST_P(LinkSuite, LinksLiveOnWhenTheListenerHasGone) {
  auto provider = Make();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  const Address address = (*listener)->address();
  LinkUser guest(*provider->Dial(address, kLane));
  guest.Write(NumberedFrame(0, 10));
  ASSERT_TRUE(Until([&] { return host.TotalFrames() == 1; }));
  listener->reset();
  guest.Write(NumberedFrame(1, 10));
  EXPECT_TRUE(Until([&] { return host.TotalFrames() == 2; }));
  // The port is free at once.
  Host next;
  EXPECT_TRUE(provider->Listen(address, next).ok());
}

TEST_P(LinkSuite, ABusyPortNamesTheProcessThatHoldsIt) {
  auto provider = Make();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  const auto second = provider->Listen((*listener)->address(), host);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("address already in use: "));
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("held by pid ", getpid(), " (")));
}

TEST_P(LinkSuite, StaysOnThisHostUnlessAllowed) {
  auto provider = Make();
  Host host;
  EXPECT_EQ(provider->Listen({"0.0.0.0", 0}, host).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(provider->Dial({"0.0.0.0", 1}, kLane).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(LinkSuite, NothingIsLeftOfManyConnections) {
  auto provider = Make();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  size_t descriptors = 0;
  for (int cycle = 0; cycle < 200; ++cycle) {
    {
      LinkUser guest(*provider->Dial((*listener)->address(), kLane));
      guest.Write(NumberedFrame(0, 5000));
      ASSERT_TRUE(Until([&] { return host.TotalFrames() == 1; }));
      if (cycle % 2 == 0) guest.Close();
    }
    ASSERT_TRUE(Until([&] {
      host.Clear();
      return GetParam().is_idle(*provider);
    }));
    // What a library keeps for its threads comes and goes; a leak grows with the cycles.
    if (cycle <= 50) descriptors = std::max(descriptors, NumDescriptors());
  }
  EXPECT_TRUE(Until([&] { return NumDescriptors() <= descriptors + 1; }))
      << NumDescriptors() << ", " << descriptors << " in the beginning";
}

TEST_P(LinkSuite, NothingIsLeftOfLinksThatNeverOpened) {
  auto provider = Make();
  Host host;
  auto listener = provider->Listen({"127.0.0.1", 0}, host);
  const auto is_over = [&] {
    host.Clear();
    return GetParam().is_idle(*provider);
  };
  {
    // What a library keeps for its threads comes with the first.
    LinkUser first(*provider->Dial((*listener)->address(), kLane));
    first.Write(NumberedFrame(0, 10));
    ASSERT_TRUE(Until([&] { return host.TotalFrames() == 1; }));
  }
  ASSERT_TRUE(Until(is_over));
  const size_t descriptors = NumDescriptors();
  for (int cycle = 0; cycle < 160; ++cycle) {
    auto guest = std::make_unique<LinkUser>(*provider->Dial((*listener)->address(), kLane));
    // Each is given up a little later in its opening than the one before.
    absl::SleepFor(absl::Microseconds(25 * (cycle % 80)));
  }
  ASSERT_TRUE(Until(is_over));
  EXPECT_TRUE(Until([&] { return NumDescriptors() <= descriptors + 2; }))
      << NumDescriptors() << ", " << descriptors << " before";
}

}  // namespace
}  // namespace moebius
