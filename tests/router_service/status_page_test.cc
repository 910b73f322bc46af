// SPDX-License-Identifier: Apache-2.0
#include "router_service/status_page.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StatusFacts Facts() {
  StatusFacts facts;
  facts.name = "router";
  facts.model.name = "demo";
  facts.server.ready = true;
  facts.server.uptime_seconds = 840;
  facts.server.services = {{"expert-0", "expert", "usable", "10.0.0.7:7421", ""}};
  facts.counters.figures.assignments = 1'780;
  facts.counters.figures.combined = 1'780;
  facts.counters.figures.attention_seconds = 1;
  facts.counters.figures.expert_seconds = 3;
  facts.load.layer_ids = {1, 3};
  facts.load.num_experts = 4;
  facts.load.demand = {1, 1, 1, 1, 0, 0, 10, 2};
  facts.layer = 1;
  facts.window.num_experts = 4;
  facts.window.demand = {0, 0, 8, 0};
  facts.window.seconds = 2;
  return facts;
}

TEST(StatusPageTest, SaysFirstWhatMattersMost) {
  const std::string page = RenderStatusPage(Facts());
  EXPECT_LT(page.find("every answer"), page.find("1,780 routed"));
  EXPECT_THAT(page, HasSubstr("= 1,780 combined + 0 dropped"));
  EXPECT_THAT(page, HasSubstr("<title>router: ready</title>"));
  EXPECT_THAT(page, HasSubstr("layer 3, expert 2 with 3.3 times the mean"));
  EXPECT_THAT(page, HasSubstr("<td>75.0 %</td>")) << "experts' share of the time";
  EXPECT_THAT(page, HasSubstr("Layer 3, expert × time"));
}

TEST(StatusPageTest, SaysWhenAnswersAreNotExactAndWhoIsMissing) {
  StatusFacts facts = Facts();
  facts.counters.figures.dropped = 12;
  facts.counters.figures.combined = 1'768;
  facts.server.capacity = "capacity factor 1.25 by weight, drop; of all rows of a step";
  facts.server.ready = false;
  facts.server.missing = {"expert slot 1 of 2: nobody has joined"};
  const std::string page = RenderStatusPage(facts);
  EXPECT_THAT(page, HasSubstr("no: 12 dropped, 0 rerouted"));
  EXPECT_THAT(page, HasSubstr("capacity factor 1.25 by weight"));
  EXPECT_THAT(page, HasSubstr("= 1,768 combined + 12 dropped"));
  EXPECT_THAT(page, HasSubstr("! expert slot 1 of 2: nobody has joined"));
  EXPECT_THAT(page, Not(HasSubstr("every answer")));
}

TEST(StatusPageTest, SaysWhenAssignmentsAreNotConserved) {
  StatusFacts facts = Facts();
  facts.counters.figures.combined = 1'779;
  EXPECT_THAT(RenderStatusPage(facts), HasSubstr("<b class=\"bad\">NO: 1,780 routed</b>"));
}

TEST(StatusPageTest, EscapesWhatOthersWrote) {
  StatusFacts facts = Facts();
  facts.server.services[0].name = "<script>alert('1')</script>";
  facts.server.services[0].detail = "a & \"b\"";
  facts.model.name = "<b>";
  const std::string page = RenderStatusPage(facts);
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;"));
  EXPECT_THAT(page, HasSubstr("a &amp; &quot;b&quot;"));
}

TEST(StatusPageTest, NeedsNothingFromElsewhere) {
  const std::string page = RenderStatusPage(Facts());
  for (const char* word : {"http:", "https:", "src=", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(word)));
  }
}

TEST(StatusPageTest, HasSomethingToSayBeforeAnythingHappened) {
  StatusFacts facts;
  facts.load.layer_ids = {0};
  facts.load.num_experts = 2;
  facts.load.demand = {0, 0};
  EXPECT_THAT(RenderStatusPage(facts), HasSubstr("no tokens yet"));
  EXPECT_THAT(RenderStatusPage(StatusFacts()), HasSubstr("not ready"));
}

TEST(StatusPageTest, StaysSmallForTheLargestModel) {
  StatusFacts facts = Facts();
  facts.load.num_experts = 256;
  facts.load.layer_ids.clear();
  for (int32_t layer = 0; layer < 58; ++layer) facts.load.layer_ids.push_back(layer);
  facts.load.demand.resize(58 * 256);
  for (size_t i = 0; i < facts.load.demand.size(); ++i) {
    facts.load.demand[i] = static_cast<int64_t>(i * 7919 % 97);
  }
  facts.window.num_experts = 256;
  facts.window.demand.assign(256 * LoadHistory::kMaxSamples, 3);
  EXPECT_LT(RenderStatusPage(facts).size(), 700'000u);
}

TEST(StatusPageTest, ShowsTheLayerThatWasAskedForElseTheMostUneven) {
  const ExpertLoadTable load = Facts().load;
  EXPECT_EQ(LayerOfQuery("layer=1", load), 0u);
  EXPECT_EQ(LayerOfQuery("layer=3", load), 1u);
  for (const char* other : {"", "layer=2", "layer=x", "layer=99999999999", "x=1"}) {
    EXPECT_EQ(LayerOfQuery(other, load), 1u) << other;
  }
  EXPECT_EQ(LayerOfQuery("", ExpertLoadTable()), 0u);
}

}  // namespace
}  // namespace moebius
