// SPDX-License-Identifier: Apache-2.0
// The whole way from a client to the demo model and back, in one process over a real port.
#include "router_service/rpc/router_rpc.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

#include <numeric>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/client/channel.h"
#include "moebius/tensor/bf16.h"
#include "moebius/wire/error_detail.h"
#include "moebius/wire/grpc/grpc_status.h"
#include "tests/node/expected_cases.h"
#include "tests/rpc/router_world.h"

namespace moebius {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;

class EmbeddedRouterTest : public testing::Test {
 protected:
  struct Outcome {
    std::vector<int64_t> token_ids;
    GenerateEvent last;
    absl::Status status;
  };

  EmbeddedRouterTest() : node_(OpenDemo()), world_(node_->front()) {}

  Client& client() { return world_.client(); }

  Outcome Generate(const GenerateRequest& request) {
    Outcome outcome;
    outcome.status = client().Generate(request, [&outcome](const GenerateEvent* event) {
      if (event == nullptr) return true;
      outcome.token_ids.insert(outcome.token_ids.end(), event->token_ids.begin(),
                               event->token_ids.end());
      EXPECT_EQ(event->completion_tokens, static_cast<int64_t>(outcome.token_ids.size()));
      outcome.last = *event;
      return true;
    });
    return outcome;
  }

  static GenerateRequest Greedy(std::vector<int64_t> ids, int64_t max_tokens) {
    GenerateRequest request;
    request.token_ids = std::move(ids);
    request.max_tokens = max_tokens;
    request.temperature = 0;
    return request;
  }

  std::unique_ptr<EmbeddedNode> node_;
  RouterWorld world_;
};

TEST_F(EmbeddedRouterTest, AnswersWithTheRecordedBits) {
  for (const ExpectedCase& expected : ReadExpectedCases()) {
    if (expected.request.token_ids.size() > 512) continue;
    const Outcome outcome = Generate(expected.request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.token_ids, expected.token_ids) << expected.name;
    EXPECT_EQ(outcome.last.logits_hash, expected.logits_hash) << expected.name;
    EXPECT_TRUE(outcome.last.finished);
    EXPECT_TRUE(outcome.last.exactness.exact());
    EXPECT_EQ(outcome.last.sampling.seed, expected.request.seed);
    EXPECT_GT(outcome.last.timing.figures.attention_seconds, 0);
  }
}

TEST_F(EmbeddedRouterTest, SaysWhatIsWrongWithARequestAndGoesOn) {
  const absl::Status status = Generate(Greedy({1, 99999}, 4)).status;
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("token id 99999 at position 1"));
  EXPECT_THAT(HintOf(status), HasSubstr("ids run from 0"));
  GenerateRequest other_model = Greedy({1}, 1);
  other_model.config_hash = "0123456789abcdef";
  EXPECT_TRUE(absl::IsFailedPrecondition(Generate(other_model).status));
  EXPECT_TRUE(Generate(Greedy({1}, 1)).status.ok());
}

TEST_F(EmbeddedRouterTest, TakesZeroAtItsWordAndDefaultsWhereNothingIsSaid) {
  GenerateRequest request;
  request.token_ids = {256, 65};
  request.max_tokens = 2;
  request.top_p = 0;
  request.temperature = 1;
  const Outcome outcome = Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.last.sampling.top_p, 0);
  EXPECT_EQ(outcome.last.sampling.min_p, 0);
  EXPECT_EQ(outcome.last.sampling.repetition_penalty, 1);
}

TEST_F(EmbeddedRouterTest, FreesWhatACallerWhoHasGoneHeld) {
  GenerateRequest request = Greedy({256, 65, 66}, 500);
  request.request_id = "gone";
  request.ignore_eos = true;
  int64_t seen = 0;
  ASSERT_TRUE(client()
                  .Generate(request,
                            [&seen](const GenerateEvent* event) {
                              if (event != nullptr) seen = event->completion_tokens;
                              return seen < 3;
                            })
                  .ok());
  while (node_->usage().running_sessions > 0) std::this_thread::yield();
  EXPECT_EQ(node_->usage().reserved_kv_tokens, 0);
  const Explanation explanation = *client().Explain("gone");
  EXPECT_EQ(explanation.state, RequestState::kFinished);
  EXPECT_EQ(explanation.last.finish_reason, FinishReason::kAbort);
  EXPECT_LT(explanation.last.completion_tokens, 500);
}

TEST_F(EmbeddedRouterTest, RunsARequestIdOnce) {
  GenerateRequest request = Greedy({256, 65, 66}, 400);
  request.request_id = "once";
  request.ignore_eos = true;
  bool asked = false;
  ASSERT_TRUE(client()
                  .Generate(request,
                            [&](const GenerateEvent* event) {
                              if (event == nullptr || asked) return true;
                              asked = true;
                              EXPECT_EQ(client().Explain("once")->state, RequestState::kRunning);
                              GenerateRequest other = request;
                              other.token_ids.push_back(67);
                              EXPECT_TRUE(absl::IsAlreadyExists(Generate(other).status));
                              // Told twice, though its first reader reads on only afterwards.
                              const Outcome second = Generate(request);
                              EXPECT_TRUE(second.status.ok()) << second.status;
                              EXPECT_EQ(second.last.completion_tokens, 400);
                              return true;
                            })
                  .ok());
  const absl::Status again = Generate(request).status;
  EXPECT_TRUE(absl::IsAlreadyExists(again)) << again;
  EXPECT_THAT(HintOf(again), HasSubstr("moebius explain once"));
  // Refused calls are counted, wherever they were refused.
  EXPECT_EQ(client().GetServerInfo()->rejected_total, 2);
  EXPECT_TRUE(absl::IsNotFound(client().Explain("never").status()));
}

TEST_F(EmbeddedRouterTest, EndsARequestAtItsDeadline) {
  GenerateRequest request = Greedy({256, 65, 66}, 1000);
  request.request_id = "late";
  request.ignore_eos = true;
  request.deadline = absl::Milliseconds(30);
  const absl::Status status = Generate(request).status;
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  // The router's own words, not those of a call that was given up.
  EXPECT_THAT(std::string(status.message()), HasSubstr("the deadline passed after"));
  while (node_->usage().running_sessions > 0) std::this_thread::yield();
}

TEST_F(EmbeddedRouterTest, SaysWhatItServes) {
  const ModelInfo model = *client().GetModelInfo();
  EXPECT_EQ(model.config_hash, ExpectedConfigHash());
  EXPECT_EQ(model.vocab_size, node_->config().vocab_size);
  EXPECT_EQ(model.eos_token_ids, node_->config().eos_token_ids);
  EXPECT_EQ(model.bos_token_id, node_->config().bos_token_id);
  EXPECT_EQ(model.tokenizer, "bytes");
  EXPECT_EQ(model.name, "demo");
  const ServerInfo server = *client().GetServerInfo();
  EXPECT_TRUE(server.ready);
  EXPECT_EQ(server.topology, "embedded");
  EXPECT_FALSE(server.version.empty());
  EXPECT_THAT(server.limits, Contains(Field(&Limit::name, "max_forward_rows")));
  EXPECT_THAT(server.limits, Contains(Field(&Limit::name, "max_generate_calls")));
  EXPECT_THAT(server.limits, Contains(AllOf(Field(&Limit::name, "max_request_bytes"),
                                            Field(&Limit::value, int64_t{4} << 20))));
  EXPECT_THAT(server.limits, Contains(AllOf(Field(&Limit::name, "max_metadata_bytes"),
                                            Field(&Limit::value, kMaxRpcMetadataBytes))));
  EXPECT_THAT(server.services, Each(Field(&ServiceState::state, "usable")));
}

TEST_F(EmbeddedRouterTest, CountsTheLoadOfAnswersAndNotOfDryRuns) {
  const ModelConfig& config = node_->config();
  const Outcome outcome = Generate(Greedy({256, 65, 66, 67}, 3));
  ASSERT_TRUE(outcome.status.ok());
  RouteRequest route;
  route.token_ids = {256, 1, 2, 3, 4, 5};
  route.layer = client().GetModelInfo()->moe_layers.front();
  ASSERT_TRUE(client().Route(route).ok());
  const ExpertLoadTable table = *client().GetExpertLoad();
  ASSERT_EQ(table.layer_ids, client().GetModelInfo()->moe_layers);
  // The last token is told without being run.
  const int64_t rows = 4 + 3 - 1;
  for (size_t layer = 0; layer < table.layer_ids.size(); ++layer) {
    const auto begin = table.demand.begin() + static_cast<int64_t>(layer) * table.num_experts;
    EXPECT_EQ(std::accumulate(begin, begin + table.num_experts, int64_t{0}),
              rows * config.gate.top_k);
  }
  EXPECT_THAT(table.dropped, Each(0));
  EXPECT_EQ(node_->counters().requests, 1);
}

TEST_F(EmbeddedRouterTest, PlansADispatchThatAddsUp) {
  RouteRequest route;
  route.token_ids.push_back(256);
  for (const char c : std::string("And the king said to them")) route.token_ids.push_back(c);
  route.layer = 3;
  route.num_services = 4;
  const RouteAnswer answer = *client().Route(route);
  EXPECT_EQ(answer.token_ids, route.token_ids);
  ASSERT_EQ(answer.services.size(), 4u);
  // Counted again from the assignments and from who holds what.
  int64_t assignments = 0;
  for (const RoutedService& service : answer.services) {
    const std::set<int32_t> held(service.experts.begin(), service.experts.end());
    int64_t rows = 0;
    for (int64_t token = 0; token < answer.num_tokens(); ++token) {
      int64_t here = 0;
      for (int32_t choice = 0; choice < answer.top_k; ++choice) {
        const size_t index = static_cast<size_t>(token * answer.top_k + choice);
        here += static_cast<int64_t>(held.count(answer.expert_ids[index]));
      }
      rows += here > 0 ? 1 : 0;
      assignments += here;
    }
    EXPECT_EQ(service.rows_sent, rows) << service.name;
    EXPECT_LE(service.reply_rows, answer.num_tokens() * answer.top_k);
  }
  EXPECT_EQ(assignments, answer.num_tokens() * answer.top_k);
  EXPECT_EQ(std::accumulate(answer.load.begin(), answer.load.end(), int64_t{0}), assignments);
  for (size_t index = 1; index < answer.weights.size(); ++index) {
    if (index % static_cast<size_t>(answer.top_k) == 0) continue;
    EXPECT_LE(answer.weights[index], answer.weights[index - 1]);
  }
  ASSERT_TRUE(answer.closest_tie.has_value());
  EXPECT_GE(answer.closest_tie->gap, 0);
}

TEST_F(EmbeddedRouterTest, ChoosesInADryRunWhatItChoosesInAnAnswer) {
  const std::vector<int64_t> prompt = {256, 65, 66, 67, 68, 69, 70};
  const auto forced = *node_->TeacherForced(prompt);
  for (const ForcedLayer& layer : forced.layers) {
    RouteRequest route;
    route.token_ids = prompt;
    route.layer = layer.layer;
    const RouteAnswer answer = *client().Route(route);
    const size_t top_k = static_cast<size_t>(answer.top_k);
    for (size_t token = 0; token < prompt.size(); ++token) {
      const std::set<int32_t> chosen(
          answer.expert_ids.begin() + static_cast<int64_t>(token * top_k),
          answer.expert_ids.begin() + static_cast<int64_t>((token + 1) * top_k));
      const std::set<int32_t> expected(
          layer.experts.begin() + static_cast<int64_t>(token * top_k),
          layer.experts.begin() + static_cast<int64_t>((token + 1) * top_k));
      EXPECT_EQ(chosen, expected) << "layer " << layer.layer << " token " << token;
    }
  }
}

TEST_F(EmbeddedRouterTest, RefusesRoutesThatCannotBe) {
  RouteRequest route;
  route.token_ids = {1};
  route.layer = 0;  // dense
  EXPECT_THAT(HintOf(client().Route(route).status()), HasSubstr("layers with experts: 1"));
  route.layer = 99;
  EXPECT_TRUE(absl::IsInvalidArgument(client().Route(route).status()));
  route.layer = 1;
  route.num_services = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(client().Route(route).status()));
  route.num_services = std::nullopt;
  route.token_ids.assign(5000, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(client().Route(route).status()));
  route.token_ids.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(client().Route(route).status()));
}

ForwardRequest RowsOf(const ModelConfig& config, int64_t num_rows) {
  ForwardRequest request;
  request.layer = 1;
  request.num_rows = num_rows;
  request.hidden_size = config.hidden_size;
  for (int64_t i = 0; i < num_rows * config.hidden_size; ++i) {
    const Bf16 value = ToBf16(static_cast<float>((i * 37) % 101 - 50) / 50);
    request.rows.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return request;
}

TEST_F(EmbeddedRouterTest, ForwardsRowsWithTheSameBitsTogetherAndAlone) {
  const ModelConfig& config = node_->config();
  const ForwardRequest request = RowsOf(config, 9);
  const ForwardAnswer together = *client().Forward(request);
  EXPECT_EQ(together.assignments, 9 * config.gate.top_k);
  EXPECT_NE(together.rows, request.rows);
  const size_t row_bytes = static_cast<size_t>(config.hidden_size) * sizeof(Bf16);
  for (size_t row = 0; row < 9; ++row) {
    ForwardRequest alone = request;
    alone.num_rows = 1;
    alone.rows = request.rows.substr(row * row_bytes, row_bytes);
    EXPECT_EQ(client().Forward(alone)->rows, together.rows.substr(row * row_bytes, row_bytes));
  }
  EXPECT_EQ(client().Forward(RowsOf(config, 0))->rows, "");
}

TEST_F(EmbeddedRouterTest, RefusesRowsThatCannotBeForwarded) {
  const ModelConfig& config = node_->config();
  ForwardRequest request = RowsOf(config, 2);
  request.layer = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(client().Forward(request).status()));
  request = RowsOf(config, 513);
  EXPECT_TRUE(absl::IsResourceExhausted(client().Forward(request).status()));
  request = RowsOf(config, 2);
  request.rows.pop_back();
  EXPECT_TRUE(absl::IsInvalidArgument(client().Forward(request).status()));
  request = RowsOf(config, 2);
  const Bf16 nan = ToBf16(std::numeric_limits<float>::quiet_NaN());
  request.rows.replace(static_cast<size_t>(config.hidden_size) * 2, 2,
                       reinterpret_cast<const char*>(&nan), 2);
  const absl::Status status = client().Forward(request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("row 1"));
}

TEST_F(EmbeddedRouterTest, RefusesMessagesAboveTheLimit) {
  RouterWorld small(node_->front(), RouterRpcOptions(), 1 << 10);
  const absl::Status status = small.client().Forward(RowsOf(node_->config(), 100)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(small.client().GetModelInfo().ok());
}

// A call of raw bytes, on any method.
grpc::Status SendBytes(const std::string& target, const std::string& method,
                       const std::string& bytes) {
  grpc::GenericStub stub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

TEST_F(EmbeddedRouterTest, RefusesBytesThatAreNoMessage) {
  // Field 2 with a length that is longer than what follows.
  for (const char* method : {"Generate", "Forward", "GetModelInfo"}) {
    const grpc::Status status = SendBytes(
        world_.target(), absl::StrCat("/moebius.api.router.v1.Router/", method), "\x12\x7f!");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("no message of its type")) << method;
    EXPECT_FALSE(status.error_details().empty()) << method;
  }
  EXPECT_EQ(SendBytes(world_.target(), "/moebius.api.router.v1.Router/Nothing", "").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST(ClientTest, TellsWhatGrpcAloneSaysApart) {
  using grpc::StatusCode;
  const grpc::Status closed(StatusCode::UNAVAILABLE, "Socket closed");
  const absl::Status never = CallStatus("a router at H:1", closed);
  EXPECT_EQ(never.message(), "cannot reach a router at H:1: Socket closed");
  const absl::Status lost = CallStatus("a router at H:1", closed, CallProgress::kAnswerBegun);
  EXPECT_EQ(lost.message(), "lost a router at H:1 in the middle of an answer: Socket closed");
  EXPECT_THAT(HintOf(lost), HasSubstr("same seed"));
  const absl::Status late =
      CallStatus("a router at H:1", {StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"});
  EXPECT_EQ(late.message(), "no word from a router at H:1 before the deadline");
  const absl::Status own = absl::UnavailableError("it drains");
  EXPECT_EQ(CallStatus("a router at H:1", ToGrpcStatus(own), CallProgress::kAnswerBegun).message(),
            "it drains");
}

TEST(ClientTest, SaysWhomItCannotReach) {
  ClientOptions options;
  options.target = "127.0.0.1:1";
  options.connect_timeout = absl::Milliseconds(200);
  const auto client = *Client::Make(options);
  const absl::Status status = client->GetModelInfo().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(HintOf(status), HasSubstr("check the address"));
  EXPECT_TRUE(absl::IsUnavailable(client->Connect()));
}

}  // namespace
}  // namespace moebius
