// SPDX-License-Identifier: Apache-2.0
#include "router_service/bias_control.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"

namespace moebius {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kExperts = 4;
constexpr char kModel[] = "0123456789abcdef";

GateConfig Gate(ScoreFunction function = ScoreFunction::kSigmoid) {
  GateConfig gate;
  gate.num_experts = kExperts;
  gate.top_k = 2;
  gate.score_function = function;
  return gate;
}

BiasControlOptions Options(BiasMode mode, int64_t window = 10) {
  BiasControlOptions options;
  options.mode = mode;
  options.window = window;
  options.balancer.gamma = 0.25f;
  return options;
}

// Layer 0 is dense; layer 1 has biases of its own, layer 2 none.
std::unique_ptr<BiasControl> Control(const BiasControlOptions& options) {
  return std::make_unique<BiasControl>(
      options, Gate(),
      std::vector<std::vector<float>>{{}, {1, 2, 3, 4}, std::vector<float>(kExperts)}, kModel);
}

BiasObservation Seen(int32_t layer, std::vector<int64_t> demand, int64_t changed_rows = 0) {
  BiasObservation seen;
  seen.layer = LayerId(layer);
  seen.demand = std::move(demand);
  seen.num_rows = 10;
  seen.changed_rows = changed_rows;
  return seen;
}

BiasUpdate SetLayer(int32_t layer, std::vector<float> bias) {
  BiasUpdate update;
  update.set.push_back({layer, std::move(bias), {}});
  return update;
}

TEST(BiasModeTest, ReadsItsNamesAndNothingElse) {
  for (const BiasMode mode : {BiasMode::kOff, BiasMode::kShadow, BiasMode::kOn}) {
    EXPECT_EQ(*ParseBiasMode(BiasModeName(mode)), mode);
  }
  EXPECT_THAT(std::string(ParseBiasMode("auto").status().message()), HasSubstr("off, shadow, on"));
}

TEST(BiasControlTest, OffHasTheCheckpointsAndTakesNoChange) {
  const auto control = Control(Options(BiasMode::kOff));
  EXPECT_EQ(control->Current(), nullptr);
  control->Observe(0, {Seen(1, {100, 0, 0, 0})});
  BiasUpdate reset;
  reset.reset = true;
  const absl::Status refused = control->Update(reset);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(HintOf(refused), HasSubstr("--bias-balancer=shadow"));
  const BiasTable table = control->Read();
  EXPECT_EQ(table.mode, "off");
  EXPECT_EQ(table.version, 0u);
  ASSERT_EQ(table.layers.size(), 2u) << "a dense layer has no gate";
  EXPECT_EQ(table.layers[0].layer, 1);
  EXPECT_EQ(table.layers[0].bias, table.layers[0].base);
  EXPECT_THAT(table.layers[1].base, Each(0.0f));
}

TEST(BiasControlTest, AFullWindowMovesAllLayersAndRaisesTheVersionOnce) {
  const auto control = Control(Options(BiasMode::kOn));
  const auto before = control->Current();
  EXPECT_EQ(before->version, 0u);
  EXPECT_THAT(before->layers[0], IsEmpty());
  EXPECT_THAT(before->layers[1], ElementsAre(1, 2, 3, 4));
  control->Observe(0, {Seen(1, {20, 0, 0, 19}), Seen(2, {0, 0, 39, 0})});
  EXPECT_EQ(control->version(), 0u) << "39 assignments are no 10 for each of 4 experts";
  EXPECT_EQ(control->Read().observed, 9);
  control->Observe(0, {Seen(1, {0, 0, 0, 1}), Seen(2, {0, 0, 1, 0})});
  EXPECT_EQ(control->version(), 1u);
  const auto after = control->Current();
  EXPECT_THAT(after->layers[1], ElementsAre(0.75f, 2.25f, 3.25f, 3.75f));
  EXPECT_THAT(after->layers[2], ElementsAre(0.25f, 0.25f, -0.25f, 0.25f));
  EXPECT_THAT(before->layers[1], ElementsAre(1, 2, 3, 4)) << "a step keeps what it began with";
  const BiasTable table = control->Read();
  EXPECT_EQ(table.observed, 0);
  EXPECT_DOUBLE_EQ(table.layers[0].max_violation, 1.0);
  EXPECT_DOUBLE_EQ(table.layers[1].max_violation, 3.0);
  EXPECT_EQ(table.layers[0].max_delta, 0.25f);
}

TEST(BiasControlTest, TellsTheShareOfTokensThatAWindowWouldChange) {
  const auto control = Control(Options(BiasMode::kShadow));
  control->Observe(0, {Seen(1, {40, 0, 0, 0}, 3)});
  EXPECT_DOUBLE_EQ(control->Read().layers[0].changed_ratio, 0.3);
  EXPECT_DOUBLE_EQ(control->Read().layers[1].changed_ratio, 0);
}

TEST(BiasControlTest, ForgetsWhatWasSeenUnderOtherBiases) {
  const auto control = Control(Options(BiasMode::kOn));
  control->Observe(0, {Seen(1, {39, 0, 0, 0})});
  ASSERT_TRUE(control->Update(SetLayer(2, {0.5f, 0, 0, 0})).ok());
  EXPECT_EQ(control->version(), 1u);
  EXPECT_EQ(control->Read().observed, 0) << "the window began under other biases";
  control->Observe(0, {Seen(1, {40, 0, 0, 0})});
  EXPECT_EQ(control->version(), 1u) << "a step of the version before";
  EXPECT_EQ(control->Read().observed, 0);
}

TEST(BiasControlTest, WithoutAWindowTrafficMovesNothing) {
  const auto control = Control(Options(BiasMode::kOn, 0));
  control->Observe(0, {Seen(1, {1'000'000, 0, 0, 0})});
  EXPECT_EQ(control->version(), 0u);
}

TEST(BiasControlTest, ATrainingLoopMovesLayersByItsOwnWindows) {
  const auto control = Control(Options(BiasMode::kOn, 0));
  BiasUpdate update;
  update.windows.push_back({1, {}, {30, 10, 10, 10}});
  ASSERT_TRUE(control->Update(update).ok());
  EXPECT_EQ(control->version(), 1u);
  EXPECT_THAT(control->Current()->layers[1], ElementsAre(0.75f, 2.25f, 3.25f, 4.25f));
  EXPECT_THAT(control->Current()->layers[2], Each(0.0f)) << "layers that are not named stay";
}

TEST(BiasControlTest, ResetGoesBackToTheCheckpoint) {
  const auto control = Control(Options(BiasMode::kOn));
  ASSERT_TRUE(control->Update(SetLayer(1, {1.5f, 2, 3, 4})).ok());
  ASSERT_TRUE(control->Update(SetLayer(2, {0.5f, 0, 0, 0})).ok());
  EXPECT_THAT(control->Current()->layers[1], ElementsAre(1.5f, 2, 3, 4));
  BiasUpdate reset;
  reset.reset = true;
  ASSERT_TRUE(control->Update(reset).ok());
  EXPECT_EQ(control->version(), 3u);
  EXPECT_THAT(control->Current()->layers[1], ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(control->Current()->layers[2], Each(0.0f));
}

TEST(BiasControlTest, AnUpdateIsTakenAsAWholeOrNotAtAll) {
  const auto control = Control(Options(BiasMode::kOn));
  const auto expect_refused = [&](const BiasUpdate& update, const char* why) {
    const absl::Status refused = control->Update(update);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(why));
    EXPECT_EQ(control->version(), 0u);
    EXPECT_THAT(control->Current()->layers[1], ElementsAre(1, 2, 3, 4));
  };
  BiasUpdate second_is_wrong = SetLayer(1, {1.25f, 2, 3, 4});
  second_is_wrong.set.push_back({2, {0, 0, 0.75f, 0}, {}});
  expect_refused(second_is_wrong, "layer 2: bias: 0.75 for expert 2");
  expect_refused(SetLayer(0, {1, 2, 3, 4}), "layer 0 has no gate; those with one: 1, 2");
  expect_refused(SetLayer(1, {1, 2}), "2 values for 4 experts");
  expect_refused(SetLayer(1, {1, 2, 3, std::numeric_limits<float>::quiet_NaN()}), "expert 3");
  expect_refused(BiasUpdate(), "one of the three");
  BiasUpdate both = SetLayer(1, {1, 2, 3, 4});
  both.reset = true;
  expect_refused(both, "one of the three");
  BiasUpdate window;
  window.windows.push_back({1, {}, {1, 2, 3}});
  expect_refused(window, "demand has 3 values for 4 experts");
  window.windows[0].demand = {1, 2, 3, -1};
  expect_refused(window, "demand -1");
}

TEST(BiasControlTest, AChangeOfAnotherVersionIsRefused) {
  const auto control = Control(Options(BiasMode::kOn));
  BiasUpdate update = SetLayer(1, {1.5f, 2, 3, 4});
  update.expected_version = 1;
  EXPECT_TRUE(absl::IsAborted(control->Update(update)));
  update.expected_version = 0;
  EXPECT_TRUE(control->Update(update).ok());
}

TEST(BiasControlTest, TakesOverWhatWasSavedOfItsOwnModelAlone) {
  const auto first = Control(Options(BiasMode::kOn));
  for (int window = 0; window < 3; ++window) {
    first->Observe(first->version(), {Seen(1, {40, 0, 0, 0})});
  }
  const BiasTable saved = first->Read();
  const auto second = Control(Options(BiasMode::kShadow));
  ASSERT_TRUE(second->Restore(saved).ok());
  EXPECT_EQ(second->version(), 3u);
  EXPECT_EQ(second->Current()->layers, first->Current()->layers);
  BiasTable foreign = saved;
  foreign.model_hash = "ffffffffffffffff";
  const absl::Status refused = second->Restore(foreign);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("ffffffffffffffff, this is 0123456789"));
  EXPECT_TRUE(Control(Options(BiasMode::kOff))->Restore(foreign).ok()) << "off needs none";
}

TEST(BiasControlTest, MeasuresTheStepOfSoftmaxScoresByTheirSpread) {
  BiasControl control(Options(BiasMode::kOn), Gate(ScoreFunction::kSoftmax),
                      {std::vector<float>(kExperts)}, kModel);
  EXPECT_TRUE(control.needs_spread());
  BiasObservation seen = Seen(0, {40, 0, 0, 0});
  seen.spread = 2 * kUnitSpread;
  control.Observe(0, {seen});
  EXPECT_FLOAT_EQ(control.Current()->layers[0][1], 0.5f) << "twice the spread, twice gamma";
  EXPECT_FALSE(Control(Options(BiasMode::kOn))->needs_spread());
}

}  // namespace
}  // namespace moebius
