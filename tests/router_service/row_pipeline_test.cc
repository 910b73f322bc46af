// SPDX-License-Identifier: Apache-2.0
#include "router_service/row_pipeline.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"
#include "moebius/base/random.h"
#include "moebius/routing/assignments.h"
#include "router_service/lead_meter.h"
#include "router_service/metrics.h"
#include "tests/router_service/fake_experts.h"
#include "tests/support/metric_values.h"

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

// What the gates of a step asked for, counted where they say it.
class GateWatch final : public StepObserver {
 public:
  void OnGate(LayerId layer, FloatRows, const Assignments& assignments) override {
    const auto base = static_cast<size_t>(layer.value()) * kExperts;
    std::fill_n(kept_in_step.begin() + static_cast<std::ptrdiff_t>(base), kExperts, 0);
    for (const int32_t id : assignments.expert_ids) {
      if (id == kNoExpert) continue;
      const size_t index = base + static_cast<size_t>(DemandedExpert(id));
      ++demand[index];
      ++(IsDropped(id) ? dropped : kept_in_step)[index];
    }
  }

  // Each [3 layers, kExperts].
  std::vector<int64_t> demand = std::vector<int64_t>(3 * kExperts);
  std::vector<int64_t> dropped = std::vector<int64_t>(3 * kExperts);
  std::vector<int64_t> kept_in_step = std::vector<int64_t>(3 * kExperts);
};

class RowPipelineTest : public testing::Test {
 protected:
  RowPipelineTest() {
    experts_.names = &calls_;
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

  void UseServices(int32_t num_services, int32_t num_replicas = 1) {
    const PlacementShape shape = PlacementShape::Make(kExperts, config_.moe_layers, 1, 3);
    StaticPlacementOptions options;
    options.num_services = num_services;
    options.expert_replicas = num_replicas;
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
    parts.load = &load_;
    parts.capacity = capacity_;
    parts.max_rows_per_service = max_rows_per_service_;
    parts.message_rows = 0;  // every service is asked, so that every one can fail
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

  // Whether all sets of weights of all layers are on services that may be asked.
  bool EveryIdHasOneOf(const std::vector<uint8_t>& usable) const {
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      for (int32_t id = 0; id < placement_.shape().NumIds(LayerId(layer)); ++id) {
        const auto services = placement_.Services(LayerId(layer), ExpertId(id));
        const bool has_one = std::any_of(services.begin(), services.end(), [&](ServiceId service) {
          return usable[static_cast<size_t>(service.value())] == 1;
        });
        if (!services.empty() && !has_one) return false;
      }
    }
    return true;
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
  FakeExperts experts_{kernels_};
  ExpertLoad load_{{false, true, true}, kExperts, /*has_capacity=*/true};
  // Of pipelines that UseServices makes.
  CapacityPolicy capacity_;
  int64_t max_rows_per_service_ = 0;
  std::unique_ptr<RowPipeline> pipeline_;
  StepResult result_;
};

TEST_F(RowPipelineTest, AsksItsPortsInTheOrderOfTheDrawing) {
  ASSERT_TRUE(pipeline_->RunStep(Prompts({{1, 2, 3}}), &result_).ok());
  EXPECT_THAT(calls_, ElementsAre("begin attention", "begin experts", "attention 0", "experts 0",
                                  "attention 1", "experts 1", "attention 2", "experts 2", "commit",
                                  "end experts"));
}

TEST_F(RowPipelineTest, NotesThePhasesOfEveryLayerWhereTheyAreWanted) {
  StepRequest request = Prompts({{1, 2, 3}});
  ASSERT_TRUE(pipeline_->RunStep(request, &result_).ok());
  EXPECT_THAT(result_.phases.intervals(), IsEmpty());
  request.wants_phases = true;
  const absl::Duration begin = Clock::Monotonic().Now();
  ASSERT_TRUE(pipeline_->RunStep(request, &result_).ok());
  const absl::Duration end = Clock::Monotonic().Now();
  const absl::Span<const PhaseInterval> phases = result_.phases.intervals();
  constexpr int kPhases = 5;
  ASSERT_EQ(phases.size(), static_cast<size_t>(kPhases * config_.num_layers));
  absl::Duration before = begin;
  double attention_seconds = 0;
  for (size_t index = 0; index < phases.size(); ++index) {
    EXPECT_EQ(phases[index].phase, static_cast<StepPhase>(index % kPhases));
    EXPECT_EQ(phases[index].layer, LayerId(static_cast<int32_t>(index / kPhases)));
    EXPECT_EQ(phases[index].round, 0);
    EXPECT_GE(phases[index].begin, before);
    EXPECT_GE(phases[index].end, phases[index].begin);
    before = phases[index].end;
    if (phases[index].phase != StepPhase::kAttention) continue;
    attention_seconds += absl::ToDoubleSeconds(phases[index].end - phases[index].begin);
  }
  EXPECT_LE(before, end);
  EXPECT_GT(attention_seconds, 0);
  EXPECT_LE(attention_seconds, result_.figures.attention_seconds) << "what the figures count too";
}

TEST_F(RowPipelineTest, NotesTheRoundsOfALayerAndWhereAStepFailed) {
  UseServices(4, 2);
  experts_.fails = [](int32_t layer, int32_t) {
    return layer == 1 ? std::set<int32_t>{0} : std::set<int32_t>{};
  };
  StepRequest request = Prompts({{1, 2, 3}, {4, 5, 6, 7}, {8}});
  request.wants_phases = true;
  ASSERT_TRUE(pipeline_->RunStep(request, &result_).ok());
  int64_t forwards = 0;
  for (const PhaseInterval& phase : result_.phases.intervals()) {
    if (phase.phase == StepPhase::kForward && phase.round > 0) ++forwards;
    EXPECT_TRUE(phase.round == 0 || phase.layer == LayerId(1));
  }
  EXPECT_EQ(forwards, result_.figures.resends);
  EXPECT_GE(forwards, 1);

  attention_.fail_at_layer = 1;
  ASSERT_FALSE(pipeline_->RunStep(request, &result_).ok());
  ASSERT_FALSE(result_.phases.intervals().empty());
  EXPECT_EQ(result_.phases.intervals().back().phase, StepPhase::kAttention);
  EXPECT_EQ(result_.phases.intervals().back().layer, LayerId(1));
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

// The residual is finite then; only rows whose logits are asked for can tell.
TEST_F(RowPipelineTest, ReportsRowsWhoseLogitsAreNotFinite) {
  weights_.final_norm.rows().row(0)[5] = ToBf16(std::numeric_limits<float>::quiet_NaN());
  StepRequest request = Prompts({{1, 2, 3}, {4, 5}});
  request.logit_rows = {2, 4};
  EXPECT_TRUE(pipeline_->RunStep(request, &result_).ok());
  EXPECT_THAT(result_.nonfinite_rows, ElementsAre(2, 4));
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
  EXPECT_EQ(result_.figures.combined, 5 * 2 * 2);
  EXPECT_EQ(result_.figures.conservation_errors, 0);
  EXPECT_EQ(result_.figures.dispatched_rows, 5 * 3);  // one service: once per row and layer
}

TEST_F(RowPipelineTest, MetricsShowTheTrafficThatWentThrough) {
  capacity_.factor = 1;
  UseServices(3, 2);
  LeadMeter meter;
  GateWatch watch;
  pipeline_->SetObserver(&watch);
  weights_.embedding.rows().row(20)[5] = ToBf16(std::numeric_limits<float>::quiet_NaN());
  int64_t step = 0;
  for (const auto& prompts :
       std::vector<std::vector<std::vector<int32_t>>>{{{1, 2, 3}, {4, 5, 6, 7}, {8}},
                                                      {{20, 4}, {9, 10, 11}, {5, 20}},
                                                      {{12}, {13}, {14, 15}}}) {
    // A service that dies in between adds rows that were sent again, and no load.
    experts_.fails = [step](int32_t layer, int32_t number) {
      return step == 1 && layer == 2 && number == 0 ? std::set<int32_t>{1} : std::set<int32_t>{};
    };
    meter.OnStep(pipeline_->RunStep(Prompts(prompts), &result_), result_);
    ++step;
  }
  pipeline_->SetObserver(nullptr);
  // Neither a dry run nor a step that fails is load.
  StepRequest dry = Prompts({{1, 2}});
  dry.purpose = StepPurpose::kDryRun;
  ASSERT_TRUE(pipeline_->RunStep(dry, &result_).ok());
  attention_.fail_at_layer = 2;
  meter.OnStep(pipeline_->RunStep(Prompts({{1, 2, 3}}), &result_), result_);

  Registry registry;
  const auto handle = registry.AddCollector([&](MetricWriter& writer) {
    meter.WriteMetrics(writer);
    WriteExpertLoadMetrics(load_.Read(), ExpertDetail::kAuto, writer);
  });
  const std::string scrape = registry.Scrape();
  const auto sum = [](const std::vector<int64_t>& counts) {
    return static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  };
  const double demand = sum(watch.demand), dropped = sum(watch.dropped);
  ASSERT_GT(dropped, 0);
  // 8 + 7 + 4 rows of two choices in two layers, without two rows of the second step.
  EXPECT_EQ(demand, (19 - 2) * 2 * 2);
  EXPECT_EQ(ValueOf(scrape, "moebius_assignments_total{stage=\"routed\"}"), 19 * 2 * 2);
  EXPECT_EQ(ValueOf(scrape, "moebius_assignments_total{stage=\"dispatched\"}"), demand - dropped);
  EXPECT_EQ(ValueOf(scrape, "moebius_assignments_total{stage=\"combined\"}"), demand - dropped);
  EXPECT_EQ(ValueOf(scrape, "moebius_assignments_dropped_total{reason=\"capacity\"}"), dropped);
  EXPECT_EQ(ValueOf(scrape, "moebius_assignments_dropped_total{reason=\"nonfinite\"}"), 2 * 2 * 2);
  EXPECT_EQ(ValueOf(scrape, "moebius_nonfinite_rows_total{stage=\"step\"}"), 2);
  EXPECT_EQ(ValueOf(scrape, "moebius_token_conservation_errors_total"), 0);
  EXPECT_GT(ValueOf(scrape, "moebius_recomputed_total{what=\"rows\"}"), 0);
  for (const int layer : {1, 2}) {
    double hottest = 0, total = 0;
    int active = 0;
    for (int expert = 0; expert < kExperts; ++expert) {
      const auto index = static_cast<size_t>(layer * kExperts + expert);
      const std::string labels = absl::StrCat("{layer=\"", layer, "\",expert=\"", expert, "\"}");
      const auto wanted = static_cast<double>(watch.demand[index]);
      EXPECT_EQ(ValueOf(scrape, "moebius_expert_assignments_total" + labels), wanted) << labels;
      EXPECT_EQ(ValueOf(scrape, "moebius_expert_assignments_dropped_total" + labels),
                static_cast<double>(watch.dropped[index]))
          << labels;
      hottest = std::max(hottest, wanted);
      total += wanted;
      active += watch.kept_in_step[index] > 0 ? 1 : 0;
    }
    const std::string group = absl::StrCat("{layer_group=\"", layer, "\"}");
    EXPECT_NEAR(ValueOf(scrape, "moebius_expert_load_max_over_mean" + group),
                hottest / (total / kExperts), 1e-6);
    EXPECT_EQ(ValueOf(scrape, "moebius_distinct_experts_active" + group), active);
  }
  EXPECT_EQ(MetricsErrors(scrape), 0);
}

TEST_F(RowPipelineTest, GoesOnInWavesWithTheSameBitsAndCounts) {
  const StepRequest request = Prompts({{1, 2, 3}, {4, 5, 6, 7}, {8}});
  UseServices(3, 2);
  const std::vector<float> expected = LogitsOf(request, 5);
  const StepFigures whole = result_.figures;
  max_rows_per_service_ = 3;
  UseServices(3, 2);
  experts_.calls.clear();
  EXPECT_EQ(LogitsOf(request, 5), expected);
  EXPECT_EQ(experts_.calls.size(), 3u * 3u) << "8 rows of three layers";
  EXPECT_EQ(result_.figures.assignments, whole.assignments);
  EXPECT_EQ(result_.figures.combined, whole.combined);
}

TEST_F(RowPipelineTest, GivesTheSameBitsWhicheverServiceFailsInWhicheverLayer) {
  const StepRequest request = Prompts({{1, 2, 3}, {4, 5, 6, 7}, {8}});
  const std::vector<float> expected = LogitsOf(request, 5);
  UseServices(4, 2);
  int64_t resends = 0;
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    for (int32_t service = 0; service < 4; ++service) {
      experts_.fails = [&](int32_t at, int32_t) {
        return at == layer ? std::set<int32_t>{service} : std::set<int32_t>{};
      };
      EXPECT_EQ(LogitsOf(request, 5), expected) << "layer " << layer << " service " << service;
      EXPECT_THAT(result_.nonfinite_rows, IsEmpty());
      resends += result_.figures.resends;
      EXPECT_EQ(result_.figures.assignments, 8 * 2 * 2);
      EXPECT_EQ(result_.figures.combined, 8 * 2 * 2) << "what was lost is served once";
    }
  }
  EXPECT_GE(resends, 9);
}

TEST_F(RowPipelineTest, GivesTheSameBitsWhicheverReplicasMayServe) {
  const StepRequest request = Prompts({{1, 2, 3}, {4, 5, 6, 7}, {8}});
  const std::vector<float> expected = LogitsOf(request, 5);
  for (const int32_t replicas : {2, 3}) {
    UseServices(4, replicas);
    int served = 0;
    std::vector<int64_t> rows_of(4);
    for (uint32_t mask = 1; mask < 16; ++mask) {
      SCOPED_TRACE(testing::Message() << replicas << " replicas, services " << mask);
      experts_.usable.clear();
      for (uint32_t service = 0; service < 4; ++service) {
        experts_.usable.push_back(static_cast<uint8_t>(mask >> service & 1));
      }
      experts_.calls.clear();
      const bool can_serve = EveryIdHasOneOf(experts_.usable);
      ASSERT_EQ(pipeline_->RunStep(request, &result_).ok(), can_serve);
      if (!can_serve) continue;
      ++served;
      const auto logits = FloatRows(result_.logits.rows()).span(5);
      EXPECT_EQ(std::vector<float>(logits.begin(), logits.end()), expected);
      for (const FakeExperts::Call& call : experts_.calls) {
        for (size_t service = 0; service < 4; ++service) {
          EXPECT_TRUE(call.service_rows[service] == 0 || experts_.usable[service] == 1);
          rows_of[service] += call.service_rows[service];
        }
      }
    }
    EXPECT_GE(served, replicas == 2 ? 2 : 5) << "any one may be missing";
    for (const int64_t rows : rows_of) EXPECT_GT(rows, 0) << "every service had its turn";
  }
}

TEST_F(RowPipelineTest, AbortsTheStepWhenTheLastReplicaIsGone) {
  UseServices(2, 1);
  experts_.fails = [](int32_t layer, int32_t) {
    return layer == 2 ? std::set<int32_t>{1} : std::set<int32_t>{};
  };
  const absl::Status status = pipeline_->RunStep(Prompts({{1, 2, 3}}), &result_);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::ContainsRegex("layer 2: no usable service has expert.* [4-7]"));
  EXPECT_EQ(calls_.back(), "abort");
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

int64_t DemandOf(const ExpertLoad& load) {
  const std::vector<int64_t> demand = load.Read().demand;
  return std::accumulate(demand.begin(), demand.end(), int64_t{0});
}

TEST_F(RowPipelineTest, CountsTheLoadOfStepsThatServeAndSucceed) {
  StepRequest request = Prompts({{1, 2, 3}});
  request.purpose = StepPurpose::kDryRun;
  ASSERT_TRUE(pipeline_->RunStep(request, &result_).ok());
  EXPECT_EQ(DemandOf(load_), 0);
  request.purpose = StepPurpose::kServe;
  attention_.fail_at_layer = 2;  // after the gate of layer 1
  ASSERT_FALSE(pipeline_->RunStep(request, &result_).ok());
  EXPECT_EQ(DemandOf(load_), 0);
  attention_.fail_at_layer = -1;
  ASSERT_TRUE(pipeline_->RunStep(request, &result_).ok());
  EXPECT_EQ(DemandOf(load_), 3 * 2 * 2);  // tokens, top-2, layers with experts
  EXPECT_EQ(DemandOf(load_), result_.figures.assignments);
}

TEST_F(RowPipelineTest, ForwardsRowsOfOneLayerAndCountsThem) {
  const auto rows = RandomRows(5, kHidden, 1, kSeed);
  RowBatch<Bf16> out(5, kHidden);
  RowBatch<Bf16> alone(1, kHidden);
  ForwardResult forward;
  ASSERT_TRUE(pipeline_->ForwardRows(1, LayerId(2), rows.rows(), out.rows(), &forward).ok());
  EXPECT_EQ(forward.figures.assignments, 10);
  EXPECT_EQ(forward.figures.combined, 10);
  EXPECT_EQ(DemandOf(load_), 10);
  UseServices(3);
  for (int64_t row = 0; row < 5; ++row) {
    ASSERT_TRUE(pipeline_
                    ->ForwardRows(2, LayerId(2), Bf16Rows(rows.rows()).Slice(row, row + 1),
                                  alone.rows(), &forward)
                    .ok());
    EXPECT_EQ(std::memcmp(alone.rows().row(0), out.rows().row(row), kHidden * sizeof(Bf16)), 0);
  }
}

TEST_F(RowPipelineTest, RefusesToForwardARowThatIsNotFinite) {
  auto rows = RandomRows(3, kHidden, 1, kSeed);
  rows.rows().row(1)[5] = ToBf16(std::numeric_limits<float>::quiet_NaN());
  RowBatch<Bf16> out(3, kHidden);
  ForwardResult forward;
  const absl::Status status =
      pipeline_->ForwardRows(1, LayerId(1), rows.rows(), out.rows(), &forward);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("row 1"));
  EXPECT_EQ(DemandOf(load_), 0);
}

}  // namespace
}  // namespace moebius
