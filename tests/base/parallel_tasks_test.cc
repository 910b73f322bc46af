// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/parallel_tasks.h"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace moebius {
namespace {

TEST(ParallelTasksTest, RunsEachTaskOnceAndTellsItOnTheCallersThread) {
  for (const int num_threads : {1, 2, 5}) {
    constexpr size_t kCount = 200;
    std::vector<std::atomic<int>> runs(kCount);
    std::set<size_t> told;
    const std::thread::id caller = std::this_thread::get_id();
    const absl::Status status = RunParallelTasks(
        kCount, num_threads,
        [&](size_t index) {
          runs[index].fetch_add(1);
          return absl::OkStatus();
        },
        [&](size_t index) {
          EXPECT_EQ(std::this_thread::get_id(), caller);
          EXPECT_EQ(runs[index].load(), 1);
          EXPECT_TRUE(told.insert(index).second) << index;
        });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(told.size(), kCount);
  }
}

TEST(ParallelTasksTest, EndsWithTheFirstFailureAndBeginsNoMore) {
  std::atomic<int> begun = 0;
  const absl::Status status = RunParallelTasks(
      1000, 2,
      [&](size_t) -> absl::Status {
        begun.fetch_add(1);
        return absl::DataLossError("broken");
      },
      [](size_t) { FAIL() << "nothing ended well"; });
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_LE(begun.load(), 2);
}

TEST(ParallelTasksTest, NoTasksAreOrdinary) {
  const auto never = [](size_t) { return absl::InternalError("called"); };
  EXPECT_TRUE(RunParallelTasks(0, 4, never, [](size_t) {}).ok());
}

}  // namespace
}  // namespace moebius
