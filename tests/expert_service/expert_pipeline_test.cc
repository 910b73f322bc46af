// SPDX-License-Identifier: Apache-2.0
#include "expert_service/expert_pipeline.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "moebius/kernels/math.h"
#include "moebius/kernels/reference/block_sum.h"
#include "moebius/model/random_checkpoint.h"
#include "moebius/routing/combine.h"
#include "moebius/routing/dispatch_plan.h"

namespace moebius {
namespace {

using testing::HasSubstr;

// A small model on disk, made once: layer 0 dense with 3 slices, the last one narrower; layers 1
// and 2 with 8 experts and two shared slices.
class ExpertPipelineTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = absl::StrCat(testing::TempDir(), "/expert_pipeline_test.", getpid());
    RandomCheckpointOptions options;
    options.num_layers = 3;
    options.num_shared_experts = 2;
    options.dense_intermediate_size = 80;  // 32 + 32 + 16
    options.moe_intermediate_size = 32;
    options.num_experts = 8;
    ASSERT_TRUE(WriteRandomCheckpoint(folder_, options).ok());
    absl::StatusOr<std::unique_ptr<const Checkpoint>> opened = Checkpoint::Open(folder_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = std::move(*opened);
  }
  static void TearDownTestSuite() {
    checkpoint_.reset();
    std::filesystem::remove_all(folder_);
  }

  static PlacementShape Shape() {
    const ModelConfig& config = checkpoint_->config();
    return PlacementShape::Make(config.gate.num_experts, config.moe_layers,
                                config.num_shared_experts, config.NumDenseSlices());
  }

  static std::unique_ptr<ExpertPipeline> Load(const std::vector<HeldExpert>& held,
                                              Executor& executor) {
    auto loaded = ExpertPipeline::Load(*checkpoint_, held, BestKernels(), executor);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return *std::move(loaded);
  }

  static LayerRule Rule(int32_t layer) {
    return LayerRule{LayerId(layer), 8, 4, layer == 0 ? 3 : 2};
  }

  static std::string folder_;
  static std::unique_ptr<const Checkpoint> checkpoint_;
};
std::string ExpertPipelineTest::folder_;
std::unique_ptr<const Checkpoint> ExpertPipelineTest::checkpoint_;

RowBatch<Bf16> RandomRows(uint64_t seed, int64_t num_rows, int64_t width) {
  Random random(seed);
  RowBatch<Bf16> rows(num_rows, width);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (Bf16& value : rows.rows().span(row)) value = ToBf16(random.Normal());
  }
  return rows;
}

Assignments AssignmentsOf(uint64_t seed, int64_t num_rows, int32_t num_experts, int32_t top_k) {
  Random random(seed);
  Assignments assignments;
  assignments.Reset(num_rows, top_k);
  for (int64_t row = 0; row < num_rows; ++row) {
    const uint64_t first = random.Below(static_cast<uint64_t>(num_experts));
    for (int32_t choice = 0; choice < top_k; ++choice) {
      const auto place = static_cast<size_t>(row * top_k + choice);
      assignments.expert_ids[place] =
          static_cast<int32_t>((first + static_cast<uint64_t>(choice) * 3) % 8);
      assignments.weights[place] = random.Unit();
    }
  }
  return assignments;
}

// y of one expert or slice for one row, block sum by block sum.
std::vector<Bf16> ReferenceExpert(const Checkpoint& checkpoint, LayerId layer, ExpertId id,
                                  absl::Span<const Bf16> row) {
  const ExpertWeights weights = *checkpoint.ExpertSlice(layer, id);
  std::vector<Bf16> product, out;
  for (int64_t i = 0; i < weights.gate.num_rows(); ++i) {
    product.push_back(
        reference::SwiGlu(reference::BlockSum(row, weights.gate.rows().bf16.span(i), 0),
                          reference::BlockSum(row, weights.up.rows().bf16.span(i), 0)));
  }
  for (int64_t h = 0; h < weights.down.num_rows(); ++h) {
    out.push_back(ToBf16(reference::BlockSum(product, weights.down.rows().bf16.span(h), 0)));
  }
  return out;
}

std::vector<uint16_t> ReferenceLayer(const Checkpoint& checkpoint, const LayerRule& rule,
                                     const Assignments& assignments, Bf16Rows rows) {
  std::vector<uint16_t> bits;
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    std::map<int32_t, std::vector<Bf16>> outputs;
    const auto output = [&](int32_t id) -> const std::vector<Bf16>& {
      if (outputs.count(id) == 0) {
        outputs[id] = ReferenceExpert(checkpoint, rule.layer, ExpertId(id), rows.span(row));
      }
      return outputs[id];
    };
    for (size_t h = 0; h < static_cast<size_t>(rows.width); ++h) {
      float total = 0;
      for (int32_t group = 0; group < rule.num_combine_groups; ++group) {
        float chain = 0;
        bool reached = false;
        for (int32_t choice = 0; choice < assignments.top_k; ++choice) {
          const auto place = static_cast<size_t>(choice);
          const int32_t id = assignments.RowIds(row)[place];
          if (rule.CombineGroup(id) != group) continue;
          reached = true;
          chain =
              FusedMultiplyAdd(assignments.RowWeights(row)[place], ToFloat(output(id)[h]), chain);
        }
        if (reached) total += ToFloat(ToBf16(chain));
      }
      for (int32_t slice = 0; slice < rule.num_slices; ++slice) {
        total += ToFloat(output(rule.num_experts + slice)[h]);
      }
      bits.push_back(ToBf16(total).bits);
    }
  }
  return bits;
}

// y of one expert for three rows.
std::vector<uint16_t> ExpertBits(ExpertPipeline& pipeline, LayerId layer, ExpertId id,
                                 Executor& executor) {
  DispatchPlan plan;
  Assignments assignments;
  assignments.Reset(3, 1);
  for (int32_t& chosen : assignments.expert_ids) chosen = id.value();
  assignments.weights.assign(3, 1.0f);
  const Placement placement =
      *Placement::Static(PlacementShape::Make(8, {true, true, true}, 0, 0), {.num_services = 1});
  EXPECT_TRUE(
      BuildDispatchPlan(LayerRule{layer, 8, 4, 0}, assignments, placement, DispatchLimits(), &plan)
          .ok());
  const ServiceDispatch& dispatch = plan.services()[0];
  RowBatch<Bf16> replies(dispatch.num_reply_rows, pipeline.hidden_size());
  const RowBatch<Bf16> rows = RandomRows(8, 3, pipeline.hidden_size());
  executor.Run(
      [&] { EXPECT_TRUE(pipeline.Forward(layer, dispatch, rows.rows(), replies.rows()).ok()); });
  std::vector<uint16_t> bits;
  for (int64_t row = 0; row < replies.num_rows(); ++row) {
    for (const Bf16 value : replies.rows().span(row)) bits.push_back(value.bits);
  }
  return bits;
}

// One layer through one pipeline per service.
class Services {
 public:
  Services(const Checkpoint& checkpoint, const Placement& placement, int threads)
      : placement_(placement), executor_(threads) {
    for (int32_t s = 0; s < placement.num_services(); ++s) {
      auto loaded = ExpertPipeline::Load(checkpoint, placement.HeldBy(ServiceId(s)), BestKernels(),
                                         executor_);
      EXPECT_TRUE(loaded.ok()) << loaded.status();
      pipelines_.push_back(*std::move(loaded));
    }
  }

  std::vector<uint16_t> Forward(const LayerRule& rule, const Assignments& assignments,
                                Bf16Rows rows) {
    EXPECT_TRUE(BuildDispatchPlan(rule, assignments, placement_, DispatchLimits(), &plan_).ok());
    EXPECT_TRUE(ValidateDispatchPlan(plan_, assignments, placement_, DispatchLimits()).ok());
    std::vector<RowBatch<Bf16>> replies;
    std::vector<MutableBf16Rows> views;
    for (const ServiceDispatch& dispatch : plan_.services()) {
      replies.emplace_back(dispatch.num_reply_rows, rows.width);
      views.push_back(replies.back().rows());
    }
    RowBatch<Bf16> out(rows.num_rows, rows.width);
    executor_.Run([&] {
      for (size_t s = 0; s < pipelines_.size(); ++s) {
        const absl::Status status =
            pipelines_[s]->Forward(rule.layer, plan_.services()[s], rows, views[s]);
        EXPECT_TRUE(status.ok()) << status;
      }
      Combine(executor_, BestKernels(), plan_, views, out.rows());
    });
    std::vector<uint16_t> bits;
    for (int64_t row = 0; row < out.num_rows(); ++row) {
      for (const Bf16 value : out.rows().span(row)) bits.push_back(value.bits);
    }
    return bits;
  }

 private:
  const Placement placement_;
  Executor executor_;
  DispatchPlan plan_;
  std::vector<std::unique_ptr<ExpertPipeline>> pipelines_;
};

TEST_F(ExpertPipelineTest, GivesTheReferencesBitsOnAnyNumberOfServices) {
  const int64_t width = checkpoint_->config().hidden_size;
  const RowBatch<Bf16> rows = RandomRows(1, 9, width);
  for (const auto& [services, replicas, threads] : std::vector<std::tuple<int, int, int>>{
           {1, 1, 1}, {2, 1, 2}, {3, 2, 1}, {5, 2, 3}, {8, 3, 2}}) {
    SCOPED_TRACE(testing::Message() << services << " services, " << replicas << " replicas");
    Services cluster(*checkpoint_,
                     *Placement::Static(Shape(), {.num_services = services,
                                                  .expert_replicas = replicas,
                                                  .shared_slice_replicas = replicas}),
                     threads);
    for (const int32_t layer : {0, 1, 2}) {
      for (const int64_t num_rows : {0, 1, 9}) {
        const Assignments assignments = AssignmentsOf(2, num_rows, 8, layer == 0 ? 0 : 2);
        const Bf16Rows some = rows.rows().Slice(0, num_rows);
        ASSERT_EQ(cluster.Forward(Rule(layer), assignments, some),
                  ReferenceLayer(*checkpoint_, Rule(layer), assignments, some))
            << "layer " << layer << " rows " << num_rows;
      }
    }
  }
}

TEST_F(ExpertPipelineTest, ARowsBitsDoNotDependOnTheOtherRows) {
  const int64_t width = checkpoint_->config().hidden_size;
  const RowBatch<Bf16> rows = RandomRows(3, 49, width);
  Services cluster(*checkpoint_, Placement::SingleService(Shape()), 2);
  const Assignments together = AssignmentsOf(4, 49, 8, 2);
  const std::vector<uint16_t> all = cluster.Forward(Rule(1), together, rows.rows());
  for (const int64_t row : {0, 17, 48}) {
    Assignments alone;
    alone.Reset(1, 2);
    for (size_t choice = 0; choice < 2; ++choice) {
      alone.expert_ids[choice] = together.RowIds(row)[choice];
      alone.weights[choice] = together.RowWeights(row)[choice];
    }
    const std::vector<uint16_t> one =
        cluster.Forward(Rule(1), alone, rows.rows().Slice(row, row + 1));
    EXPECT_EQ(one,
              std::vector<uint16_t>(all.begin() + row * width, all.begin() + (row + 1) * width));
  }
}

TEST_F(ExpertPipelineTest, InQuantaItGivesTheSameBitsAndSoDoesWhatRunsInItsPauses) {
  constexpr int64_t kManyRows = 3000;
  const int64_t width = checkpoint_->config().hidden_size;
  const RowBatch<Bf16> rows = RandomRows(11, kManyRows, width);
  const Placement placement = Placement::SingleService(Shape());
  Executor executor(2);
  const std::unique_ptr<ExpertPipeline> pipeline = Load(placement.HeldBy(ServiceId(0)), executor);
  DispatchPlan many, few;
  for (const auto& [num_rows, plan] : {std::pair(kManyRows, &many), std::pair(int64_t{3}, &few)}) {
    ASSERT_TRUE(BuildDispatchPlan(Rule(1), AssignmentsOf(12, num_rows, 8, 2), placement,
                                  DispatchLimits(), plan)
                    .ok());
  }
  const auto forward = [&](const DispatchPlan& plan, const ExpertPipeline::Pause& pause) {
    const ServiceDispatch& dispatch = plan.services()[0];
    RowBatch<Bf16> replies(dispatch.num_reply_rows, width);
    executor.Run([&] {
      EXPECT_TRUE(pipeline->Forward(LayerId(1), dispatch, rows.rows(), replies.rows(), pause).ok());
    });
    std::vector<uint16_t> bits;
    for (int64_t row = 0; row < replies.num_rows(); ++row) {
      for (const Bf16 value : replies.rows().span(row)) bits.push_back(value.bits);
    }
    return bits;
  };
  const std::vector<uint16_t> whole = forward(many, nullptr), small = forward(few, nullptr);
  int num_pauses = 0;
  const std::vector<uint16_t> cut = forward(many, [&] {
    ++num_pauses;
    EXPECT_EQ(forward(few, nullptr), small);
  });
  EXPECT_GE(num_pauses, 2);
  EXPECT_EQ(cut, whole);
  // A pass that is one quantum has nowhere to pause.
  EXPECT_EQ(forward(few, [] { FAIL(); }), small);
}

TEST_F(ExpertPipelineTest, LoadsOnlyWhatItHoldsAndSaysWhatItLacks) {
  Executor executor(1);
  const std::vector<HeldExpert> held = {
      {LayerId(1), ExpertId(2)}, {LayerId(1), ExpertId(2)}, {LayerId(0), ExpertId(10)}};
  const std::unique_ptr<ExpertPipeline> pipeline = Load(held, executor);
  EXPECT_EQ(pipeline->num_held(), 2);
  EXPECT_TRUE(pipeline->Holds(LayerId(0), ExpertId(10)));
  EXPECT_FALSE(pipeline->Holds(LayerId(2), ExpertId(2)));
  EXPECT_EQ(pipeline->weight_bytes(), *ExpertPipeline::PackedBytes(*checkpoint_, held));

  const int64_t width = checkpoint_->config().hidden_size;
  const RowBatch<Bf16> rows = RandomRows(5, 1, width);
  Assignments assignments = AssignmentsOf(6, 1, 8, 2);
  assignments.expert_ids = {2, 5};
  DispatchPlan plan;
  ASSERT_TRUE(BuildDispatchPlan(Rule(1), assignments, Placement::SingleService(Shape()),
                                DispatchLimits(), &plan)
                  .ok());
  RowBatch<Bf16> replies(plan.services()[0].num_reply_rows, width);
  absl::Status status;
  executor.Run([&] {
    status = pipeline->Forward(LayerId(1), plan.services()[0], rows.rows(), replies.rows());
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "NOT_HELD: layer 1, expert 5, 8, 9");
}

TEST_F(ExpertPipelineTest, RefusesShapesThatDoNotFit) {
  Executor executor(1);
  const Placement placement = Placement::SingleService(Shape());
  const std::unique_ptr<ExpertPipeline> pipeline = Load(placement.HeldBy(ServiceId(0)), executor);
  const int64_t width = checkpoint_->config().hidden_size;
  DispatchPlan plan;
  ASSERT_TRUE(
      BuildDispatchPlan(Rule(1), AssignmentsOf(7, 3, 8, 2), placement, DispatchLimits(), &plan)
          .ok());
  const ServiceDispatch& dispatch = plan.services()[0];
  const RowBatch<Bf16> rows = RandomRows(8, 3, width);
  RowBatch<Bf16> replies(dispatch.num_reply_rows, width);
  executor.Run([&] {
    EXPECT_EQ(
        pipeline->Forward(LayerId(1), dispatch, rows.rows().Slice(0, 2), replies.rows()).code(),
        absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(pipeline
                  ->Forward(LayerId(1), dispatch, rows.rows(),
                            replies.rows().Slice(0, replies.num_rows() - 1))
                  .code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(
        pipeline->Forward(LayerId(1), dispatch, rows.rows().Columns(0, width - 1), replies.rows())
            .code(),
        absl::StatusCode::kInvalidArgument);
  });
}

TEST_F(ExpertPipelineTest, LoadsOnManyThreadsWhatOneThreadLoadsAndTellsTheCaller) {
  const std::vector<HeldExpert> held = {{LayerId(0), ExpertId(8)}, {LayerId(1), ExpertId(0)},
                                        {LayerId(1), ExpertId(5)}, {LayerId(1), ExpertId(9)},
                                        {LayerId(2), ExpertId(3)}, {LayerId(2), ExpertId(8)}};
  const std::thread::id caller = std::this_thread::get_id();
  std::vector<std::vector<uint16_t>> outputs;
  for (const int num_threads : {1, 2, 4, 16}) {
    Executor executor(num_threads);
    std::vector<int64_t> told;
    const auto loaded = ExpertPipeline::Load(
        *checkpoint_, held, BestKernels(), executor, [&](int64_t bytes, int64_t total) {
          EXPECT_EQ(std::this_thread::get_id(), caller);
          EXPECT_EQ(total, *ExpertPipeline::PackedBytes(*checkpoint_, held));
          told.push_back(bytes);
        });
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ((*loaded)->num_held(), 6);
    ASSERT_EQ(told.size(), 6u);
    EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
    EXPECT_EQ(told.back(), (*loaded)->weight_bytes());
    EXPECT_EQ(told.back(), *ExpertPipeline::PackedBytes(*checkpoint_, held));
    outputs.push_back(ExpertBits(**loaded, LayerId(1), ExpertId(5), executor));
  }
  for (const std::vector<uint16_t>& bits : outputs) EXPECT_EQ(bits, outputs[0]);
}

TEST_F(ExpertPipelineTest, SaysWhichFileCannotBeReadWhenOneOfManyThreadsFails) {
  const std::string folder = folder_ + ".cut";
  std::filesystem::copy(folder_, folder, std::filesystem::copy_options::recursive);
  const auto checkpoint = Checkpoint::Open(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::string file = folder + "/model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  std::vector<HeldExpert> held;
  for (int32_t id = 0; id < 8; ++id) held.push_back({LayerId(2), ExpertId(id)});
  Executor executor(4);
  const auto loaded = ExpertPipeline::Load(**checkpoint, held, BestKernels(), executor);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("model.safetensors"));
  std::filesystem::remove_all(folder);
}

TEST_F(ExpertPipelineTest, RefusesExpertsThatTheModelLacks) {
  Executor executor(1);
  for (const HeldExpert& held : std::vector<HeldExpert>{{LayerId(0), ExpertId(0)},
                                                        {LayerId(0), ExpertId(11)},
                                                        {LayerId(1), ExpertId(10)},
                                                        {LayerId(3), ExpertId(0)},
                                                        {LayerId(1), ExpertId(-1)}}) {
    const auto loaded = ExpertPipeline::Load(*checkpoint_, {held}, BestKernels(), executor);
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("does not exist"));
  }
}

}  // namespace
}  // namespace moebius
