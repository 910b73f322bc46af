// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/message_assembly.h"

#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace moebius {
namespace {

constexpr FrameKind kKind{16};
constexpr uint64_t kPartBytes = 64 << 10;

// 1,024 rows of 64 numbers that depend on the step and the place: five parts.
Message LargeMessage(uint64_t step) {
  Message message;
  message.key.kind = kKind;
  message.key.step = step;
  message.num_rows = 1024;
  message.row_width = 64;
  message.dtype = DType::kI32;
  message.metadata = SharedBytes::Copy(absl::string_view("metadata"));
  BytesBuilder rows(message.num_rows * message.row_width * 4);
  for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<uint8_t>(step * 7 + i * 3);
  message.rows = std::move(rows).Share();
  return message;
}

class MessageAssemblyTest : public ::testing::Test {
 protected:
  MessageAssemblyTest() {
    ReservationSpec spec;
    spec.scope = ReservationScope::kKind;
    spec.key.kind = kKind;
    spec.max_message_bytes = 1 << 20;
    spec.on_delivery = [this](const Delivery& delivery) { last_ = *delivery.message; };
    EXPECT_TRUE(table_.Add(std::move(spec)).ok());
  }
  uint32_t Parts(const Message& message) const {
    return NumParts(MessageBytes(message), kPartBytes);
  }
  void Add(const Message& message, uint32_t part) {
    Frame frame = BuildFrame(message, part, Parts(message));
    assembly_.Add(frame.header, std::move(frame.payload));
  }
  void AddAll(const Message& message) {
    for (uint32_t part = 0; part < Parts(message); ++part) Add(message, part);
  }

  ReservationTable table_{ReservationLimits()};
  BufferPool buffers_{4 << 20};
  LaneCounters counters_;
  MessageAssembly assembly_{table_, buffers_, PeerId(1), Lane::kBulk, counters_};
  std::optional<Message> last_;
};

TEST_F(MessageAssemblyTest, PutsMessagesOfOneSizeIntoTheSameMemory) {
  for (uint64_t step = 0; step < 20; ++step) {
    const Message message = LargeMessage(step);
    ASSERT_GT(Parts(message), 1u);
    AddAll(message);
    ASSERT_TRUE(last_.has_value());
    EXPECT_EQ(last_->key.step, step);
    EXPECT_EQ(last_->rows.view(), message.rows.view());
    last_.reset();
  }
  const BufferPoolFigures figures = buffers_.figures();
  EXPECT_EQ(figures.num_fresh, 1u);
  EXPECT_EQ(figures.num_reused, 19u);
}

TEST_F(MessageAssemblyTest, AMessageThatIsStillReadIsNotWrittenOver) {
  const Message first = LargeMessage(1);
  AddAll(first);
  const Message kept = *last_;
  AddAll(LargeMessage(2));
  EXPECT_EQ(kept.rows.view(), first.rows.view());
  EXPECT_EQ(buffers_.figures().num_fresh, 2u);
}

TEST_F(MessageAssemblyTest, TheMemoryOfAnAbandonedMessageComesBack) {
  Add(LargeMessage(1), 0);
  EXPECT_GT(assembly_.held_bytes(), 0u);
  EXPECT_EQ(buffers_.figures().idle_bytes, 0u);
  AddAll(LargeMessage(2));
  EXPECT_EQ(assembly_.held_bytes(), 0u);
  EXPECT_EQ(last_->rows.view(), LargeMessage(2).rows.view());
  last_.reset();
  EXPECT_GT(buffers_.figures().idle_bytes, 0u);
  EXPECT_EQ(buffers_.figures().num_fresh, 1u);
}

TEST_F(MessageAssemblyTest, TakesNoMemoryForWhatNobodyReserved) {
  Message message = LargeMessage(1);
  message.key.kind = FrameKind{17};
  AddAll(message);
  EXPECT_FALSE(last_.has_value());
  EXPECT_EQ(buffers_.figures().num_fresh, 0u);
}

}  // namespace
}  // namespace moebius
