// SPDX-License-Identifier: Apache-2.0
#include "router_service/rpc/generate_rpc.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <numeric>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/base/replace_file.h"
#include "moebius/rpc/api_key.h"
#include "moebius/wire/error_detail.h"
#include "tests/rpc/router_world.h"
#include "tests/support/metric_values.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

/// Hands out streams that the test writes.
class ScriptedFront final : public RouterFront {
 public:
  absl::StatusOr<std::shared_ptr<GenerateStream>> Submit(const GenerateRequest& request) override {
    MutexLock lock(mutex_);
    request_ = request;
    stream_ = std::make_shared<GenerateStream>(4, [] {});
    return stream_;
  }
  absl::StatusOr<ForwardAnswer> Forward(const ForwardRequest&, absl::Duration timeout) override {
    return absl::DeadlineExceededError(absl::FormatDuration(timeout));
  }
  absl::StatusOr<RouteAnswer> Route(const RouteRequest&, absl::Duration) override {
    ++routes_begun;
    MutexLock lock(route_mutex);
    return RouteAnswer();
  }
  ModelInfo model_info() const override { return {}; }
  ServerInfo server_info() const override { return {}; }
  ExpertLoadTable expert_load() const override { return {}; }
  BiasTable biases() const override { return {}; }
  PlacementTable placement() const override { return {}; }
  absl::StatusOr<uint64_t> UpdateBias(const BiasUpdate&) override { return 7; }
  Readiness readiness() const override { return {false, {"expert-2 has not joined"}}; }
  absl::StatusOr<Explanation> Explain(const std::string& request_id,
                                      const std::optional<std::string>& asker) const override {
    if (request_id == "who") return absl::NotFoundError(asker.value_or("an operator"));
    std::vector<int32_t> experts(1024);
    std::iota(experts.begin(), experts.end(), 1'000'000);
    return WithHint(NotHeldError(experts, 7), std::string(5'000, 'h'));
  }

  std::shared_ptr<GenerateStream> WaitForStream() {
    while (true) {
      {
        MutexLock lock(mutex_);
        if (stream_ != nullptr) return stream_;
      }
      std::this_thread::yield();
    }
  }
  GenerateRequest request() {
    MutexLock lock(mutex_);
    return request_;
  }

  std::atomic<int> routes_begun{0};
  Mutex route_mutex;  // held by a test: Route waits

 private:
  Mutex mutex_;
  GenerateRequest request_ MOEBIUS_GUARDED_BY(mutex_);
  std::shared_ptr<GenerateStream> stream_ MOEBIUS_GUARDED_BY(mutex_);
};

GenerateEvent Token(int64_t id, size_t num_logprobs = 0) {
  GenerateEvent event;
  event.token_ids = {id};
  for (size_t i = 0; i < num_logprobs; ++i) event.logprobs.emplace_back();
  return event;
}

void PushWhenThereIsRoom(GenerateStream& stream, GenerateEvent event) {
  while (!stream.HasRoom()) std::this_thread::yield();
  stream.Push(std::move(event));
}

TEST(GenerateDeadlineTest, IsTheEarliestOfAllThatAreGiven) {
  GenerateRequest request;
  request.token_ids = {1, 2, 3};
  request.max_tokens = 7;
  EXPECT_EQ(GenerateDeadline(request, absl::InfiniteDuration()),
            kGenerateAllowance + 10 * kGenerateAllowancePerToken);
  EXPECT_EQ(GenerateDeadline(request, absl::Seconds(5)), absl::Seconds(5));
  request.deadline = absl::Seconds(3);
  EXPECT_EQ(GenerateDeadline(request, absl::Seconds(5)), absl::Seconds(3));
  request.max_tokens = INT64_MAX;
  request.deadline = absl::InfiniteDuration();
  EXPECT_LT(GenerateDeadline(request, absl::InfiniteDuration()), absl::Hours(24 * 365));
}

TEST(GenerateCallTest, DeliversEveryEventInOrderAndThenTheStatus) {
  ScriptedFront front;
  RouterWorld world(front);
  std::vector<int64_t> ids;
  absl::Status status;
  std::thread reader([&] {
    status = world.client().Generate(GenerateRequest(), [&](const GenerateEvent* event) {
      if (event != nullptr) ids.insert(ids.end(), event->token_ids.begin(), event->token_ids.end());
      return true;
    });
  });
  const auto stream = front.WaitForStream();
  std::vector<int64_t> expected;
  for (int64_t id = 0; id < 500; ++id) {
    PushWhenThereIsRoom(*stream, Token(id));
    expected.push_back(id);
  }
  stream->End(WithHint(absl::UnavailableError("an expert is gone"), "try again"));
  reader.join();
  EXPECT_EQ(ids, expected);
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(), "an expert is gone");
  EXPECT_EQ(HintOf(status), "try again");
  EXPECT_TRUE(IsRetryable(status));
}

TEST(GenerateCallTest, HandsOnTheTraceOfTheCaller) {
  for (const absl::string_view traceparent :
       {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "", "not printable\n"}) {
    ScriptedFront front;
    RouterWorld world(front);
    GenerateRequest request;
    request.traceparent = std::string(traceparent);
    std::thread reader([&] {
      EXPECT_TRUE(world.client().Generate(request, [](const GenerateEvent*) { return true; }).ok());
    });
    front.WaitForStream()->End(absl::OkStatus());
    reader.join();
    EXPECT_EQ(front.request().traceparent,
              absl::StartsWith(traceparent, "00") ? std::string(traceparent) : "");
  }
}

TEST(GenerateCallTest, CancelsTheRequestAtOnceWhenTheCallerHasGone) {
  ScriptedFront front;
  RouterWorld world(front);
  std::thread reader([&] {
    EXPECT_TRUE(world.client()
                    .Generate(GenerateRequest(),
                              [](const GenerateEvent* event) { return event == nullptr; })
                    .ok());
  });
  const auto stream = front.WaitForStream();
  EXPECT_FALSE(stream->cancelled());
  stream->Push(Token(1));
  while (!stream->cancelled()) std::this_thread::yield();
  reader.join();
  stream->End(absl::OkStatus());  // nobody listens any more
}

TEST(GenerateCallTest, CancelsTheRequestAtTheCallersDeadline) {
  ScriptedFront front;
  RouterWorld world(front);
  GenerateRequest request;
  request.deadline = absl::Milliseconds(50);
  absl::Status status;
  std::thread reader([&] {
    status = world.client().Generate(request, [](const GenerateEvent*) { return true; });
  });
  const auto stream = front.WaitForStream();
  EXPECT_LE(front.request().deadline, absl::Milliseconds(50));
  while (!stream->cancelled()) std::this_thread::yield();
  reader.join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
}

TEST(GenerateCallTest, LeavesEventsInTheStreamWhenTheCallerDoesNotRead) {
  ScriptedFront front;
  RouterWorld world(front);
  std::atomic<bool> may_read{false};
  std::atomic<int64_t> num_read{0};
  std::thread reader([&] {
    EXPECT_TRUE(world.client()
                    .Generate(GenerateRequest(),
                              [&](const GenerateEvent* event) {
                                if (event == nullptr) return true;
                                ++num_read;
                                while (!may_read) std::this_thread::yield();
                                return true;
                              })
                    .ok());
  });
  const auto stream = front.WaitForStream();
  // What gRPC and the kernel buffer is bounded; behind them the stream fills up.
  int64_t num_pushed = 0;
  absl::Time full_since = absl::InfiniteFuture();
  while (absl::Now() - full_since < absl::Milliseconds(300)) {
    if (stream->HasRoom()) {
      stream->Push(Token(num_pushed++, 4096));
      full_since = absl::InfiniteFuture();
    } else {
      full_since = std::min(full_since, absl::Now());
      std::this_thread::yield();
    }
    ASSERT_LT(num_pushed, 100'000);
  }
  EXPECT_EQ(num_read, 1);
  may_read = true;
  GenerateEvent last = Token(-1);
  last.finished = true;
  last.finish_reason = FinishReason::kLength;
  stream->Push(last);
  stream->End(absl::OkStatus());
  reader.join();
  EXPECT_EQ(num_read, num_pushed + 1);
}

TEST(GenerateCallTest, RefusesMoreCallsThanItTakes) {
  ScriptedFront front;
  RouterRpcOptions options;
  options.max_generate_calls = 1;
  RouterWorld world(front, options);
  std::thread reader([&] {
    (void)world.client().Generate(GenerateRequest(), [](const GenerateEvent*) { return true; });
  });
  const auto stream = front.WaitForStream();
  const absl::Status status =
      world.client().Generate(GenerateRequest(), [](const GenerateEvent*) { return true; });
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  stream->End(absl::OkStatus());
  reader.join();
}

TEST(GenerateCallTest, EndsWithTheServer) {
  ScriptedFront front;
  RouterWorld world(front);
  absl::Status status;
  std::thread reader([&] {
    status = world.client().Generate(GenerateRequest(), [](const GenerateEvent*) { return true; });
  });
  const auto stream = front.WaitForStream();
  world.server().Shutdown(absl::ZeroDuration());
  reader.join();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(stream->cancelled());
}

TEST(GenerateCallTest, EndsACallWhoseReaderTakesNothing) {
  ScriptedFront front;
  RouterRpcOptions options;
  options.max_generate_calls = 1;
  options.max_write_wait = absl::Milliseconds(200);
  RouterWorld world(front, options);
  std::atomic<bool> reads{false};
  absl::Status status;
  std::thread reader([&] {
    status = world.client().Generate(GenerateRequest(), [&](const GenerateEvent*) {
      while (!reads) std::this_thread::yield();
      return true;
    });
  });
  const auto stream = front.WaitForStream();
  // More than flow control lets through, until somebody gives it up.
  while (!stream->cancelled()) {
    if (stream->HasRoom()) stream->Push(Token(1, 2'000));
    std::this_thread::yield();
  }
  stream->End(absl::CancelledError("as the lead would"));
  // Its place is free, though it still reads nothing.
  Registry registry;
  const auto handle =
      registry.AddCollector([&](MetricWriter& writer) { world.calls().WriteMetrics(writer); });
  const auto in_flight = [&registry] {
    return ValueOf(registry.Scrape(),
                   "moebius_requests_in_flight{service=\"router\",method=\"Generate\"}");
  };
  while (in_flight() != 0) std::this_thread::yield();
  reads = true;
  reader.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST(RouterRpcTest, WithAGateEveryMethodWantsAKeyAndCallsCountAmongTheirClients) {
  const std::string path = absl::StrCat(testing::TempDir(), "/rpc_clients.", getpid(), ".json");
  ASSERT_TRUE(ReplaceFile(path, FormatClientList({{"a", {HashKey("k")}, 1, 10}}), 0600).ok());
  FakeClock clock;
  ClientGate gate(path, clock, [](const std::string&) {});
  ASSERT_TRUE(gate.Load().ok());
  ScriptedFront front;
  RouterRpcOptions options;
  options.gate = &gate;
  RouterWorld world(front, options);
  Client& stranger = world.client();
  const auto ignore = [](const GenerateEvent*) { return true; };
  for (const absl::Status& status :
       {stranger.Generate(GenerateRequest(), ignore), stranger.Forward(ForwardRequest()).status(),
        stranger.Route(RouteRequest()).status(), stranger.GetModelInfo().status(),
        stranger.GetServerInfo().status(), stranger.GetExpertLoad().status(),
        stranger.GetBias().status(), stranger.GetPlacement().status(),
        stranger.Explain("x").status()}) {
    EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  }
  EXPECT_TRUE(stranger.IsServing().ok()) << "a probe has no key";
  ClientOptions known;
  known.target = world.target();
  known.api_key = "k";
  const auto client = *Client::Make(known);
  EXPECT_TRUE(client->GetModelInfo().ok());
  EXPECT_EQ(client->Explain("who").status().message(), "a") << "of its own alone";
  GenerateRequest request;
  request.token_ids = {1, 2, 3, 4};
  std::thread reader([&] { EXPECT_TRUE(client->Generate(request, ignore).ok()); });
  const auto stream = front.WaitForStream();
  const absl::Status second = client->Route(RouteRequest()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr("calls in flight"));
  for (int64_t id = 0; id < 6; ++id) PushWhenThereIsRoom(*stream, Token(id));
  stream->End(absl::OkStatus());
  reader.join();
  // Four of the prompt and six of the answer; the place is given back with the call's last word.
  absl::Status spent;
  do {
    spent = client->Route(RouteRequest()).status();
  } while (absl::StrContains(spent.message(), "in flight"));
  EXPECT_THAT(std::string(spent.message()), HasSubstr("has used its 10 tokens"));
  clock.Advance(absl::Minutes(1));
  EXPECT_TRUE(client->Route(RouteRequest()).ok());
  std::remove(path.c_str());
}

TEST(RouterRpcTest, WithoutAGateAnybodyIsToldOfAnyRequest) {
  ScriptedFront front;
  RouterWorld world(front);
  EXPECT_EQ(world.client().Explain("who").status().message(), "an operator");
}

TEST(RouterRpcTest, AKeyThatNoHeaderTakesIsRefusedWithoutRepeatingIt) {
  for (const char* key : {"secret\nkey", "secret key", "secret\xff", "secret\t"}) {
    ClientOptions options;
    options.target = "127.0.0.1:1";
    options.api_key = key;
    const absl::Status status = Client::Make(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(std::string(status.message()).find("secret"), std::string::npos) << status;
  }
}

TEST(RouterRpcTest, StrangersTakeNoPlaceOfThoseWhoMayCall) {
  const std::string path = absl::StrCat(testing::TempDir(), "/places.", getpid(), ".json");
  ASSERT_TRUE(ReplaceFile(path, FormatClientList({{"a", {HashKey("k")}, 0, 0}}), 0600).ok());
  FakeClock clock;
  ClientGate gate(path, clock, [](const std::string&) {});
  ASSERT_TRUE(gate.Load().ok());
  std::remove(path.c_str());
  ScriptedFront front;
  RouterRpcOptions options;
  options.gate = &gate;
  options.blocking_threads = 1;
  options.max_blocking_calls = 1;
  RouterWorld world(front, options);
  ClientOptions known;
  known.target = world.target();
  known.api_key = "k";
  const auto client = *Client::Make(known);
  // One runs, one waits and three are refused: the pool is full.
  front.route_mutex.Lock();
  std::vector<std::thread> callers;
  std::atomic<int> refused{0};
  const auto call = [&] {
    if (absl::IsResourceExhausted(client->Route(RouteRequest()).status())) ++refused;
  };
  callers.emplace_back(call);
  while (front.routes_begun == 0) std::this_thread::yield();
  for (int i = 0; i < 4; ++i) callers.emplace_back(call);
  while (refused < 3) std::this_thread::yield();
  Client& stranger = world.client();
  EXPECT_TRUE(absl::IsUnauthenticated(stranger.GetExpertLoad().status()));
  EXPECT_TRUE(absl::IsUnauthenticated(stranger.GetBias().status()));
  EXPECT_TRUE(absl::IsUnauthenticated(stranger.GetPlacement().status()));
  front.route_mutex.Unlock();
  for (std::thread& caller : callers) caller.join();
}

TEST(RouterRpcTest, WhatIsRefusedCostsItsClientNothing) {
  const std::string path = absl::StrCat(testing::TempDir(), "/refused_clients.", getpid(), ".json");
  ASSERT_TRUE(ReplaceFile(path, FormatClientList({{"a", {HashKey("k")}, 0, 10}}), 0600).ok());
  FakeClock clock;
  ClientGate gate(path, clock, [](const std::string&) {});
  ASSERT_TRUE(gate.Load().ok());
  std::remove(path.c_str());
  ScriptedFront front;
  RouterRpcOptions options;
  options.gate = &gate;
  RouterWorld world(front, options);
  ClientOptions known;
  known.target = world.target();
  known.api_key = "k";
  const auto client = *Client::Make(known);
  ForwardRequest claims;
  claims.num_rows = int64_t{1} << 62;
  claims.hidden_size = 256;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(absl::IsInvalidArgument(client->Forward(claims).status()));
  }
  EXPECT_TRUE(client->Route(RouteRequest()).ok());
}

TEST(RouterRpcTest, RefusesCallsThatWouldWaitBehindTooManyOthers) {
  ScriptedFront front;
  RouterRpcOptions options;
  options.blocking_threads = 1;
  options.max_blocking_calls = 1;
  RouterWorld world(front, options);
  front.route_mutex.Lock();
  std::vector<std::thread> callers;
  std::atomic<int> refused{0};
  std::atomic<int> answered{0};
  const auto call = [&] {
    const auto answer = world.client().Route(RouteRequest());
    absl::IsResourceExhausted(answer.status()) ? ++refused : ++answered;
  };
  callers.emplace_back(call);
  while (front.routes_begun == 0) std::this_thread::yield();
  for (int i = 0; i < 4; ++i) callers.emplace_back(call);
  while (refused < 3) std::this_thread::yield();  // one runs, one waits
  front.route_mutex.Unlock();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(refused, 3);
  EXPECT_EQ(answered, 2);
}

TEST(RouterRpcTest, GivesBlockingCallsTheTimeThatTheCallerHas) {
  ScriptedFront front;
  RouterRpcOptions options;
  options.max_blocking_time = absl::Seconds(7);
  RouterWorld world(front, options);
  ForwardRequest request;
  request.hidden_size = 1;
  const absl::Status status = world.client().Forward(request).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_EQ(status.message(), "7s");
}

TEST(RouterRpcTest, TheLongestErrorReachesTheCallerWhole) {
  ScriptedFront front;
  RouterWorld world(front);
  const absl::Status status = world.client().Explain("anybody").status();
  EXPECT_TRUE(IsNotHeld(status)) << status.code();
  EXPECT_EQ(DetailOf(status).missing_experts.size(), 1024u);
  EXPECT_EQ(HintOf(status), std::string(2048, 'h')) << "texts are cut, not lost";
}

TEST(RouterRpcTest, CountsCallsByMethodAndCodeAlsoThoseWhoseCallerHasGone) {
  ScriptedFront front;
  RouterWorld world(front);
  Registry registry;
  const auto handle =
      registry.AddCollector([&](MetricWriter& writer) { world.calls().WriteMetrics(writer); });
  const auto count = [&](const std::string& method, const std::string& code) {
    return ValueOf(registry.Scrape(),
                   absl::StrCat("moebius_requests_total{service=\"router\",method=\"", method,
                                "\",code=\"", code, "\"}"));
  };
  EXPECT_TRUE(world.client().GetModelInfo().ok());
  EXPECT_TRUE(world.client().GetModelInfo().ok());
  EXPECT_FALSE(world.client().Explain("nobody").ok());
  EXPECT_FALSE(*world.client().IsServing());  // another service's
  std::thread reader([&] {
    EXPECT_TRUE(world.client()
                    .Generate(GenerateRequest(),
                              [](const GenerateEvent* event) { return event == nullptr; })
                    .ok());
  });
  const auto stream = front.WaitForStream();
  const auto in_flight = [&](const std::string& method) {
    return ValueOf(
        registry.Scrape(),
        absl::StrCat("moebius_requests_in_flight{service=\"router\",method=\"", method, "\"}"));
  };
  EXPECT_EQ(in_flight("Generate"), 1);
  stream->Push(Token(1));
  reader.join();
  for (const char* method : {"Generate", "GetModelInfo", "Explain"}) {
    while (in_flight(method) > 0) std::this_thread::yield();
  }
  EXPECT_EQ(count("Generate", "CANCELLED"), 1);
  EXPECT_EQ(count("GetModelInfo", "OK"), 2);
  EXPECT_EQ(count("Explain", "FAILED_PRECONDITION"), 1);
  EXPECT_EQ(count("Explain", "OK"), 0);
}

}  // namespace
}  // namespace moebius
