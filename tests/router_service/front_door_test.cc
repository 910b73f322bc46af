// SPDX-License-Identifier: Apache-2.0
#include "router_service/front_door.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Counts what reaches it.
class CountingFront final : public RouterFront {
 public:
  absl::StatusOr<std::shared_ptr<GenerateStream>> Submit(const GenerateRequest&) override {
    ++taken;
    return absl::ResourceExhaustedError("behind the door");
  }
  absl::StatusOr<ForwardAnswer> Forward(const ForwardRequest&, absl::Duration) override {
    ++taken;
    return ForwardAnswer();
  }
  absl::StatusOr<RouteAnswer> Route(const RouteRequest&, absl::Duration) override {
    ++taken;
    return RouteAnswer();
  }
  ModelInfo model_info() const override { return {}; }
  ServerInfo server_info() const override {
    ServerInfo info;
    info.topology = "behind the door";
    info.ready = true;
    return info;
  }
  ExpertLoadTable expert_load() const override { return {}; }
  BiasTable biases() const override { return {}; }
  PlacementTable placement() const override { return {}; }
  absl::StatusOr<uint64_t> UpdateBias(const BiasUpdate&) override { return 7; }
  Readiness readiness() const override { return {.ready = true, .missing = {}}; }
  absl::StatusOr<Explanation> Explain(const std::string&,
                                      const std::optional<std::string>& asker) const override {
    Explanation explanation;
    explanation.caller = asker.value_or("an operator");
    return explanation;
  }

  void NoteRefused(const absl::Status&) override { ++refused; }

  int taken = 0;
  int refused = 0;
};

class FrontDoorTest : public testing::Test {
 protected:
  FrontDoorTest()
      : door_(ModelInfo(), [] {
          ServerInfo info;
          info.missing = {"no attention rank"};
          return info;
        }) {}

  // Every way in is refused for the same reason.
  void ExpectRefused(const char* why) {
    for (const absl::Status& status : {door_.Submit(GenerateRequest()).status(),
                                       door_.Forward(ForwardRequest(), absl::Seconds(1)).status(),
                                       door_.Route(RouteRequest(), absl::Seconds(1)).status(),
                                       door_.UpdateBias(BiasUpdate()).status()}) {
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_THAT(status.message(), HasSubstr(why));
    }
    EXPECT_FALSE(door_.readiness().ready);
  }

  CountingFront front_;
  FrontDoor door_;
};

TEST_F(FrontDoorTest, SaysWhatIsMissingBeforeItOpens) {
  ExpectRefused("no attention rank");
  EXPECT_THAT(door_.server_info().missing, ElementsAre("no attention rank"));
}

TEST_F(FrontDoorTest, LetsEverythingThroughOnceItIsOpen) {
  door_.Open(&front_);
  EXPECT_TRUE(absl::IsResourceExhausted(door_.Submit(GenerateRequest()).status()));
  EXPECT_TRUE(door_.Forward(ForwardRequest(), absl::Seconds(1)).ok());
  EXPECT_TRUE(door_.Route(RouteRequest(), absl::Seconds(1)).ok());
  EXPECT_EQ(front_.taken, 3);
}

TEST_F(FrontDoorTest, SaysThatItDrainsWhileItStillTakesWork) {
  door_.Open(&front_);
  ASSERT_TRUE(door_.readiness().ready);
  ASSERT_TRUE(door_.server_info().ready);
  door_.SetDraining();
  EXPECT_FALSE(door_.readiness().ready);
  EXPECT_THAT(door_.readiness().missing, ElementsAre(HasSubstr("draining")));
  EXPECT_FALSE(door_.server_info().ready);
  EXPECT_THAT(door_.server_info().missing, ElementsAre(HasSubstr("draining")));
  EXPECT_THAT(door_.Submit({}).status().message(), HasSubstr("behind the door"));
  EXPECT_EQ(front_.taken, 1);
}

TEST_F(FrontDoorTest, TakesNoWorkWhileItDrainsButGoesOnAnsweringQuestions) {
  door_.Open(&front_);
  door_.Close();
  ExpectRefused("drains");
  EXPECT_EQ(front_.taken, 0);
  EXPECT_EQ(front_.refused, 1);  // the Generate
  EXPECT_EQ(door_.server_info().topology, "behind the door");
  EXPECT_FALSE(door_.server_info().ready);
  EXPECT_EQ(door_.Explain("a request", std::nullopt)->caller, "an operator");
  EXPECT_EQ(door_.Explain("a request", "team-a")->caller, "team-a");
}

}  // namespace
}  // namespace moebius
