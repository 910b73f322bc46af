// SPDX-License-Identifier: Apache-2.0
// Generated rows of the per-degree sum over several segments: the same bits whatever threads there
// are to cut them for and whatever the rows of a step, near the canonical sum.
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

#include "tests/attention_service/double_reference.h"
#include "tests/attention_service/local_ranks.h"
#include "tests/attention_service/per_degree_case.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::FirstDifference;
using testing::kPerDegreeBlock;
using testing::LocalRanks;
using testing::MakePerDegreeCase;
using testing::MakeTestSession;
using testing::PerDegreeCase;
using testing::RunAll;
using testing::RunTestStep;
using testing::TestSession;

// Segments of 16 blocks for each rank: rows see three over one rank and two over two.
constexpr int64_t kSegment = SessionSpans::kSegmentBlocks * kPerDegreeBlock;
constexpr int64_t kPrompt = 2 * kSegment - 40;
constexpr int64_t kLength = 2 * kSegment + 70;

class SegmentBitsTest : public ::testing::TestWithParam<PerDegreeCase> {
 protected:
  static AttentionCase MakeModel(const std::vector<int64_t>& windows) {
    AttentionCase model = MakePerDegreeCase(GetParam());
    model.facts.config.windows = windows;
    return model;
  }
  static void ExpectTheSameBits(const std::vector<int64_t>& windows) {
    const AttentionCase model = MakeModel(windows);
    AttentionCase canonical = MakeModel(windows);
    canonical.facts.sum = AttentionSum::kCanonical;
    const auto make = [&] { return MakeTestSession(4, kLength, kPrompt, model.facts.hidden_size); };
    LocalRanks alone(canonical, 1);
    const RowBatch<Bf16> near = RunAll(*alone.group, make(), {kPrompt, 1000});
    for (const int32_t num_ranks : {1, 2}) {
      RowBatch<Bf16> expected;
      for (const int threads : {1, 3}) {
        LocalRanks ranks(model, num_ranks, /*tokens=*/4096, threads);
        TestSession session = make();
        RunTestStep(*ranks.group, {&session}, {kPrompt});
        for (const std::vector<int64_t>& steps :
             {std::vector<int64_t>{1000}, std::vector<int64_t>{45, 4, 1}}) {
          session.length = kPrompt;  // what is there already has the same keys again
          for (size_t i = 0; session.length < kLength; ++i) {
            RunTestStep(*ranks.group, {&session}, {steps[std::min(i, steps.size() - 1)]});
          }
          const Bf16Rows found = session.out.rows().Slice(kPrompt, kLength);
          if (expected.num_rows() == 0) expected = CopyOf(found);
          EXPECT_EQ(FirstDifference(expected.rows(), found), "")
              << num_ranks << " ranks, " << threads << " threads, steps of "
              << absl::StrJoin(steps, ", ");
        }
      }
      ExpectNear(near.rows().Slice(kPrompt, kLength), expected.rows());
    }
  }
  static RowBatch<Bf16> CopyOf(Bf16Rows rows) {
    RowBatch<Bf16> copy(rows.num_rows, rows.width);
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      std::copy_n(rows.row(r), rows.width, copy.rows().row(r));
    }
    return copy;
  }
  static void ExpectNear(Bf16Rows a, Bf16Rows b) {
    double largest = 0;
    double difference = 0;
    for (int64_t r = 0; r < a.num_rows; ++r) {
      for (int64_t c = 0; c < a.width; ++c) {
        largest = std::max(largest, std::abs(double{ToFloat(a.row(r)[c])}));
        difference =
            std::max(difference, std::abs(double{ToFloat(a.row(r)[c])} - ToFloat(b.row(r)[c])));
      }
    }
    EXPECT_LE(difference, 4 * 0x1p-9 * largest);
  }
};

TEST_P(SegmentBitsTest, DoNotDependOnThreadsOrStepsAndAreNearTheCanonicalSum) {
  ExpectTheSameBits({});
}

// A window that reaches over one end of a segment, and ends in one while rows go on.
TEST_P(SegmentBitsTest, DoNotDependOnThemInWindows) { ExpectTheSameBits({kSegment + 35, 0}); }

INSTANTIATE_TEST_SUITE_P(Cases, SegmentBitsTest,
                         ::testing::Values(PerDegreeCase{"gqa", AttentionLayout::kZigzag},
                                           PerDegreeCase{"mqa", AttentionLayout::kStriped},
                                           PerDegreeCase{"mla", AttentionLayout::kZigzag},
                                           PerDegreeCase{"mla", AttentionLayout::kContiguous}),
                         [](const ::testing::TestParamInfo<PerDegreeCase>& info) {
                           return absl::StrCat(std::get<0>(info.param), "_",
                                               AttentionLayoutName(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace moebius
