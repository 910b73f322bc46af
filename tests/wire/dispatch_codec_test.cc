// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/dispatch_codec.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "moebius/tensor/bf16.h"
#include "moebius/tensor/buffer.h"
#include "moebius/transport/frame/byte_codec.h"
#include "moebius/wire/message_kind.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kNumIds = 10;
constexpr int64_t kHidden = 8;

// Three of five rows: row 0 to experts 4 and 1 (joined), row 2 to 9, row 4 to 0, 3 and 7.
struct Sample {
  std::vector<int32_t> row_ids = {0, 2, 4};
  std::vector<int64_t> row_begin = {0, 2, 3, 6};
  std::vector<int32_t> expert_ids = {4, 1, 9, 0, 3, 7};
  std::vector<float> weights = {0.5f, 0.25f, 1.0f, 0.1f, 0.2f, 0.3f};
  std::vector<uint8_t> joins = {0, 1, 0, 0, 0, 1};
  RowBatch<Bf16> rows{5, kHidden};

  Sample() {
    for (int64_t row = 0; row < 5; ++row) {
      for (int64_t column = 0; column < kHidden; ++column) {
        rows.rows().row(row)[column] = ToBf16(static_cast<float>(row * 10 + column));
      }
    }
  }
  ServiceDispatch dispatch() const {
    ServiceDispatch out;
    out.epoch = Epoch(12);
    out.row_ids = row_ids;
    out.row_begin = row_begin;
    out.expert_ids = expert_ids;
    out.weights = weights;
    out.joins_previous = joins;
    return out;
  }
  Message message() const {
    MessageKey key{kDispatchKind};
    key.step = 7;
    key.layer = 3;
    return BuildDispatch(key, dispatch(), rows.rows());
  }
};

// The same message with other metadata.
Message WithMetadata(Message message, const ByteWriter& out) {
  message.metadata = out.Share();
  return message;
}

TEST(DispatchCodecTest, BringsTheDispatchedRowsAndTheirAssignments) {
  const Sample sample;
  const Message message = sample.message();
  EXPECT_EQ(message.metadata.size(), DispatchMetadataBytes(3, 6));
  ReceivedDispatch received;
  ASSERT_TRUE(received.Decode(message, kHidden, kNumIds).ok());
  const ServiceDispatch& dispatch = received.dispatch();
  EXPECT_EQ(dispatch.epoch, Epoch(12));
  EXPECT_THAT(dispatch.row_ids, ::testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(dispatch.row_begin, absl::MakeConstSpan(sample.row_begin));
  EXPECT_EQ(dispatch.expert_ids, absl::MakeConstSpan(sample.expert_ids));
  EXPECT_EQ(dispatch.weights, absl::MakeConstSpan(sample.weights));
  EXPECT_EQ(dispatch.joins_previous, absl::MakeConstSpan(sample.joins));
  // Six assignments, of which two join.
  EXPECT_EQ(dispatch.num_reply_rows, 4);
  EXPECT_EQ(dispatch.experts.size(), 6u);
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t column = 0; column < kHidden; ++column) {
      EXPECT_EQ(ToFloat(received.rows().row(row)[column]),
                static_cast<float>(sample.row_ids[static_cast<size_t>(row)] * 10 + column));
    }
  }
}

TEST(DispatchCodecTest, ADispatchOfNoRowsIsOrdinary) {
  Sample sample;
  sample.row_ids.clear();
  sample.row_begin = {0};
  sample.expert_ids.clear();
  sample.weights.clear();
  sample.joins.clear();
  ReceivedDispatch received;
  ASSERT_TRUE(received.Decode(sample.message(), kHidden, kNumIds).ok());
  EXPECT_EQ(received.dispatch().num_rows(), 0);
  EXPECT_EQ(received.dispatch().num_reply_rows, 0);
  // After a larger one, too.
  ASSERT_TRUE(received.Decode(Sample().message(), kHidden, kNumIds).ok());
  ASSERT_TRUE(received.Decode(sample.message(), kHidden, kNumIds).ok());
  EXPECT_EQ(received.dispatch().num_assignments(), 0);
}

TEST(DispatchCodecTest, RefusesEveryHostileNumber) {
  struct Case {
    const char* name;
    void (*change)(Sample&);
  };
  const std::vector<Case> cases = {
      {"id E", [](Sample& s) { s.expert_ids[0] = kNumIds; }},
      {"id 65535", [](Sample& s) { s.expert_ids[0] = 65535; }},
      {"an id twice in a row", [](Sample& s) { s.expert_ids[1] = 4; }},
      {"NaN", [](Sample& s) { s.weights[2] = std::numeric_limits<float>::quiet_NaN(); }},
      {"infinity", [](Sample& s) { s.weights[2] = std::numeric_limits<float>::infinity(); }},
      {"the first of a row joins", [](Sample& s) { s.joins[2] = 1; }},
      {"join 2", [](Sample& s) { s.joins[1] = 2; }},
      {"a row without assignments",
       [](Sample& s) {
         s.row_begin = {0, 3, 3, 6};
       }},
  };
  for (const Case& hostile : cases) {
    Sample sample;
    hostile.change(sample);
    ReceivedDispatch received;
    EXPECT_EQ(received.Decode(sample.message(), kHidden, kNumIds).code(),
              absl::StatusCode::kInvalidArgument)
        << hostile.name;
  }
}

TEST(DispatchCodecTest, RefusesCountsThatTheBytesDoNotHave) {
  const Message good = Sample().message();
  ReceivedDispatch received;
  for (const uint32_t count : {0u, 1u, 5u, 7u, 0x40000001u, 0x80000000u, 0xffffffffu}) {
    for (const bool is_rows : {false, true}) {
      ByteWriter out;
      out.Write(is_rows ? count : uint32_t{3});
      out.Write(is_rows ? uint32_t{6} : count);
      out.WriteArray(good.metadata.span().subspan(8));
      EXPECT_EQ(received.Decode(WithMetadata(good, out), kHidden, kNumIds).code(),
                absl::StatusCode::kInvalidArgument)
          << count;
    }
  }
  for (size_t size = 0; size < good.metadata.size(); ++size) {
    Message cut = good;
    cut.metadata = good.metadata.Slice(0, size);
    EXPECT_FALSE(received.Decode(cut, kHidden, kNumIds).ok()) << size;
  }
  Message shape = good;
  shape.row_width = 4;
  EXPECT_THAT(std::string(received.Decode(shape, kHidden, kNumIds).message()),
              HasSubstr("3 rows of 4 BF16 came"));
}

TEST(DispatchCodecTest, SurvivesRandomDamage) {
  constexpr uint64_t kSeed = 11;
  Random random(kSeed);
  const Message good = Sample().message();
  ReceivedDispatch received;
  int accepted = 0;
  for (int i = 0; i < 5000; ++i) {
    std::vector<uint8_t> bytes(good.metadata.span().begin(), good.metadata.span().end());
    for (int flips = 0; flips < 3; ++flips) {
      bytes[random.Below(bytes.size())] ^= static_cast<uint8_t>(1 << random.Below(8));
    }
    Message damaged = good;
    damaged.metadata = SharedBytes::Copy(absl::MakeConstSpan(bytes));
    if (received.Decode(damaged, kHidden, kNumIds).ok()) ++accepted;
  }
  // Weights have no wrong bits but those of NaN and infinity.
  EXPECT_GT(accepted, 0) << "seed " << kSeed;
}

}  // namespace
}  // namespace moebius
