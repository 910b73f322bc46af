// SPDX-License-Identifier: Apache-2.0
#include "router_service/generate_stream.h"

#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace moebius {
namespace {

GenerateEvent Token(int64_t id) {
  GenerateEvent event;
  event.token_ids = {id};
  return event;
}

TEST(GenerateStreamTest, GivesEventsInOrderAndThenTheStatus) {
  GenerateStream stream(4, [] {});
  stream.Push(Token(1));
  stream.Push(Token(2));
  stream.End(absl::UnavailableError("gone"));
  EXPECT_FALSE(stream.ended());
  EXPECT_EQ(stream.Next()->token_ids[0], 1);
  EXPECT_EQ(stream.Next()->token_ids[0], 2);
  EXPECT_FALSE(stream.Next().has_value());
  EXPECT_TRUE(stream.ended());
  EXPECT_TRUE(absl::IsUnavailable(stream.status()));
}

TEST(GenerateStreamTest, WakesTheWriterWhenAFullQueueGetsRoom) {
  int wakes = 0;
  GenerateStream stream(2, [&wakes] { ++wakes; });
  stream.Push(Token(1));
  EXPECT_TRUE(stream.HasRoom());
  stream.Push(Token(2));
  EXPECT_FALSE(stream.HasRoom());
  stream.Next();
  EXPECT_EQ(wakes, 1);
  stream.Next();
  EXPECT_EQ(wakes, 1);
  stream.Cancel();
  EXPECT_EQ(wakes, 2);
  EXPECT_TRUE(stream.cancelled());
}

TEST(GenerateStreamTest, TakesTheLastEventEvenWhenFull) {
  GenerateStream stream(1, [] {});
  stream.Push(Token(1));
  GenerateEvent last = Token(2);
  last.finished = true;
  stream.Push(last);
  stream.End(absl::OkStatus());
  EXPECT_EQ(stream.Next()->token_ids[0], 1);
  EXPECT_TRUE(stream.Next()->finished);
}

TEST(GenerateStreamTest, ReturnsEmptyHandedWhenTheTimeHasPassed) {
  GenerateStream stream(1, [] {});
  EXPECT_FALSE(stream.Next(absl::ZeroDuration()).has_value());
  EXPECT_FALSE(stream.ended());
}

TEST(GenerateStreamTest, HandsAllEventsFromOneThreadToAnother) {
  GenerateStream stream(1, [] {});
  std::thread writer([&stream] {
    for (int64_t id = 0; id < 1000; ++id) {
      while (!stream.HasRoom()) std::this_thread::yield();
      stream.Push(Token(id));
    }
    stream.End(absl::OkStatus());
  });
  int64_t next = 0;
  while (auto event = stream.Next()) EXPECT_EQ(event->token_ids[0], next++);
  EXPECT_EQ(next, 1000);
  writer.join();
}

TEST(GenerateStreamTest, LeavesWordForAReaderThatDoesNotWait) {
  GenerateStream stream(4, [] {});
  stream.Push(Token(1));
  int news = 0;
  stream.SetReader([&news] { ++news; });
  EXPECT_EQ(news, 1);  // of what came before
  stream.Push(Token(2));
  stream.End(absl::OkStatus());
  EXPECT_EQ(news, 3);
  stream.SetReader(nullptr);
  EXPECT_EQ(news, 3);
}

TEST(GenerateStreamTest, WhoFollowsGetsEveryEventFromTheFirst) {
  const auto stream = std::make_shared<GenerateStream>(
      2, [] {}, 10);
  stream->Push(Token(1));
  const auto early = stream->Follow();
  stream->Push(Token(2));
  EXPECT_EQ(stream->Next()->token_ids[0], 1);
  const auto late = early->Follow();  // of a follower: the same answer
  GenerateEvent last = Token(3);
  last.finished = true;
  stream->Push(last);
  stream->End(absl::OkStatus());
  const auto after = stream->Follow();
  for (const auto& follower : {early, late, after}) {
    for (int64_t id = 1; id <= 3; ++id) EXPECT_EQ(follower->Next()->token_ids[0], id);
    EXPECT_FALSE(follower->Next().has_value());
    EXPECT_TRUE(follower->ended());
    EXPECT_TRUE(follower->status().ok());
  }
  EXPECT_EQ(stream->Next()->token_ids[0], 2);
  EXPECT_EQ(stream->Next()->token_ids[0], 3);
}

TEST(GenerateStreamTest, TheRequestGoesOnUntilItsLastReaderHasGone) {
  int wakes = 0;
  const auto stream = std::make_shared<GenerateStream>(
      1, [&wakes] { ++wakes; }, 10);
  stream->Push(Token(1));
  const auto first = stream->Follow(), second = stream->Follow();
  // Its own reader holds nobody up who follows, whether it is slow or has gone.
  EXPECT_TRUE(stream->HasRoom());
  stream->Cancel();
  EXPECT_TRUE(stream->HasRoom());
  EXPECT_FALSE(stream->cancelled());
  stream->Push(Token(2));
  stream->Push(Token(3));
  first->Cancel();
  EXPECT_TRUE(first->cancelled());
  EXPECT_FALSE(stream->cancelled());
  for (int64_t id = 1; id <= 3; ++id) EXPECT_EQ(second->Next()->token_ids[0], id);
  wakes = 0;
  second->Cancel();
  EXPECT_TRUE(stream->cancelled());
  EXPECT_EQ(wakes, 1);
  EXPECT_EQ(stream->Follow(), nullptr);
}

TEST(GenerateStreamTest, WhoFollowsTooSlowlyIsLeftBehindAndNobodyElse) {
  const auto stream = std::make_shared<GenerateStream>(
      100, [] {}, 3);
  const auto slow = stream->Follow(), quick = stream->Follow();
  for (int64_t id = 0; id < 6; ++id) {
    stream->Push(Token(id));
    EXPECT_EQ(quick->Next()->token_ids[0], id);
  }
  for (int64_t id = 0; id < 3; ++id) EXPECT_EQ(slow->Next()->token_ids[0], id);
  EXPECT_FALSE(slow->Next().has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(slow->status())) << slow->status();
  EXPECT_FALSE(quick->ended());
  for (int64_t id = 0; id < 6; ++id) EXPECT_EQ(stream->Next()->token_ids[0], id);
  // The first events are not kept any more.
  EXPECT_EQ(stream->Follow(), nullptr);
  EXPECT_EQ(std::make_shared<GenerateStream>(2, [] {})->Follow(), nullptr);
}

TEST(GenerateStreamTest, ABoundedNumberFollows) {
  const auto stream = std::make_shared<GenerateStream>(
      2, [] {}, 10);
  std::vector<std::shared_ptr<GenerateStream>> followers;
  for (size_t i = 0; i < GenerateStream::kMaxFollowers; ++i) followers.push_back(stream->Follow());
  EXPECT_NE(followers.back(), nullptr);
  EXPECT_EQ(stream->Follow(), nullptr);
  followers.pop_back();  // without a word
  EXPECT_NE(stream->Follow(), nullptr);
}

}  // namespace
}  // namespace moebius
