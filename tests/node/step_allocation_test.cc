// SPDX-License-Identifier: Apache-2.0
// What a whole step of embedded parts allocates once one as large has run: nothing.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "attention_service/attention_pipeline.h"
#include "expert_service/expert_pipeline.h"
#include "moebius/kernels/kernels.h"
#include "moebius/model/checkpoint.h"
#include "node/direct_ports.h"
#include "router_service/expert_load.h"
#include "router_service/row_pipeline.h"
#include "tests/support/counting_allocator.h"

namespace moebius {
namespace {

constexpr int kSessions = 3;
constexpr int64_t kPromptRows = 20;

// The parts of one process, wired as a node wires them.
struct World {
  World(const std::string& folder, int num_threads) : executor(num_threads) {
    checkpoint = *Checkpoint::Open(folder);
    const ModelConfig& config = checkpoint->config();
    placement = Placement::SingleService(
        PlacementShape::Make(config.gate.num_experts, config.moe_layers, config.num_shared_experts,
                             config.NumDenseSlices()));
    weights = *RouterWeights::Load(*checkpoint, BestKernels());
    attention =
        *AttentionPipeline::Load(*checkpoint, BestKernels(), executor, int64_t{64} << 20, {}, {});
    experts = *ExpertPipeline::Load(*checkpoint, placement->HeldBy(ServiceId(0)), BestKernels(),
                                    executor);
    attention_port = std::make_unique<DirectAttention>(attention.get());
    expert_port =
        std::make_unique<DirectExperts>(&executor, std::vector<ExpertPipeline*>{experts.get()});
    load = std::make_unique<ExpertLoad>(config.moe_layers, config.gate.num_experts);
    RowPipeline::Parts parts;
    parts.config = &config;
    parts.numerics = &checkpoint->numerics();
    parts.weights = &*weights;
    parts.kernels = &BestKernels();
    parts.executor = &executor;
    parts.attention = attention_port.get();
    parts.experts = expert_port.get();
    parts.placement = &*placement;
    parts.load = load.get();
    rows = std::make_unique<RowPipeline>(parts);
  }

  Executor executor;
  std::unique_ptr<const Checkpoint> checkpoint;
  std::optional<Placement> placement;
  std::optional<RouterWeights> weights;
  std::unique_ptr<AttentionPipeline> attention;
  std::unique_ptr<ExpertPipeline> experts;
  std::unique_ptr<DirectAttention> attention_port;
  std::unique_ptr<DirectExperts> expert_port;
  std::unique_ptr<ExpertLoad> load;
  std::unique_ptr<RowPipeline> rows;
};

// Rows of every session from `position` on, and logits of each session's last.
void FillStep(uint64_t number, int64_t position, int64_t num_rows, StepRequest* step) {
  step->plan.step = number;
  step->plan.sessions.clear();
  step->plan.num_rows = 0;
  step->token_ids.clear();
  step->logit_rows.clear();
  for (int session = 0; session < kSessions; ++session) {
    SessionRows rows;
    rows.session = SessionId(static_cast<uint64_t>(session) + 1);
    rows.row_begin = step->plan.num_rows;
    rows.num_rows = num_rows;
    rows.position_begin = position;
    rows.prompt_length = kPromptRows;
    step->plan.sessions.push_back(rows);
    step->plan.num_rows += num_rows;
    for (int64_t row = 0; row < num_rows; ++row) {
      step->token_ids.push_back(static_cast<int32_t>((position + row) * 37 + session) % 64);
    }
    step->logit_rows.push_back(step->plan.num_rows - 1);
  }
}

class StepAllocationTest : public ::testing::TestWithParam<const char*> {};

TEST_P(StepAllocationTest, AStepAllocatesNothingInSteadyState) {
  for (const int num_threads : {1, 2}) {
    World world(std::string(MOEBIUS_SOURCE_DIR) + GetParam(), num_threads);
    StepRequest step;
    StepResult result;
    uint64_t number = 1;
    // Memory for keys comes block by block when a position first needs it: all positions here lie
    // in the first block of their session.
    const auto count = [&](int64_t position, int64_t num_rows) {
      FillStep(number++, position, num_rows, &step);
      const int64_t before = NumAllocations();
      const absl::Status status = world.rows->RunStep(step, &result);
      const int64_t allocations = NumAllocations() - before;
      EXPECT_TRUE(status.ok()) << status;
      return allocations;
    };
    EXPECT_GT(count(0, kPromptRows), 0) << "the counter counts";
    int64_t position = kPromptRows;
    for (; position < kPromptRows + 4; ++position) count(position, 1);
    // Every 31st plan and choice of a gate is checked against all rules, by code that allocates;
    // and a second thread that gets its first task late takes its scratch then.
    int num_clean = 0;
    constexpr int kSteps = 40;
    for (int i = 0; i < kSteps; ++i, ++position) num_clean += count(position, 1) == 0 ? 1 : 0;
    EXPECT_GE(num_clean, kSteps / 2) << num_threads << " threads";
    EXPECT_LE(position, world.rows->kv_pool().block_tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StepAllocationTest,
                         ::testing::Values("/models/demo", "/tests/golden/data/qwen3_moe"));

}  // namespace
}  // namespace moebius
