// SPDX-License-Identifier: Apache-2.0
// What commands draw, compared with files that people have looked at.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/heat_map.h"
#include "cli/route_capacity.h"
#include "cli/route_picture.h"
#include "cli/router_commands.h"
#include "cli/router_flags.h"
#include "cli/top_command.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/model/json.h"
#include "moebius/model/tokenizer.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// MOEBIUS_WRITE_GOLDEN=1 writes the files anew, for somebody to look at.
void ExpectGolden(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(MOEBIUS_SOURCE_DIR, "/tests/cli/golden/", name);
  if (std::getenv("MOEBIUS_WRITE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << text;
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(text, golden.str()) << path;
}

ModelInfo SmallModel() {
  ModelInfo model;
  model.name = "demo";
  model.architecture = "DeepseekV3ForCausalLM";
  model.num_layers = 6;
  model.num_experts = 8;
  model.top_k = 2;
  model.num_groups = 4;
  model.num_kept_groups = 2;
  model.score_function = "sigmoid";
  model.has_correction_bias = true;
  model.routed_scaling_factor = 2.5f;
  model.bos_token_id = 256;
  model.tokenizer = "bytes";
  model.config_hash = "0123456789abcdef";
  return model;
}

// Five tokens, top-2 of eight experts in four groups, on two services.
RouteAnswer SmallRoute() {
  RouteAnswer answer;
  answer.layer = 3;
  answer.num_experts = 8;
  answer.top_k = 2;
  answer.num_groups = 4;
  answer.num_kept_groups = 2;
  answer.token_ids = {256, 'A', ' ', 10, 0xC3};
  answer.expert_ids = {1, 7, 1, 0, 6, 2, 1, 3, 5, 1};
  answer.weights = {0.81f, 0.66f, 0.92f, 0.70f, 0.58f, 0.45f, 0.5f, 0.5f, 1.25f, 0.25f};
  answer.services = {{"expert-0", {0, 1, 2, 3}, 5, 5}, {"expert-1", {4, 5, 6, 7}, 3, 3}};
  answer.row_bytes = 384;
  answer.shared_rows_sent = 2;
  answer.shared_reply_rows = 10;
  answer.load = {1, 4, 1, 1, 0, 1, 1, 1};
  answer.dropped.assign(8, 0);
  answer.rerouted.assign(8, 0);
  answer.group_fill_mismatches = 1;
  answer.closest_tie = ClosestTie{4, 1, 2, 0.00071f};
  return answer;
}

TEST(RoutePictureTest, DrawsTokensDispatchAndLoad) {
  const auto tokenizer = MakeByteTokenizer([] {
    ModelConfig config;
    config.vocab_size = 320;
    config.bos_token_id = 256;
    return config;
  }());
  ExpectGolden("route.txt",
               FormatRoutePicture(SmallRoute(), SmallModel(), tokenizer.get(), RouteView()));
  ExpectGolden("route_cut.txt",
               FormatRoutePicture(SmallRoute(), SmallModel(), tokenizer.get(), {.max_tokens = 2}));
}

TEST(RoutePictureTest, LeavesOutWhatAModelDoesNotHave) {
  RouteAnswer answer = SmallRoute();
  answer.num_groups = answer.num_kept_groups = 1;
  answer.closest_tie.reset();
  answer.shared_rows_sent = answer.shared_reply_rows = 0;
  ModelInfo model = SmallModel();
  model.score_function = "softmax";
  model.has_correction_bias = false;
  model.routed_scaling_factor = 1;
  ExpectGolden("route_plain.txt", FormatRoutePicture(answer, model, nullptr, RouteView()));
}

TEST(RoutePictureTest, DoesNotGuessWhichReplicaServesAToken) {
  RouteAnswer answer = SmallRoute();
  answer.services[1].experts.push_back(1);
  const std::string picture = FormatRoutePicture(answer, SmallModel(), nullptr, RouteView());
  EXPECT_THAT(picture, Not(HasSubstr(" of 2\n")));
  EXPECT_THAT(picture, HasSubstr("1.6 services"));
}

TEST(RoutePictureTest, TellsWhatACapacityWouldDropAndHowManyNodesAreReached) {
  RouteView view;
  view.num_nodes = 2;
  view.capacity_factor = 0.8;  // one of 10 assignments for each of 8 experts
  const RouteAnswer answer = SmallRoute();
  const std::string picture = FormatRoutePicture(answer, SmallModel(), nullptr, view);
  EXPECT_THAT(picture, HasSubstr(" of 2 nodes"));
  EXPECT_THAT(picture, HasSubstr("with --capacity-factor 0.8 (1 per expert): "));
  const CapacityPreview preview = PreviewCapacity(answer, 0.8);
  int64_t over = 0;
  for (const int64_t load : answer.load) over += std::max<int64_t>(0, load - 1);
  EXPECT_EQ(preview.total_dropped, over);
  view.capacity_factor = 0;
  EXPECT_THAT(FormatRoutePicture(answer, SmallModel(), nullptr, view), Not(HasSubstr("capacity")));
  RouteAnswer limited = answer;
  limited.dropped[0] = 2;
  const std::string in_force = FormatRoutePicture(limited, SmallModel(), nullptr, view);
  EXPECT_THAT(in_force, HasSubstr("capacity in force: 2 dropped"));
  EXPECT_THAT(in_force, HasSubstr("exact: no"));
}

TEST(RoutePictureTest, PrintsTheObjectThatScriptsRelyOn) {
  ExpectGolden("route.json", FormatRouteJson(SmallRoute(), 0) + "\n");
}

ExpertLoadTable SmallLoad() {
  ExpertLoadTable table;
  table.layer_ids = {1, 2, 3};
  table.num_experts = 16;
  table.demand.assign(48, 4);
  // Layer 2: shades around their bounds, mean 4. Layer 3: nothing yet.
  const int64_t loads[16] = {1, 2, 6, 7, 12, 13, 4, 4, 4, 4, 1, 1, 1, 1, 2, 1};
  for (size_t expert = 0; expert < 16; ++expert) {
    table.demand[16 + expert] = loads[expert];
    table.demand[32 + expert] = 0;
  }
  table.dropped.assign(48, 0);
  return table;
}

TEST(HeatMapTest, ShadesEachLayerByItsOwnMean) {
  ExpectGolden("heat_map.txt", FormatHeatMap(SmallLoad()));
}

TEST(HeatMapTest, WrapsManyExpertsAndCountsDrops) {
  ExpertLoadTable table;
  table.layer_ids = {3};
  table.num_experts = 160;
  for (int64_t expert = 0; expert < 160; ++expert) table.demand.push_back(expert);
  table.dropped.assign(160, 1);
  table.has_capacity = true;
  ExpectGolden("heat_map_wide.txt", FormatHeatMap(table));
}

TEST(HeatMapTest, PrintsTheObjectThatScriptsRelyOn) {
  ExpertLoadTable table;
  table.layer_ids = {1, 5};
  table.num_experts = 2;
  table.demand = {1, 2, 3, int64_t{1} << 40};
  table.dropped = {0, 1, 0, 0};
  EXPECT_EQ(FormatExpertLoadJson(table),
            R"({"demand":[[1,2],[3,1099511627776]],"dropped":[[0,1],[0,0]],"layer_ids":[1,5]})");
}

ServerInfo SmallServer() {
  ServerInfo server;
  server.version = "0.1.0";
  server.uptime_seconds = 14 * 60 + 3;
  server.topology = "split";
  server.epoch = 7;
  server.tier = "avx2";
  server.threads = 2;
  server.missing = {"expert-1 has not joined", "attention-0 is loading: 3 of 20 MB"};
  server.services = {{"router", "router", "usable", "", ""},
                     {"attention-0", "attention", "loading", "127.0.0.1:4001", "3 of 20 MB"},
                     {"expert-0", "expert", "usable", "127.0.0.1:4002", "48 sets of weights"}};
  server.limits = {{"max_positions", 4096, "INVALID_ARGUMENT", "tokens of prompt and answer"},
                   {"row_budget", 512, "", "rows of one step"}};
  server.running_requests = 18;
  server.queued_requests = 2;
  server.requests_total = 1234;
  server.failed_total = 1;
  server.kv_capacity_tokens = 100'000;
  server.kv_reserved_tokens = 4'096;
  return server;
}

TEST(StatusTest, SaysFirstWhoIsNotReady) {
  ExpectGolden("status.txt", FormatStatus("127.0.0.1:43121", SmallModel(), SmallServer(), false));
  ExpectGolden("status_limits.txt",
               FormatStatus("127.0.0.1:43121", SmallModel(), SmallServer(), true));
  ExpectGolden("status.json", FormatStatusJson(SmallModel(), SmallServer()) + "\n");
}

TEST(StatusTest, ShowsNoControlCharactersOfOthers) {
  ServerInfo server = SmallServer();
  server.services[1].detail = "\x1b[2Jgone";
  EXPECT_THAT(FormatStatus("x", SmallModel(), server, false), Not(HasSubstr("\x1b")));
}

TEST(ExplanationTest, TellsHowARequestWent) {
  Explanation explanation;
  explanation.request_id = "chat-17";
  explanation.state = RequestState::kFinished;
  explanation.age_seconds = 12.3;
  explanation.last.prompt_tokens = 26;
  explanation.last.prefilled_tokens = 26;
  explanation.last.completion_tokens = 64;
  explanation.last.finish_reason = FinishReason::kLength;
  explanation.last.tokens_hash = "a41c7e02";
  explanation.last.logits_hash = "9be1f07d55c2a316";
  explanation.last.timing.queue_seconds = 0.0004;
  explanation.last.timing.prefill_seconds = 0.0123;
  explanation.last.timing.decode_seconds = 0.5;
  explanation.last.timing.prefill_steps = 1;
  explanation.last.timing.decode_steps = 63;
  explanation.last.timing.figures.assignments = 1780;
  explanation.last.timing.figures.dispatched_rows = 900;
  explanation.last.timing.figures.reply_rows = 950;
  explanation.last.timing.figures.resends = 1;
  explanation.last.timing.figures.resent_rows = 3;
  explanation.last.timing.figures.stall_seconds = 0.031;
  explanation.last.timing.figures.attention_traffic = {534, 91'600, 90'000};
  explanation.last.timing.figures.expert_traffic = {1'120, 214'000, 361'250};
  explanation.last.timing.figures.naive_messages = 2'670;
  explanation.last.timing.figures.naive_bytes = 512'640;
  ExpectGolden("explain.txt", FormatExplanation(explanation));
  explanation.state = RequestState::kFailed;
  explanation.failure = WithHint(absl::UnavailableError("expert 3 of layer 2 is gone"), "wait");
  ExpectGolden("explain_failed.txt", FormatExplanation(explanation));
  const auto json = Json::Parse(FormatExplanationJson(explanation), "explain");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->Find("failure")->Find("code")->string(), "UNAVAILABLE");
}

TEST(TopTest, SaysFirstWhatMattersAndThenHowFast) {
  TopFrame frame;
  frame.target = "127.0.0.1:43121";
  frame.model.name = "demo";
  frame.seconds = 2;
  frame.now.uptime_seconds = 840;
  frame.now.epoch = 7;
  frame.now.missing = {"expert slot 1 of 2: nobody has joined"};
  frame.now.services = {{"router", "router", "usable", "127.0.0.1:7410", ""},
                        {"expert-0", "expert", "suspect", "", "since 1.2 s"}};
  frame.now.running_requests = 18;
  frame.now.prompt_tokens_total = 5'280;
  frame.before.prompt_tokens_total = 1'000;
  frame.now.generated_tokens_total = 1'300;
  frame.before.generated_tokens_total = 1'200;
  frame.now.figures.assignments = 1'780;
  frame.now.figures.combined = 1'780;
  frame.now.figures.num_rows = 100;
  frame.before.figures.attention_seconds = 5;
  frame.now.figures.attention_seconds = 6;
  frame.now.figures.expert_seconds = 3;
  frame.load.layer_ids = {1};
  frame.load.num_experts = 4;
  frame.load.demand = {10, 0, 30, 0};
  frame.load.dropped = {0, 0, 0, 0};
  ExpectGolden("top.txt", FormatTop(frame));
  const std::string json = FormatTopJson(frame);
  EXPECT_THAT(json, HasSubstr("\"prompt_tokens_per_second\":2140,"));
  EXPECT_THAT(json, HasSubstr("\"generated_tokens_per_second\":50,"));
  EXPECT_THAT(json, HasSubstr("\"demand\":[[10,0,30,0]]"));
  // A router that has started again counts from 0: no rate is told, least of all a negative one.
  frame.before.uptime_seconds = 900;
  frame.before.generated_tokens_total = 5'000;
  EXPECT_THAT(FormatTopJson(frame), HasSubstr("\"generated_tokens_per_second\":0,"));
  EXPECT_THAT(FormatTop(frame), HasSubstr(" 67 %")) << "6 s of 9 in all";
  frame.now.figures.dropped = 3;
  EXPECT_THAT(FormatTop(frame), HasSubstr(" NOT EXACT, as the answers say   NOT CONSERVED 1,780 "));
  frame.now.figures.combined = 1'777;
  EXPECT_THAT(FormatTop(frame),
              HasSubstr("   CONSERVED 1,780 routed = 1,777 combined + 3 dropped"));
}

TEST(RouterCallFlagsTest, ReadsTimesWithTheirUnit) {
  EXPECT_EQ(*ParseTimeout("--timeout", "90"), absl::Seconds(90));
  EXPECT_EQ(*ParseTimeout("--timeout", "200ms"), absl::Milliseconds(200));
  EXPECT_EQ(*ParseTimeout("--timeout", "1.5m"), absl::Seconds(90));
  for (const char* bad : {"", "0", "-1s", "5x", "s", "1,5s", "1e12"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTimeout("--timeout", bad).status())) << bad;
  }
}

TEST(RouterCallFlagsTest, NamesWhatIsNoAddress) {
  RouterCallFlags flags;
  EXPECT_THAT(HintOf(ParseRouterFlags(flags).status()), HasSubstr("--router HOST:PORT"));
  flags.router = "nonsense";
  EXPECT_THAT(std::string(ParseRouterFlags(flags).status().message()), HasSubstr("--router"));
  flags.router = "127.0.0.1:43121";
  EXPECT_EQ(ParseRouterFlags(flags)->target, "127.0.0.1:43121");
}

}  // namespace
}  // namespace moebius
