// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/send_queue.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/transport/hello.h"

namespace moebius {
namespace {

constexpr FrameKind kKind{16};

Message Bytes(uint64_t step, uint64_t size) {
  Message message;
  message.key.kind = kKind;
  message.key.step = step;
  message.num_rows = size / 4;
  message.row_width = 1;
  message.dtype = DType::kF32;
  message.rows = SharedBytes::Copy(std::string(size, static_cast<char>('a' + step)));
  return message;
}

FrameHeader HeaderOf(const WireFrame& frame) {
  FrameLimits limits;
  limits.max_payload_bytes = limits.max_message_bytes = limits.max_metadata_bytes = 1 << 20;
  limits.max_num_rows = limits.max_row_width = 1 << 20;
  const auto header = DecodeFrameHeader(absl::MakeConstSpan(frame.header), limits);
  EXPECT_TRUE(header.ok()) << header.status();
  EXPECT_TRUE(VerifyPayload(*header, frame.payload).ok());
  return *header;
}

class SendQueueTest : public ::testing::Test {
 protected:
  // Frames of 256 bytes, a window of four of them.
  static constexpr uint64_t kFrame = 256;
  static constexpr uint64_t kWindow = 4 * (kFrame + kFrameHeaderBytes);
  void SetUp() override { queue_.Open({9, kWindow, kFrame, true}); }
  absl::Status Push(uint64_t id, uint64_t size,
                    absl::Duration deadline = absl::InfiniteDuration()) {
    return queue_.Push(SendId(id), Bytes(id, size), deadline, now_, nullptr);
  }
  std::vector<FrameHeader> Drain() {
    std::vector<FrameHeader> headers;
    for (auto frame = queue_.Next(now_, &finished_); frame.has_value();
         frame = queue_.Next(now_, &finished_)) {
      headers.push_back(HeaderOf(*frame));
    }
    return headers;
  }
  LaneCounters counters_;
  SendQueue queue_{Lane::kBulk, 4096, counters_};
  absl::Duration now_ = absl::Hours(1);
  std::vector<SendQueue::Finished> finished_;
};

TEST_F(SendQueueTest, CutsMessagesAndNumbersFrames) {
  ASSERT_TRUE(Push(0, 600).ok());
  ASSERT_TRUE(Push(1, 0).ok());
  const auto headers = Drain();
  ASSERT_EQ(headers.size(), 4u);
  for (size_t i = 0; i < headers.size(); ++i) {
    EXPECT_EQ(headers[i].sequence, i);
    EXPECT_EQ(headers[i].incarnation, 9u);
  }
  EXPECT_EQ(headers[2].part, 2u);
  EXPECT_EQ(headers[2].parts, 3u);
  EXPECT_EQ(headers[3].payload_bytes, 0u);
  EXPECT_EQ(queue_.queued_bytes(), 0u);
}

TEST_F(SendQueueTest, StopsAtTheWindowAndGoesOnWithCredit) {
  ASSERT_TRUE(Push(0, 2048).ok());
  EXPECT_EQ(Drain().size(), 4u);
  EXPECT_EQ(queue_.in_flight_bytes(), kWindow);
  EXPECT_TRUE(Drain().empty());
  ASSERT_TRUE(queue_.OnCredit(2, now_).ok());
  EXPECT_EQ(Drain().size(), 2u);
  ASSERT_TRUE(queue_.OnCredit(2, now_).ok());  // the same news again
  EXPECT_TRUE(Drain().empty());
  ASSERT_TRUE(queue_.OnCredit(6, now_).ok());
  EXPECT_EQ(Drain().size(), 2u);
  EXPECT_FALSE(queue_.OnCredit(9, now_).ok());
  ASSERT_TRUE(queue_.OnCredit(8, now_).ok());
  EXPECT_FALSE(queue_.HasUncredited());
}

TEST_F(SendQueueTest, CountsHowLongMessagesWaitedUntilTheirLastPartLeft) {
  ASSERT_TRUE(Push(0, 2 * kFrame).ok());
  ASSERT_TRUE(Push(1, 4 * kFrame).ok());
  Drain();
  const auto queued = [this] {
    return counters_.figures().stage_times[static_cast<size_t>(TransportStage::kQueued)];
  };
  EXPECT_EQ(queued(), absl::ZeroDuration());
  now_ += absl::Seconds(3);
  Drain();
  EXPECT_EQ(queued(), absl::ZeroDuration()) << "nothing could leave";
  ASSERT_TRUE(queue_.OnCredit(4, now_).ok());
  Drain();
  EXPECT_EQ(queued(), absl::Seconds(3));
}

TEST_F(SendQueueTest, OwnFramesPassAFullWindow) {
  ASSERT_TRUE(Push(0, 2048).ok());
  Drain();
  queue_.PushBeat();
  queue_.PushCredit(3);
  queue_.PushCredit(5);  // the newer one stands for both
  const auto headers = Drain();
  ASSERT_EQ(headers.size(), 2u);
  EXPECT_EQ(headers[0].kind, kCreditKind);
  EXPECT_EQ(headers[1].kind, kBeatKind);
}

TEST_F(SendQueueTest, RefusesWhatItsLimitDoesNotHold) {
  ASSERT_TRUE(Push(0, 3000).ok());
  const absl::Status full = Push(1, 1000);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), ::testing::HasSubstr("the bulk lane has 3128 of 4096"));
  EXPECT_TRUE(Push(2, 800).ok());
}

TEST_F(SendQueueTest, TakesOneMessageOfAnySizeWhenEmpty) {
  EXPECT_TRUE(Push(0, 100000).ok());
  EXPECT_FALSE(Push(1, 4).ok());
}

TEST_F(SendQueueTest, DropsTheRestOfWhatIsCancelledOrLate) {
  ASSERT_TRUE(Push(0, 2048, absl::Seconds(1)).ok());
  ASSERT_TRUE(Push(1, 100, absl::Seconds(2)).ok());
  ASSERT_TRUE(Push(2, 100).ok());
  Drain();
  EXPECT_EQ(queue_.next_deadline(), absl::Seconds(1));
  queue_.Expire(absl::Seconds(1), &finished_);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(queue_.Cancel(SendId(1)));
  EXPECT_FALSE(queue_.Cancel(SendId(1)));
  ASSERT_TRUE(queue_.OnCredit(4, now_).ok());
  const auto headers = Drain();
  ASSERT_EQ(headers.size(), 1u);
  EXPECT_EQ(headers[0].step, 2u);
  EXPECT_EQ(headers[0].sequence, 4u);  // no hole where the cancelled frames would have been
}

TEST(HelloTest, BringsWhatWasSaidAndRefusesTheImpossible) {
  Hello hello;
  hello.lane = Lane::kDecode;
  hello.connection_id = 5;
  hello.window_bytes = 9000;
  hello.max_message_bytes = 70000;
  hello.max_payload_bytes = 4096;
  hello.name = "expert-2";
  hello.greeting = std::string("\0\1", 2);
  const Frame frame = BuildHello(hello);
  const auto parsed = ParseHello(frame.header, frame.payload);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->lane, Lane::kDecode);
  EXPECT_EQ(parsed->name, "expert-2");
  EXPECT_EQ(parsed->greeting, hello.greeting);
  EXPECT_EQ(parsed->max_message_bytes, 70000u);
  for (const auto& change : std::vector<void (*)(Hello&)>{
           [](Hello& h) { h.lane = static_cast<Lane>(3); }, [](Hello& h) { h.connection_id = 0; },
           [](Hello& h) { h.window_bytes = 2 * (4096 + 128) - 1; },
           [](Hello& h) { h.max_payload_bytes = 0; }, [](Hello& h) { h.max_payload_bytes = 100; },
           [](Hello& h) { h.max_payload_bytes = 0xffffffc0; },
           [](Hello& h) { h.name = "bad\x1bname"; }}) {
    Hello other = hello;
    change(other);
    const Frame bad = BuildHello(other);
    EXPECT_FALSE(ParseHello(bad.header, bad.payload).ok());
  }
  for (size_t size = 0; size < 43; ++size) {
    EXPECT_FALSE(ParseHello(frame.header, SlicePayload(frame.payload, 0, size)).ok()) << size;
  }
  const Frame goodbye = BuildGoodbye(absl::AbortedError("\x1b[2J"));
  EXPECT_EQ(ParseGoodbye(goodbye.header, goodbye.payload), absl::AbortedError("?[2J"));
  EXPECT_FALSE(ParseGoodbye(goodbye.header, {}).ok());
}

// Round trips of beats: the other end answers one at once with a credit, where it owes one.
class SendQueueRoundTripTest : public SendQueueTest {
 protected:
  // A beat that asks nothing, as own frames go first, a message and a beat that asks: 0, 1 and 2.
  void SendFrameAndBeat() {
    ASSERT_TRUE(Push(0, 16).ok());
    queue_.PushBeat();
    ASSERT_EQ(Drain().size(), 2u);
    queue_.PushBeat();
    ASSERT_EQ(Drain().size(), 1u);
  }
  uint64_t num_round_trips() const { return counters_.round_trips().figures().count(); }
};

TEST_F(SendQueueRoundTripTest, ABeatAndTheCreditThatAnswersItAreOne) {
  SendFrameAndBeat();
  now_ += absl::Milliseconds(3);
  ASSERT_TRUE(queue_.OnCredit(3, now_).ok());
  EXPECT_EQ(num_round_trips(), 1u);
  EXPECT_DOUBLE_EQ(counters_.round_trips().figures().sum, 0.003);
  ASSERT_TRUE(queue_.OnCredit(3, now_ + absl::Seconds(1)).ok());
  EXPECT_EQ(num_round_trips(), 1u) << "an answer counts once";
}

TEST_F(SendQueueRoundTripTest, ACreditThatWasOnItsWayLeavesTheBeatWithoutAnAnswer) {
  SendFrameAndBeat();
  // It covers the message, and was given before the beat came.
  ASSERT_TRUE(queue_.OnCredit(2, now_).ok());
  ASSERT_TRUE(Push(1, 16).ok());
  ASSERT_EQ(Drain().size(), 1u);
  now_ += absl::Seconds(2);
  ASSERT_TRUE(queue_.OnCredit(4, now_).ok());  // of its own accord
  EXPECT_EQ(num_round_trips(), 0u);
}

TEST_F(SendQueueRoundTripTest, ABeatBehindNothingAsksForNothing) {
  queue_.PushBeat();
  ASSERT_EQ(Drain().size(), 1u);
  ASSERT_TRUE(Push(0, 16).ok());
  ASSERT_EQ(Drain().size(), 1u);
  now_ += absl::Seconds(2);
  ASSERT_TRUE(queue_.OnCredit(2, now_).ok());
  EXPECT_EQ(num_round_trips(), 0u);
}

TEST_F(SendQueueRoundTripTest, BeatsWhileOneWaitsForItsAnswerAskNothingMore) {
  SendFrameAndBeat();
  now_ += absl::Milliseconds(150);
  queue_.PushBeat();
  ASSERT_EQ(Drain().size(), 1u);
  now_ += absl::Milliseconds(50);
  ASSERT_TRUE(queue_.OnCredit(4, now_).ok());
  EXPECT_EQ(num_round_trips(), 1u);
  EXPECT_DOUBLE_EQ(counters_.round_trips().figures().sum, 0.2) << "since the first of them";
}

}  // namespace
}  // namespace moebius
