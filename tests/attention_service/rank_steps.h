// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

#include "moebius/base/executor.h"
#include "router_service/remote_attention.h"
#include "tests/attention_service/attention_fixture.h"

// Steps of one session of kLength positions through two layers, over the router's port.

namespace moebius::testing {

inline constexpr int64_t kPrompt = 380;
inline constexpr int64_t kLength = 400;
inline constexpr SessionId kSession{5};

inline uint64_t NextStep() {
  static std::atomic<uint64_t> step{0};
  return ++step;
}

inline StepPlan PlanOf(int64_t begin, int64_t end) {
  return {.step = NextStep(),
          .sessions = {{.session = kSession,
                        .num_rows = end - begin,
                        .position_begin = begin,
                        .prompt_length = kPrompt}},
          .num_rows = end - begin};
}

/// One step of the session through both layers; the second layer's rows into `out`.
inline absl::Status RunStep(RemoteAttention& port, Bf16Rows rows, int64_t begin, int64_t end,
                            MutableBf16Rows out) {
  absl::Status status = port.BeginStep(PlanOf(begin, end));
  for (int32_t layer = 0; layer < 2 && status.ok(); ++layer) {
    status = port.RunLayer(LayerId(layer), rows.Slice(begin, end), out.Slice(begin, end));
  }
  if (status.ok()) status = port.CommitStep();
  if (!status.ok()) port.AbortStep();
  return status;
}

inline RowBatch<Bf16> RunInSteps(RemoteAttention& port, Bf16Rows rows,
                                 const std::vector<int64_t>& ends) {
  RowBatch<Bf16> out(rows.num_rows, rows.width);
  int64_t begin = 0;
  for (const int64_t end : ends) {
    const absl::Status status = RunStep(port, rows, begin, end, out.rows());
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) break;
    begin = end;
  }
  return out;
}

inline std::vector<int64_t> StepEnds() {
  std::vector<int64_t> ends = {100, kPrompt};
  for (int64_t end = kPrompt + 1; end <= kLength; ++end) ends.push_back(end);
  return ends;
}

inline RowBatch<Bf16> RunAlone(const AttentionCase& model, Bf16Rows rows) {
  Executor executor(2);
  const auto pipeline = MakePipeline(model, BestKernels(), executor);
  return RunStep(*pipeline, kSession, rows, 0, rows.num_rows, kPrompt, 1);
}

}  // namespace moebius::testing
