// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/probe_codec.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"

#include "moebius/transport/frame/byte_codec.h"
#include "moebius/wire/message_kind.h"

namespace moebius {
namespace {

Message ReplyOf(const std::string& bytes) {
  Message message = BuildProbeReply(BuildProbe(3, 64), 1);
  message.metadata = SharedBytes::Copy(bytes);
  return message;
}

std::string BytesOf(double value) {
  ByteWriter out;
  out.Write(value);
  return std::string(out.Share().view());
}

TEST(ProbeCodecTest, TheAnswerHasTheProbesKeyAndTheRate) {
  for (const uint64_t num_bytes : {uint64_t{0}, uint64_t{64}, kMaxProbeBytes}) {
    const Message probe = BuildProbe(41, num_bytes);
    EXPECT_EQ(probe.key.kind, kProbeKind);
    EXPECT_EQ(probe.key.step, 41u);
    EXPECT_EQ(probe.metadata.size(), num_bytes);
    const Message reply = BuildProbeReply(probe, 98.5e9);
    EXPECT_EQ(reply.key.kind, kProbeReplyKind);
    EXPECT_EQ(reply.key.step, 41u);
    EXPECT_LE(reply.metadata.size(), kMessageAlignment);
    const auto flops = ParseProbeReply(reply);
    ASSERT_TRUE(flops.ok()) << flops.status();
    EXPECT_EQ(*flops, 98.5e9);
  }
}

TEST(ProbeCodecTest, RefusesWhatIsNoRate) {
  const std::string good = BytesOf(1e9);
  EXPECT_TRUE(ParseProbeReply(ReplyOf(good)).ok());
  EXPECT_TRUE(ParseProbeReply(ReplyOf(good + std::string(56, '\0'))).ok()) << "padded";
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(ParseProbeReply(ReplyOf(good.substr(0, size))).ok()) << size;
  }
  EXPECT_FALSE(ParseProbeReply(ReplyOf(good + "x")).ok());
  for (const double bad :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_FALSE(ParseProbeReply(ReplyOf(BytesOf(bad))).ok()) << bad;
  }
}

}  // namespace
}  // namespace moebius
