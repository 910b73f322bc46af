// SPDX-License-Identifier: Apache-2.0
#include "tests/router_service/fake_rows.h"

#include <algorithm>

#include "gtest/gtest.h"

#include "moebius/base/clock.h"
#include "moebius/base/hash.h"
#include "moebius/base/random.h"

namespace moebius {

KvPool FakeRows::kv_pool() const {
  KvPool pool = pool_;
  for (const auto& [id, tokens] : kv_) {
    pool.used_blocks += pool.BlocksFor(static_cast<int64_t>(tokens.size()));
  }
  return pool;
}

void FakeRows::FillLogits(const std::vector<int32_t>& tokens, float* logits) const {
  const uint64_t seed = Hash64(tokens.data(), tokens.size() * sizeof(int32_t));
  for (int64_t id = 0; id < vocab_size_; ++id) {
    logits[id] = 8 * RandomUnit(seed, static_cast<uint64_t>(id));
  }
}

void FakeRows::FillPhases(PhaseLog* phases) {
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (const StepPhase phase : {StepPhase::kAttention, StepPhase::kGate, StepPhase::kDispatch,
                                  StepPhase::kForward, StepPhase::kCombine}) {
      const absl::Duration begin = Clock::Monotonic().Now();
      phases->Add({phase, LayerId(layer), 0, begin, Clock::Monotonic().Now()});
    }
  }
}

absl::Status FakeRows::RunStep(const StepRequest& request, StepResult* result) {
  if (before_step) {
    if (const absl::Status status = before_step(request); !status.ok()) return status;
  }
  EXPECT_TRUE(ValidateStepPlan(request.plan).ok());
  EXPECT_EQ(static_cast<int64_t>(request.token_ids.size()), request.plan.num_rows);
  result->Begin(request.plan.num_rows);
  result->phases.Begin(request.wants_phases);
  FillPhases(&result->phases);
  result->logits.Reset(static_cast<int64_t>(request.logit_rows.size()), vocab_size_);
  int64_t logit_index = 0;
  for (const SessionRows& rows : request.plan.sessions) {
    std::vector<int32_t>& tokens = kv_[rows.session.value()];
    EXPECT_EQ(static_cast<int64_t>(tokens.size()), rows.position_begin);
    for (int64_t row = rows.row_begin; row < rows.row_end(); ++row) {
      const int32_t token = request.token_ids[static_cast<size_t>(row)];
      tokens.push_back(token);
      if (token == poison_token) result->nonfinite_rows.push_back(row);
      if (token == rejected_token) result->rejected_rows.push_back({row, LayerId(1), 3});
      if (token == crowded_token) {
        result->dropped_of_row.resize(static_cast<size_t>(request.plan.num_rows));
        result->rerouted_of_row.resize(static_cast<size_t>(request.plan.num_rows));
        result->dropped_of_row[static_cast<size_t>(row)] = 2;
        result->rerouted_of_row[static_cast<size_t>(row)] = 1;
      }
      if (std::binary_search(request.logit_rows.begin(), request.logit_rows.end(), row)) {
        FillLogits(tokens, result->logits.rows().row(logit_index++));
      }
    }
  }
  EXPECT_LE(kv_pool().used_blocks, pool_.num_blocks);
  steps.push_back(request);
  if (after_step) after_step(result);
  return absl::OkStatus();
}

}  // namespace moebius
