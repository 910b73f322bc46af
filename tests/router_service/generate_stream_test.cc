// SPDX-License-Identifier: Apache-2.0
#include "router_service/generate_stream.h"

#include <thread>

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

}  // namespace
}  // namespace moebius
