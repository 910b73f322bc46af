// SPDX-License-Identifier: Apache-2.0
#include "router_service/row_gate.h"

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "moebius/routing/gate.h"

namespace moebius {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kHidden = 32;
constexpr int32_t kExperts = 8;
constexpr int32_t kTopK = 2;
constexpr LayerId kFirst(1), kSecond(2);

RowBatch<Bf16> RandomRows(int64_t num_rows, uint64_t seed) {
  Random random(seed);
  RowBatch<Bf16> batch(num_rows, kHidden);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (Bf16& value : batch.rows().span(row)) value = ToBf16(random.Normal());
  }
  return batch;
}

// Layer 0 is dense, layers 1 and 2 have a gate each.
class RowGateTest : public testing::Test {
 protected:
  RowGateTest() {
    config_.num_layers = 3;
    config_.hidden_size = kHidden;
    config_.moe_layers = {false, true, true};
    config_.gate.num_experts = kExperts;
    config_.gate.top_k = kTopK;
    config_.gate.normalize_weights = true;
    weights_.gates.resize(3);
    for (size_t layer = 1; layer < 3; ++layer) {
      const auto matrix = RandomRows(kExperts, 40 + layer);
      weights_.gates[layer].matrix = GateMatrix::Pack(matrix.rows(), kernels_.pair_order);
    }
  }

  void UseCapacity(double factor, CapacityOverflow overflow = CapacityOverflow::kDrop) {
    RowGate::Parts parts;
    parts.config = &config_;
    parts.numerics = &numerics_;
    parts.weights = &weights_;
    parts.kernels = &kernels_;
    parts.executor = &executor_;
    parts.capacity.factor = factor;
    parts.capacity.overflow = overflow;
    gate_ = std::make_unique<RowGate>(parts);
  }

  // Sessions of these numbers of rows.
  void Begin(const std::vector<int64_t>& sessions, StepPurpose purpose = StepPurpose::kServe) {
    plan_ = StepPlan();
    for (const int64_t num_rows : sessions) {
      SessionRows rows;
      rows.session = SessionId(plan_.sessions.size() + 1);
      rows.row_begin = plan_.num_rows;
      rows.num_rows = num_rows;
      plan_.sessions.push_back(rows);
      plan_.num_rows += num_rows;
    }
    rows_ = RandomRows(plan_.num_rows, 7);
    gate_->BeginStep(plan_, purpose);
    result_.Begin(plan_.num_rows);
  }

  // What the gate alone says of the rows.
  Assignments Unlimited(LayerId layer) {
    RowGate::Parts parts{&config_, &numerics_, &weights_, &kernels_, &executor_, {}};
    RowGate gate(parts);
    StepResult result;
    gate.BeginStep(plan_, StepPurpose::kServe);
    gate.Choose(layer, rows_.rows(), &result);
    return gate.assignments();
  }

  int64_t Demand(LayerId layer) {
    const auto demand = gate_->load().demand(layer);
    return std::accumulate(demand.begin(), demand.end(), int64_t{0});
  }

  const Kernels& kernels_ = BestKernels();
  Executor executor_{2};
  ModelConfig config_;
  NumericsConfig numerics_;
  RouterWeights weights_;
  std::unique_ptr<RowGate> gate_;
  StepPlan plan_;
  RowBatch<Bf16> rows_;
  StepResult result_;
};

TEST_F(RowGateTest, ChoosesForEveryRowAndNothingInADenseLayer) {
  UseCapacity(0);
  Begin({3, 2});
  gate_->Choose(LayerId(0), rows_.rows(), &result_);
  EXPECT_EQ(gate_->assignments().top_k, 0);
  gate_->Choose(kFirst, rows_.rows(), &result_);
  EXPECT_EQ(gate_->assignments().num_rows, 5);
  EXPECT_EQ(gate_->assignments().expert_ids, Unlimited(kFirst).expert_ids);
  EXPECT_EQ(Demand(kFirst), 5 * kTopK);
  EXPECT_THAT(result_.dropped_of_row, IsEmpty());
}

TEST_F(RowGateTest, LimitsAllRowsOfAStepTogetherAndSaysWhoseWereDropped) {
  UseCapacity(1.0);
  Begin({10, 1, 5});
  gate_->Choose(kFirst, rows_.rows(), &result_);
  // By hand: 16 rows of top-2 over 8 experts are 4 rows for each.
  Assignments expected = Unlimited(kFirst);
  CapacityPolicy policy;
  policy.factor = 1;
  CapacityLimiter limiter;
  CapacityResult limited;
  limiter.Apply(policy, kExperts, GateInput(), &expected, &limited);
  ASSERT_GT(limited.total_dropped, 0);
  EXPECT_EQ(limited.capacity, 4);
  EXPECT_EQ(gate_->assignments().expert_ids, expected.expert_ids);
  ASSERT_EQ(result_.dropped_of_row.size(), 16u);
  for (size_t row = 0; row < 16; ++row) {
    EXPECT_EQ(result_.dropped_of_row[row], limited.dropped_of_row[row]);
  }
  EXPECT_EQ(Demand(kFirst), 16 * kTopK) << "demand is what the gate asked for";
  // A second layer adds to the rows' counts.
  const std::vector<int64_t> of_first = result_.dropped_of_row;
  gate_->Choose(kSecond, rows_.rows(), &result_);
  int64_t first = 0, both = 0, marked = 0;
  for (size_t row = 0; row < 16; ++row) {
    EXPECT_GE(result_.dropped_of_row[row], of_first[row]);
    first += of_first[row];
    both += result_.dropped_of_row[row];
  }
  for (const int32_t id : gate_->assignments().expert_ids) marked += IsDropped(id) ? 1 : 0;
  EXPECT_EQ(both, first + marked);
}

TEST_F(RowGateTest, AFactorOfExpertsOverChoicesChangesNothing) {
  UseCapacity(static_cast<double>(kExperts) / kTopK);
  Begin({16});
  gate_->Choose(kFirst, rows_.rows(), &result_);
  EXPECT_EQ(gate_->assignments().expert_ids, Unlimited(kFirst).expert_ids);
  EXPECT_THAT(result_.dropped_of_row, IsEmpty());
}

TEST_F(RowGateTest, DryRunsMeetNoCapacity) {
  UseCapacity(0.5);
  Begin({16}, StepPurpose::kDryRun);
  gate_->Choose(kFirst, rows_.rows(), &result_);
  EXPECT_EQ(gate_->assignments().expert_ids, Unlimited(kFirst).expert_ids);
  EXPECT_THAT(result_.dropped_of_row, IsEmpty());
}

TEST_F(RowGateTest, ARejectedSessionAsksForNothingInTheLayersBehind) {
  UseCapacity(0.25, CapacityOverflow::kReject);  // one row for each expert
  Begin({12, 1, 1, 1, 1});
  gate_->Choose(kFirst, rows_.rows(), &result_);
  ASSERT_FALSE(result_.rejected_rows.empty());
  std::vector<uint8_t> is_rejected(plan_.sessions.size());
  for (const RejectedRow& rejected : result_.rejected_rows) {
    EXPECT_EQ(rejected.layer, kFirst);
    EXPECT_EQ(rejected.capacity, 1);
    for (size_t session = 0; session < plan_.sessions.size(); ++session) {
      const SessionRows& rows = plan_.sessions[session];
      if (rejected.row >= rows.row_begin && rejected.row < rows.row_end()) is_rejected[session] = 1;
    }
  }
  ASSERT_EQ(is_rejected[0], 1) << "twelve rows of two choices do not fit eight seats";
  const size_t rejected_before = result_.rejected_rows.size();
  gate_->Choose(kSecond, rows_.rows(), &result_);
  int64_t rows_left = 0;
  for (size_t session = 0; session < plan_.sessions.size(); ++session) {
    const SessionRows& rows = plan_.sessions[session];
    for (int64_t row = rows.row_begin; row < rows.row_end(); ++row) {
      if (is_rejected[session] == 1) {
        EXPECT_THAT(gate_->assignments().RowIds(row), Each(kNoExpert));
      } else {
        ++rows_left;
      }
    }
  }
  EXPECT_EQ(static_cast<int64_t>(gate_->assignments().refused_rows.size()), 16 - rows_left);
  EXPECT_EQ(Demand(kSecond), rows_left * kTopK);
  for (size_t i = rejected_before; i < result_.rejected_rows.size(); ++i) {
    EXPECT_EQ(result_.rejected_rows[i].layer, kSecond);
    EXPECT_GE(result_.rejected_rows[i].row, 12);
  }
  EXPECT_THAT(result_.nonfinite_rows, IsEmpty()) << "rejected is not the same as not finite";
  Begin({4});
  gate_->Choose(kFirst, rows_.rows(), &result_);
  EXPECT_THAT(gate_->assignments().refused_rows, IsEmpty()) << "a new step begins afresh";
}

class BiasedGateTest : public RowGateTest {
 protected:
  void UseBiases(BiasMode mode) {
    BiasControlOptions options;
    options.mode = mode;
    options.window = 1;
    options.balancer.gamma = 0.1f;
    options.balancer.limit = 4;
    biases_ = std::make_unique<BiasControl>(
        options, config_.gate,
        std::vector<std::vector<float>>{
            {}, std::vector<float>(kExperts), std::vector<float>(kExperts)},
        "model");
    RowGate::Parts parts{&config_, &numerics_, &weights_, &kernels_, &executor_, {}, biases_.get()};
    gate_ = std::make_unique<RowGate>(parts);
  }

  // Expert 5 of layer 1 before all others.
  void Favour() {
    BiasUpdate update;
    update.set.push_back({1, std::vector<float>(kExperts), {}});
    update.set[0].bias[5] = 2;
    ASSERT_TRUE(biases_->Update(update).ok());
  }

  std::unique_ptr<BiasControl> biases_;
};

TEST_F(BiasedGateTest, BiasesInForceChooseAndAreTold) {
  config_.gate.score_function = ScoreFunction::kSigmoid;
  UseBiases(BiasMode::kOn);
  Favour();
  Begin({16});
  gate_->Choose(kFirst, rows_.rows(), &result_);
  EXPECT_EQ(result_.bias_version, 1u);
  EXPECT_NE(gate_->assignments().expert_ids, Unlimited(kFirst).expert_ids);
  EXPECT_EQ(gate_->load().demand(kFirst)[5], 16);
}

TEST_F(BiasedGateTest, AShadowChangesNothingAndCountsWhatItWouldChange) {
  config_.gate.score_function = ScoreFunction::kSigmoid;
  UseBiases(BiasMode::kShadow);
  Favour();
  Begin({16});
  gate_->Choose(kFirst, rows_.rows(), &result_);
  EXPECT_FALSE(result_.bias_version.has_value());
  EXPECT_EQ(gate_->assignments().expert_ids, Unlimited(kFirst).expert_ids);
  EXPECT_EQ(biases_->version(), 1u) << "a step that has not served shows nothing";
  gate_->Commit();
  EXPECT_EQ(biases_->version(), 2u) << "16 rows of 2 are more than one for each of 8 experts";
  const LayerBias layer = biases_->Read().layers[0];
  EXPECT_GT(layer.changed_ratio, 0);
  EXPECT_GE(layer.max_violation, 3) << "under the shadow's biases expert 5 has every row";
  EXPECT_LT(layer.bias[5], 2.0f);
}

TEST_F(BiasedGateTest, DryRunsShowTheBalancerNothing) {
  UseBiases(BiasMode::kOn);
  Begin({16}, StepPurpose::kDryRun);
  gate_->Choose(kFirst, rows_.rows(), &result_);
  gate_->Commit();
  EXPECT_EQ(biases_->version(), 0u);
}

TEST_F(BiasedGateTest, SeesDemandAndNotWhatACapacityLeft) {
  config_.gate.score_function = ScoreFunction::kSigmoid;
  UseBiases(BiasMode::kOn);
  RowGate::Parts parts{&config_, &numerics_, &weights_, &kernels_, &executor_, {}, biases_.get()};
  parts.capacity.factor = 0.25;  // one row for each expert
  gate_ = std::make_unique<RowGate>(parts);
  Begin({16});
  gate_->Choose(kFirst, rows_.rows(), &result_);
  gate_->Commit();
  EXPECT_GT(biases_->Read().layers[0].max_violation, 0.25)
      << "what was served is even: one for each";
}

}  // namespace
}  // namespace moebius
