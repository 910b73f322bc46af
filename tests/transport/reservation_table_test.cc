// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/reservation_table.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

constexpr FrameKind kKind{20};
constexpr PeerId kPeer{3};

MessageKey Key(uint64_t step, uint32_t layer) {
  MessageKey key{kKind, step};
  key.layer = layer;
  return key;
}

class ReservationTableTest : public ::testing::Test {
 protected:
  ReservationSpec Spec(ReservationScope scope, uint64_t step, uint32_t layer,
                       const std::string& name) {
    ReservationSpec spec;
    spec.scope = scope;
    spec.source = kPeer;
    spec.key = Key(step, layer);
    spec.max_message_bytes = 100;
    spec.on_delivery = [this, name](const Delivery& delivery) {
      events_.push_back(name + (delivery.message.ok() ? "" : " failed"));
    };
    return spec;
  }
  std::optional<ReservationTable::Claim> Match(uint64_t step, uint32_t layer, uint64_t bytes = 50,
                                               PeerId peer = kPeer) {
    Message header;
    header.key = Key(step, layer);
    header.term = 7;
    return table_.Match(peer, Lane::kBulk, header, bytes);
  }
  // Delivers a whole message; false when nobody expects it.
  bool Arrive(uint64_t step, uint32_t layer, uint64_t bytes = 50, PeerId peer = kPeer) {
    auto claim = Match(step, layer, bytes, peer);
    return claim.has_value() && claim->Deliver(Lane::kBulk, Message());
  }
  ReservationTable table_{{.max_bytes = 1000, .max_reservations = 4}};
  std::vector<std::string> events_;
};

TEST_F(ReservationTableTest, TheNarrowestScopeTakesTheMessage) {
  ASSERT_TRUE(table_.Add(Spec(ReservationScope::kKind, 0, 0, "kind")).ok());
  ASSERT_TRUE(table_.Add(Spec(ReservationScope::kStep, 1, 0, "step")).ok());
  ASSERT_TRUE(table_.Add(Spec(ReservationScope::kMessage, 1, 2, "message")).ok());
  EXPECT_TRUE(Arrive(1, 2));
  EXPECT_TRUE(Arrive(1, 3));
  EXPECT_TRUE(Arrive(1, 4));  // the step took its one message
  EXPECT_TRUE(Arrive(9, 9, 50, PeerId(77)));
  EXPECT_THAT(events_, ::testing::ElementsAre("message", "step", "kind", "kind"));
  EXPECT_FALSE(Arrive(1, 5, 101));
}

TEST_F(ReservationTableTest, CountsBytesAndGivesThemBack) {
  auto spec = Spec(ReservationScope::kStep, 1, 0, "step");
  spec.max_messages = 9;
  const auto id = table_.Add(spec);
  ASSERT_TRUE(id.ok());
  EXPECT_EQ(table_.reserved_bytes(), 900u);
  const auto full = table_.Add([&] {
    auto more = Spec(ReservationScope::kStep, 2, 0, "more");
    more.max_messages = 2;
    return more;
  }());
  EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.status().message()), ::testing::HasSubstr("900 of 1000"));
  EXPECT_EQ(table_.Add(spec).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(table_.Cancel(*id));
  EXPECT_FALSE(table_.Cancel(*id));
  EXPECT_EQ(table_.reserved_bytes(), 0u);
  EXPECT_FALSE(Arrive(1, 1));
}

TEST_F(ReservationTableTest, TheSameKeyIsReservedOnce) {
  ASSERT_TRUE(table_.Add(Spec(ReservationScope::kMessage, 1, 2, "a")).ok());
  EXPECT_EQ(table_.Add(Spec(ReservationScope::kMessage, 1, 2, "b")).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Arrive(1, 2));
  EXPECT_FALSE(Arrive(1, 2));
  EXPECT_TRUE(table_.Add(Spec(ReservationScope::kMessage, 1, 2, "b")).ok());
}

TEST_F(ReservationTableTest, TheSameKeyIsReservedOnceAlsoAfterOthersHaveEnded) {
  const auto with_deadline = [&](const std::string& name, int seconds) {
    auto spec = Spec(ReservationScope::kMessage, 1, 2, name);
    spec.deadline = absl::Seconds(seconds);
    return spec;
  };
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(table_.Add(with_deadline("a", 5)).ok());
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(table_.Add(with_deadline("b", 3)).status().code(),
                absl::StatusCode::kAlreadyExists);
    }
    EXPECT_EQ(table_.num_reservations(), 1u);
    EXPECT_EQ(table_.next_deadline(), absl::Seconds(5));
    EXPECT_TRUE(Arrive(1, 2));
    EXPECT_FALSE(Arrive(1, 2));
    EXPECT_EQ(table_.next_deadline(), absl::InfiniteDuration());
  }
  EXPECT_THAT(events_, ::testing::ElementsAre("a", "a", "a"));
}

TEST_F(ReservationTableTest, AClaimThatWasMovedFromHoldsNothing) {
  ASSERT_TRUE(table_.Add(Spec(ReservationScope::kMessage, 1, 2, "a")).ok());
  auto claim = Match(1, 2);  // is moved from, and ends last
  ASSERT_TRUE(claim.has_value());
  {
    const ReservationTable::Claim taken = *std::move(claim);
    EXPECT_FALSE(Match(1, 2).has_value());
  }
  EXPECT_TRUE(Arrive(1, 2));
}

TEST_F(ReservationTableTest, AMessageThatNeverBecomesWholeGivesItsPlaceBack) {
  ASSERT_TRUE(table_.Add(Spec(ReservationScope::kMessage, 1, 2, "a")).ok());
  {
    auto claim = Match(1, 2);
    ASSERT_TRUE(claim.has_value());
    EXPECT_FALSE(Match(1, 2).has_value());
  }
  EXPECT_TRUE(Arrive(1, 2));
}

TEST_F(ReservationTableTest, AKindIsToldOfWhatItHasNoRoomFor) {
  std::vector<RefusedMessage> refused;
  auto spec = Spec(ReservationScope::kKind, 0, 0, "kind");
  spec.max_messages = 2;
  spec.on_refused = [&](const RefusedMessage& message) { refused.push_back(message); };
  ASSERT_TRUE(table_.Add(spec).ok());
  EXPECT_FALSE(Match(1, 2, 101).has_value());
  const auto first = Match(1, 3), second = Match(1, 4, 100);
  EXPECT_TRUE(second.has_value());
  EXPECT_FALSE(Match(5, 6, 50, PeerId(77)).has_value());
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_EQ(refused[0].reason.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused[0].reason.message(), "a message of 101 bytes; room is kept for 100");
  EXPECT_EQ(refused[1].reason.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused[1].source, PeerId(77));
  EXPECT_EQ(refused[1].lane, Lane::kBulk);
  EXPECT_EQ(refused[1].header.key, Key(5, 6));
  EXPECT_EQ(refused[1].header.term, 7u);
  EXPECT_TRUE(events_.empty());
}

TEST_F(ReservationTableTest, AnEndedReservationIsNotCalledAgain) {
  const auto id = table_.Add(Spec(ReservationScope::kMessage, 1, 2, "a"));
  auto claim = Match(1, 2);
  ASSERT_TRUE(claim.has_value());
  EXPECT_TRUE(table_.Cancel(*id));
  EXPECT_FALSE(claim->Deliver(Lane::kBulk, Message()));
  EXPECT_TRUE(events_.empty());
}

TEST_F(ReservationTableTest, DeathAndDeadlinesFailWhatTheyConcern) {
  ASSERT_TRUE(table_.Add(Spec(ReservationScope::kKind, 0, 0, "kind")).ok());
  ASSERT_TRUE(table_.Add(Spec(ReservationScope::kMessage, 1, 1, "a")).ok());
  auto late = Spec(ReservationScope::kStep, 2, 0, "late");
  late.deadline = absl::Seconds(3);
  ASSERT_TRUE(table_.Add(late).ok());
  auto other = Spec(ReservationScope::kMessage, 1, 1, "other");
  other.source = PeerId(4);
  other.deadline = absl::Seconds(5);
  ASSERT_TRUE(table_.Add(other).ok());
  EXPECT_EQ(table_.next_deadline(), absl::Seconds(3));
  table_.Expire(absl::Seconds(3) - absl::Nanoseconds(1));
  EXPECT_TRUE(events_.empty());
  table_.Expire(absl::Seconds(3));
  EXPECT_THAT(events_, ::testing::ElementsAre("late failed"));
  table_.FailPeer(kPeer, absl::UnavailableError("gone"));
  EXPECT_THAT(events_, ::testing::ElementsAre("late failed", "a failed"));
  EXPECT_EQ(table_.next_deadline(), absl::Seconds(5));
  EXPECT_EQ(table_.num_reservations(), 2u);
}

}  // namespace
}  // namespace moebius
