// SPDX-License-Identifier: Apache-2.0
#include "router_service/row_pipeline.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "moebius/routing/combine.h"
#include "moebius/routing/dispatch_plan.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kHidden = 64;
constexpr int64_t kVocab = 40;
constexpr int32_t kExperts = 8;
constexpr uint64_t kSeed = 20250207;

RowBatch<Bf16> RandomRows(int64_t num_rows, int64_t width, float scale, uint64_t seed) {
  Random random(seed);
  RowBatch<Bf16> batch(num_rows, width);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (Bf16& value : batch.rows().span(row)) value = ToBf16(scale * random.Normal());
  }
  return batch;
}

RowBatch<Bf16> Ones() {
  RowBatch<Bf16> batch(1, kHidden);
  for (Bf16& value : batch.rows().span(0)) value = ToBf16(1.0f);
  return batch;
}

// Adds to a row what its session and position say: a row that is mixed up shows in the logits.
class FakeAttention final : public AttentionPort {
 public:
  explicit FakeAttention(std::vector<std::string>* calls) : calls_(*calls) {}

  absl::Status BeginStep(const StepPlan& step) override {
    calls_.push_back("begin attention");
    step_ = step;
    return absl::OkStatus();
  }
  absl::Status RunLayer(LayerId layer, Bf16Rows normed, MutableBf16Rows out) override {
    calls_.push_back("attention " + std::to_string(layer.value()));
    if (layer.value() == fail_at_layer) return absl::UnavailableError("rank 1 is gone");
    for (const SessionRows& rows : step_.sessions) {
      for (int64_t row = rows.row_begin; row < rows.row_end(); ++row) {
        const float position = static_cast<float>(rows.position_begin + row - rows.row_begin);
        for (int64_t column = 0; column < kHidden; ++column) {
          const float value = ToFloat(normed.row(row)[column]) * (1 + position / 16);
          out.row(row)[column] = ToBf16(value / 4);
        }
      }
    }
    return absl::OkStatus();
  }
  absl::Status CommitStep() override {
    calls_.push_back("commit");
    return absl::OkStatus();
  }
  void AbortStep() override { calls_.push_back("abort"); }
  void EndSession(SessionId) override { calls_.push_back("end session"); }
  KvPool kv_pool() const override { return {32, 10, 0}; }

  int32_t fail_at_layer = -1;

 private:
  std::vector<std::string>& calls_;
  StepPlan step_;
};

// Expert e multiplies its row by (e + 1) / 32.
class FakeExperts final : public ExpertPort {
 public:
  FakeExperts(std::vector<std::string>* calls, const Kernels& kernels)
      : calls_(*calls), kernels_(kernels) {}

  absl::Status BeginStep(const StepPlan&) override {
    calls_.push_back("begin experts");
    return absl::OkStatus();
  }
  absl::Status Forward(LayerId layer, const DispatchPlan& plan, Bf16Rows rows,
                       absl::Span<const MutableBf16Rows> replies) override {
    calls_.push_back("experts " + std::to_string(layer.value()));
    for (size_t service = 0; service < replies.size(); ++service) {
      Answer(plan.services()[service], rows, replies[service]);
    }
    return absl::OkStatus();
  }
  void EndStep() override { calls_.push_back("end experts"); }

 private:
  void Answer(const ServiceDispatch& dispatch, Bf16Rows rows, MutableBf16Rows replies) {
    int64_t reply = -1;
    std::vector<std::vector<Bf16>> outputs(dispatch.expert_ids.size());
    std::vector<std::vector<size_t>> terms(static_cast<size_t>(dispatch.num_reply_rows));
    for (int64_t row = 0; row < dispatch.num_rows(); ++row) {
      const size_t index = static_cast<size_t>(row);
      for (int64_t at = dispatch.row_begin[index]; at < dispatch.row_begin[index + 1]; ++at) {
        const size_t assignment = static_cast<size_t>(at);
        const Bf16* input = rows.row(dispatch.row_ids[index]);
        const float factor = static_cast<float>(dispatch.expert_ids[assignment] + 1) / 32;
        for (int64_t column = 0; column < kHidden; ++column) {
          outputs[assignment].push_back(ToBf16(ToFloat(input[column]) * factor));
        }
        if (dispatch.joins_previous[assignment] == 0) ++reply;
        terms[static_cast<size_t>(reply)].push_back(assignment);
      }
    }
    for (size_t row = 0; row < terms.size(); ++row) {
      std::vector<SumTerm> sum;
      for (const size_t at : terms[row]) sum.push_back({dispatch.weights[at], outputs[at].data()});
      const absl::Span<Bf16> out = replies.span(static_cast<int64_t>(row));
      if (sum.size() == 1) {
        std::copy(outputs[terms[row][0]].begin(), outputs[terms[row][0]].end(), out.begin());
      } else {
        SumTerms(kernels_, sum, out);
      }
    }
  }

  std::vector<std::string>& calls_;
  const Kernels& kernels_;
};

class RowPipelineTest : public testing::Test {
 protected:
  RowPipelineTest() {
    config_.hidden_size = kHidden;
    config_.vocab_size = kVocab;
    config_.num_layers = 3;
    config_.moe_layers = {false, true, true};
    config_.dense_intermediate_size = 48;
    config_.moe_intermediate_size = 16;
    config_.num_shared_experts = 1;
    config_.gate.num_experts = kExperts;
    config_.gate.top_k = 2;
    config_.gate.normalize_weights = true;
    weights_.embedding = RandomRows(kVocab, kHidden, 1, kSeed);
    for (int layer = 0; layer < 3; ++layer) {
      weights_.attention_norms.push_back(Ones());
      weights_.ffn_norms.push_back(Ones());
      GateWeights gate;
      if (layer > 0) {
        const auto rows = RandomRows(kExperts, kHidden, 1, kSeed + static_cast<uint64_t>(layer));
        gate.matrix = GateMatrix::Pack(Bf16Rows(rows.rows()), kernels_.pair_order);
      }
      weights_.gates.push_back(std::move(gate));
    }
    weights_.final_norm = Ones();
    weights_.head =
        PackedMatrix::Pack(RandomRows(kVocab, kHidden, 1, kSeed + 9).rows(), kernels_.pair_order);
    UseServices(1);
  }

  void UseServices(int32_t num_services) {
    const PlacementShape shape = PlacementShape::Make(kExperts, config_.moe_layers, 1, 3);
    StaticPlacementOptions options;
    options.num_services = num_services;
    placement_ = *Placement::Static(shape, options);
    RowPipeline::Parts parts;
    parts.config = &config_;
    parts.numerics = &numerics_;
    parts.weights = &weights_;
    parts.kernels = &kernels_;
    parts.executor = &executor_;
    parts.attention = &attention_;
    parts.experts = &experts_;
    parts.placement = &placement_;
    pipeline_ = std::make_unique<RowPipeline>(parts);
  }

  // A step of whole prompts, one session each; logits of every row.
  static StepRequest Prompts(const std::vector<std::vector<int32_t>>& prompts) {
    StepRequest request;
    for (size_t index = 0; index < prompts.size(); ++index) {
      SessionRows rows;
      rows.session = SessionId(index + 1);
      rows.row_begin = request.plan.num_rows;
      rows.num_rows = static_cast<int64_t>(prompts[index].size());
      rows.prompt_length = rows.num_rows;
      request.plan.sessions.push_back(rows);
      for (const int32_t token : prompts[index]) {
        request.token_ids.push_back(token);
        request.logit_rows.push_back(request.plan.num_rows++);
      }
    }
    return request;
  }

  std::vector<float> LogitsOf(const StepRequest& request, int64_t row) {
    EXPECT_TRUE(pipeline_->RunStep(request, &result_).ok());
    const auto logits = FloatRows(result_.logits.rows()).span(row);
    return std::vector<float>(logits.begin(), logits.end());
  }

  const Kernels& kernels_ = BestKernels();
  ModelConfig config_;
  NumericsConfig numerics_;
  RouterWeights weights_;
  Placement placement_;
  Executor executor_{2};
  std::vector<std::string> calls_;
  FakeAttention attention_{&calls_};
  FakeExperts experts_{&calls_, kernels_};
  std::unique_ptr<RowPipeline> pipeline_;
  StepResult result_;
};

TEST_F(RowPipelineTest, AsksItsPortsInTheOrderOfTheDrawing) {
  ASSERT_TRUE(pipeline_->RunStep(Prompts({{1, 2, 3}}), &result_).ok());
  EXPECT_THAT(calls_, ElementsAre("begin attention", "begin experts", "attention 0", "experts 0",
                                  "attention 1", "experts 1", "attention 2", "experts 2", "commit",
                                  "end experts"));
}

TEST_F(RowPipelineTest, KeepsNothingOfAStepThatFails) {
  attention_.fail_at_layer = 1;
  const absl::Status status = pipeline_->RunStep(Prompts({{1, 2, 3}}), &result_);
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(calls_, ElementsAre("begin attention", "begin experts", "attention 0", "experts 0",
                                  "attention 1", "end experts", "abort"));
  attention_.fail_at_layer = -1;
  EXPECT_TRUE(pipeline_->RunStep(Prompts({{1, 2, 3}}), &result_).ok());
}

TEST_F(RowPipelineTest, GivesARowTheSameBitsAloneAndAmongOthers) {
  const std::vector<float> alone = LogitsOf(Prompts({{7, 8, 9}}), 2);
  for (const float logit : alone) ASSERT_TRUE(logit - logit == 0);
  EXPECT_EQ(LogitsOf(Prompts({{1}, {2, 3, 4, 5, 6}, {7, 8, 9}, {7, 8}}), 8), alone);
}

TEST_F(RowPipelineTest, GivesTheSameBitsOnAnyNumberOfServices) {
  const StepRequest request = Prompts({{1, 2, 3}, {4, 5, 6, 7}, {8}});
  const std::vector<float> one = LogitsOf(request, 5);
  for (const int32_t services : {2, 3, 5, 8}) {
    UseServices(services);
    EXPECT_EQ(LogitsOf(request, 5), one) << services;
  }
}

TEST_F(RowPipelineTest, RunsInlineOnAnExecutorThreadWithTheSameBits) {
  const StepRequest request = Prompts({{1, 2, 3}});
  const std::vector<float> outside = LogitsOf(request, 1);
  std::vector<float> inside;
  executor_.Run([&] { inside = LogitsOf(request, 1); });
  EXPECT_EQ(inside, outside);
}

TEST_F(RowPipelineTest, ReportsRowsThatAreNotFiniteAndLeavesTheOthersAlone) {
  const std::vector<float> good = LogitsOf(Prompts({{1, 2, 3}}), 2);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    weights_.embedding.rows().row(20)[5] = ToBf16(bad);
    EXPECT_EQ(LogitsOf(Prompts({{20, 4}, {1, 2, 3}, {5, 20}}), 4), good);
    EXPECT_THAT(result_.nonfinite_rows, ElementsAre(0, 6));
  }
}

TEST_F(RowPipelineTest, GivesLogitsOfTheRowsThatNeedThemAlone) {
  StepRequest request = Prompts({{1, 2, 3}, {4, 5}});
  const std::vector<float> second = LogitsOf(request, 2);
  const std::vector<float> fourth = LogitsOf(request, 4);
  request.logit_rows = {2, 4};
  EXPECT_EQ(LogitsOf(request, 0), second);
  EXPECT_EQ(LogitsOf(request, 1), fourth);
  EXPECT_EQ(result_.logits.num_rows(), 2);
  request.logit_rows.clear();
  ASSERT_TRUE(pipeline_->RunStep(request, &result_).ok());
  EXPECT_EQ(result_.logits.num_rows(), 0);
}

TEST_F(RowPipelineTest, TakesAStepWithoutRows) {
  ASSERT_TRUE(pipeline_->RunStep(StepRequest(), &result_).ok());
  EXPECT_EQ(result_.logits.num_rows(), 0);
  EXPECT_THAT(result_.nonfinite_rows, IsEmpty());
}

TEST_F(RowPipelineTest, CountsEveryAssignmentOnce) {
  ASSERT_TRUE(pipeline_->RunStep(Prompts({{1, 2, 3}, {4, 5}}), &result_).ok());
  EXPECT_EQ(result_.figures.num_rows, 5);
  EXPECT_EQ(result_.figures.assignments, 5 * 2 * 2);  // rows × top_k × MoE layers
  EXPECT_EQ(result_.figures.dropped, 0);
  EXPECT_EQ(result_.figures.dispatched_rows, 5 * 3);  // one service: once per row and layer
}

TEST_F(RowPipelineTest, ShowsEveryGateToItsObserver) {
  class Recorder final : public StepObserver {
   public:
    void OnGate(LayerId layer, FloatRows logits, const Assignments& assignments) override {
      layers.push_back(layer.value());
      EXPECT_EQ(logits.num_rows, 3);
      EXPECT_EQ(logits.width, kExperts);
      EXPECT_EQ(assignments.num_rows, 3);
    }
    std::vector<int32_t> layers;
  };
  Recorder recorder;
  pipeline_->SetObserver(&recorder);
  ASSERT_TRUE(pipeline_->RunStep(Prompts({{1, 2, 3}}), &result_).ok());
  pipeline_->SetObserver(nullptr);
  ASSERT_TRUE(pipeline_->RunStep(Prompts({{1, 2, 3}}), &result_).ok());
  EXPECT_THAT(recorder.layers, ElementsAre(1, 2));
}

}  // namespace
}  // namespace moebius
