// SPDX-License-Identifier: Apache-2.0
#include "expert_service/quanta.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/tensor/buffer.h"

namespace moebius {
namespace {

constexpr int64_t kHidden = 64;
constexpr int64_t kWidth = 32;
constexpr int64_t kElements = 3 * kHidden * kWidth;  // multiply-adds of a row

class QuantumPlanTest : public testing::Test {
 protected:
  QuantumPlanTest() : gate_(kWidth, kHidden), down_(kHidden, kWidth) {
    expert_ = PackedExpert::Pack(gate_.rows(), gate_.rows(), down_.rows(), PairOrder::kAdjacent);
    std::iota(indices_.begin(), indices_.end(), 0);
  }

  // One batch per count of rows.
  void Cut(const std::vector<int64_t>& counts) {
    batches_.clear();
    int64_t begin = 0;
    for (const int64_t count : counts) {
      ExpertBatch batch;
      batch.weights = &expert_;
      batch.row_indices = absl::MakeConstSpan(indices_).subspan(static_cast<size_t>(begin),
                                                                static_cast<size_t>(count));
      batch.out = out_.rows().Slice(begin, begin + count);
      batches_.push_back(batch);
      begin += count;
    }
    plan_.Cut(batches_);
  }

  // Every row once, in order, with its own place in the output; what each quantum costs.
  std::vector<int64_t> CheckedWork(int64_t num_rows) {
    std::vector<int64_t> work;
    int64_t next = 0;
    for (size_t quantum = 0; quantum < plan_.num_quanta(); ++quantum) {
      work.push_back(0);
      for (const ExpertBatch& part : plan_.Quantum(quantum)) {
        EXPECT_EQ(part.out.row(0), out_.rows().row(next));
        EXPECT_EQ(part.out.num_rows, static_cast<int64_t>(part.row_indices.size()));
        for (const int32_t index : part.row_indices) EXPECT_EQ(index, next++);
        work.back() += WorkOf(part);
      }
    }
    EXPECT_EQ(next, num_rows);
    return work;
  }

  RowBatch<Bf16> gate_, down_;
  PackedExpert expert_;
  std::vector<int32_t> indices_ = std::vector<int32_t>(20000);
  RowBatch<Bf16> out_{20000, kHidden};
  std::vector<ExpertBatch> batches_;
  QuantumPlan plan_;
};

TEST_F(QuantumPlanTest, CountsTheWeightsOfFewRowsAsEight) {
  Cut({1, 8, 9});
  EXPECT_EQ(CheckedWork(18), std::vector<int64_t>{(8 + 8 + 9) * kElements});
}

TEST_F(QuantumPlanTest, CutsByExpertsOnly) {
  const int64_t rows_at_most = plan_.max_work() / kElements;
  Cut({rows_at_most - 9, 1, 1, 0, 2 * rows_at_most + 5, 3});
  const std::vector<int64_t> work = CheckedWork(3 * rows_at_most + 1);
  EXPECT_EQ(work, (std::vector<int64_t>{(rows_at_most - 1) * kElements, 8 * kElements,
                                        (2 * rows_at_most + 5) * kElements, 8 * kElements}));
}

TEST_F(QuantumPlanTest, LearnsHowFastItRuns) {
  const int64_t before = plan_.max_work();
  for (int i = 0; i < 40; ++i) plan_.OnRun(100 * kElements, absl::Milliseconds(50));
  EXPECT_LT(plan_.max_work(), before);
  Cut({100, 100});
  EXPECT_EQ(plan_.num_quanta(), 2u);
  CheckedWork(200);
  for (int i = 0; i < 40; ++i) plan_.OnRun(100 * kElements, absl::Microseconds(1));
  EXPECT_GT(plan_.max_work(), before);
  Cut({20000 - 8, 8});
  EXPECT_EQ(plan_.num_quanta(), 1u);
  plan_.OnRun(1, absl::ZeroDuration());
}

TEST_F(QuantumPlanTest, NothingIsNoQuantum) {
  Cut({});
  EXPECT_EQ(plan_.num_quanta(), 0u);
  Cut({0, 0});
  EXPECT_EQ(plan_.num_quanta(), 0u);
}

}  // namespace
}  // namespace moebius
