// SPDX-License-Identifier: Apache-2.0
// The per-degree sum over N ranks: near the definition in fp64 for every N, method and layout, and
// the same bits on repeat, whatever the chunks and the company.
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "tests/attention_service/double_reference.h"
#include "tests/attention_service/local_ranks.h"
#include "tests/attention_service/per_degree_case.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::FirstDifference;
using testing::HeadError;
using testing::kPerDegreeRanks;
using testing::LocalRanks;
using testing::MakePerDegreeCase;
using testing::MakeTestSession;
using testing::PerDegreeCase;
using testing::RunAll;
using testing::RunTestStep;
using testing::TestSession;

constexpr int64_t kSpan = testing::kPerDegreeBlock;

double LargestDifference(Bf16Rows a, Bf16Rows b) {
  double largest = 0;
  for (int64_t r = 0; r < a.num_rows; ++r) {
    for (int64_t c = 0; c < a.width; ++c) {
      largest = std::max(largest, std::abs(double{ToFloat(a.row(r)[c])} - ToFloat(b.row(r)[c])));
    }
  }
  return largest;
}

class PerDegreeTest : public ::testing::TestWithParam<PerDegreeCase> {};

// With and without keys that were there before; some prompts are many units of 2N spans, others
// less than one.
TEST_P(PerDegreeTest, StaysWithinTwiceTheOnePassErrorForEveryNumberOfRanks) {
  const AttentionCase model = MakePerDegreeCase(GetParam());
  for (const int32_t num_ranks : kPerDegreeRanks) {
    LocalRanks ranks(model, num_ranks);
    for (const std::vector<int64_t>& chunks :
         {std::vector<int64_t>{290}, std::vector<int64_t>{101, 64, 1, 300}}) {
      const TestSession session = MakeTestSession(1, 290, 290, model.facts.hidden_size);
      const RowBatch<Bf16> found =
          RunAll(*ranks.group, MakeTestSession(1, 290, 290, model.facts.hidden_size), chunks);
      const HeadError error =
          testing::CompareHeadsWithDouble(model, session.rows.rows(), found.rows());
      EXPECT_LE(error.max_error, error.bound()) << num_ranks << " ranks";
      EXPECT_GT(error.max_value, 0.5);
    }
  }
}

TEST_P(PerDegreeTest, StaysWithinItInWindows) {
  AttentionCase model = MakePerDegreeCase(GetParam());
  for (const int64_t size : {int64_t{1}, int64_t{3}, kSpan + 1, 3 * kSpan + 5}) {
    model.facts.config.windows = {size, 0};
    for (const int32_t num_ranks : {1, 3, 4}) {
      LocalRanks ranks(model, num_ranks);
      const TestSession session = MakeTestSession(2, 290, 290, model.facts.hidden_size);
      const RowBatch<Bf16> found =
          RunAll(*ranks.group, MakeTestSession(2, 290, 290, model.facts.hidden_size), {130, 160});
      const HeadError error =
          testing::CompareHeadsWithDouble(model, session.rows.rows(), found.rows());
      EXPECT_LE(error.max_error, error.bound()) << num_ranks << " ranks, window " << size;
    }
  }
}

// Windows of a few keys over shards of a few rows: a prompt of 4N rows gives each rank two chunks
// of two, one of 8N two of four, so windows end inside of chunks, at their edges and in a
// neighbour's. Behind it rows that are generated.
TEST_P(PerDegreeTest, StaysWithinItInWindowsOfThreeKeysOverShardsOfFourRows) {
  AttentionCase model = MakePerDegreeCase(GetParam());
  const int64_t width = model.facts.hidden_size;
  for (const int64_t size : {1, 3, 4, 5}) {
    model.facts.config.windows = {size, 0};
    AttentionCase canonical = MakePerDegreeCase(GetParam());
    canonical.facts.config.windows = {size, 0};
    canonical.facts.sum = AttentionSum::kCanonical;
    LocalRanks alone(canonical, 1);
    for (const int32_t num_ranks : {2, 3, 4, 8}) {
      LocalRanks ranks(model, num_ranks);
      for (const int64_t prompt : {4 * num_ranks, 8 * num_ranks, 8 * num_ranks - 3}) {
        const TestSession session = MakeTestSession(6, prompt + 5, prompt, width);
        const RowBatch<Bf16> expected =
            RunAll(*alone.group, MakeTestSession(6, prompt + 5, prompt, width), {1000});
        for (const AttentionMethod method : kAttentionMethods) {
          const bool is_2d = method == AttentionMethod::k2d;
          if (method == AttentionMethod::kLocal || (is_2d && num_ranks % 4 != 0)) continue;
          TestSession again = MakeTestSession(6, prompt + 5, prompt, width);
          again.method = method;
          if (method == AttentionMethod::kUlysses) again.ulysses_ranks = num_ranks;
          if (is_2d) again.ulysses_ranks = 2;
          const RowBatch<Bf16> found = RunAll(*ranks.group, std::move(again), {5, prompt - 5, 1});
          const auto what = [&] {
            return absl::StrCat("window ", size, ", ", AttentionMethodName(method), " over ",
                                num_ranks, " ranks, a prompt of ", prompt);
          };
          const HeadError error =
              testing::CompareHeadsWithDouble(model, session.rows.rows().Slice(0, prompt),
                                              found.rows().Slice(0, prompt), /*stride=*/1);
          EXPECT_LE(error.max_error, error.bound()) << what();
          EXPECT_LE(LargestDifference(expected.rows(), found.rows()), 2 * error.bound()) << what();
        }
      }
    }
  }
}

TEST_P(PerDegreeTest, StaysWithinItForEveryMethod) {
  const AttentionCase model = MakePerDegreeCase(GetParam());
  constexpr int32_t kNumRanks = 4;
  for (const AttentionMethod method : kAttentionMethods) {
    if (method == AttentionMethod::kLocal) continue;
    LocalRanks ranks(model, kNumRanks);
    TestSession session = MakeTestSession(1, 330, 330, model.facts.hidden_size);
    TestSession again = MakeTestSession(1, 330, 330, model.facts.hidden_size);
    again.method = method;
    if (method == AttentionMethod::kUlysses) again.ulysses_ranks = kNumRanks;
    if (method == AttentionMethod::k2d) again.ulysses_ranks = 2;
    const RowBatch<Bf16> found = RunAll(*ranks.group, std::move(again), {200, 130});
    const HeadError error =
        testing::CompareHeadsWithDouble(model, session.rows.rows(), found.rows());
    EXPECT_LE(error.max_error, error.bound()) << AttentionMethodName(method);
  }
}

// Prompts of every length and some generated rows, all in one step and each alone in chunks.
TEST_P(PerDegreeTest, HasTheSameBitsWhateverTheChunksAndTheCompany) {
  const AttentionCase model = MakePerDegreeCase(GetParam());
  const int64_t width = model.facts.hidden_size;
  for (const int32_t num_ranks : kPerDegreeRanks) {
    const std::vector<int64_t> prompts{0, 1, 2, 3, 7, 2 * num_ranks - 1, 31, 33, 66, 260};
    LocalRanks ranks(model, num_ranks);
    std::vector<TestSession> sessions;
    std::vector<TestSession*> pointers;
    for (size_t i = 0; i < prompts.size(); ++i) {
      sessions.push_back(MakeTestSession(i, prompts[i] + 5, prompts[i], width));
    }
    for (TestSession& session : sessions) pointers.push_back(&session);
    RunTestStep(*ranks.group, pointers, std::vector<int64_t>(pointers.size(), 1000));
    for (const TestSession& session : sessions) ranks.group->EndSession(session.id);
    for (size_t i = 0; i < prompts.size(); ++i) {
      const RowBatch<Bf16> alone =
          RunAll(*ranks.group, MakeTestSession(i, prompts[i] + 5, prompts[i], width), {29, 3, 90});
      EXPECT_EQ(FirstDifference(sessions[i].out.rows(), alone.rows()), "")
          << num_ranks << " ranks, a prompt of " << prompts[i];
    }
  }
}

// Packed sequences: documents of different lengths in one step, each cut on its own (shard_test.cc
// has the cuts). No document has another bit than alone, and none sees a key of another: all are
// near the definition, which knows one document.
TEST_P(PerDegreeTest, GivesPackedDocumentsTheBitsThatEachHasAlone) {
  const AttentionCase model = MakePerDegreeCase(GetParam());
  const int64_t width = model.facts.hidden_size;
  const std::vector<int64_t> lengths{100, 1, 67, 3, 32};
  for (const int32_t num_ranks : kPerDegreeRanks) {
    LocalRanks ranks(model, num_ranks);
    for (const AttentionMethod method : kAttentionMethods) {
      const bool is_2d = method == AttentionMethod::k2d;
      if (method == AttentionMethod::kLocal || (is_2d && num_ranks % 4 != 0)) continue;
      const auto make = [&](size_t i) {
        TestSession session = MakeTestSession(i, lengths[i], lengths[i], width);
        session.method = method;
        if (method == AttentionMethod::kUlysses) session.ulysses_ranks = num_ranks;
        if (is_2d) session.ulysses_ranks = 2;
        return session;
      };
      std::vector<TestSession> documents;
      std::vector<TestSession*> pointers;
      for (size_t i = 0; i < lengths.size(); ++i) documents.push_back(make(i));
      for (TestSession& document : documents) pointers.push_back(&document);
      RunTestStep(*ranks.group, pointers, lengths);
      for (const TestSession& document : documents) ranks.group->EndSession(document.id);
      for (size_t i = 0; i < lengths.size(); ++i) {
        const auto what = [&] {
          return absl::StrCat(AttentionMethodName(method), " over ", num_ranks,
                              " ranks, a document of ", lengths[i]);
        };
        const RowBatch<Bf16> alone = RunAll(*ranks.group, make(i), {lengths[i]});
        EXPECT_EQ(FirstDifference(documents[i].out.rows(), alone.rows()), "") << what();
        if (num_ranks != 4) continue;
        const HeadError error = testing::CompareHeadsWithDouble(model, documents[i].rows.rows(),
                                                                documents[i].out.rows());
        EXPECT_LE(error.max_error, error.bound()) << what();
      }
    }
  }
}

// Sessions begin at ranks of their own, by their ids. With heads they all begin at rank 0.
TEST_P(PerDegreeTest, HasTheSameBitsWhereverASessionBegins) {
  const AttentionCase model = MakePerDegreeCase(GetParam());
  for (const int32_t num_ranks : {2, 3, 4}) {
    LocalRanks ranks(model, num_ranks);
    for (const AttentionMethod method :
         {AttentionMethod::kRingPassKv, AttentionMethod::kRingPassQ, AttentionMethod::kAllGather}) {
      std::vector<TestSession> sessions;
      std::vector<TestSession*> pointers;
      for (int32_t first_rank = 0; first_rank < num_ranks; ++first_rank) {
        sessions.push_back(MakeTestSession(7, 213, 210, model.facts.hidden_size));
        TestSession& session = sessions.back();
        session.id = SessionId(100 + static_cast<uint64_t>(first_rank));
        session.first_rank = first_rank;
        session.method = method;
      }
      for (TestSession& session : sessions) pointers.push_back(&session);
      for (const int64_t rows : {90, 120, 3}) {
        RunTestStep(*ranks.group, pointers, std::vector<int64_t>(pointers.size(), rows));
      }
      for (const TestSession& session : sessions) {
        EXPECT_EQ(FirstDifference(sessions[0].out.rows(), session.out.rows()), "")
            << AttentionMethodName(method) << " over " << num_ranks << " ranks from rank "
            << session.first_rank;
        ranks.group->EndSession(session.id);
      }
    }
  }
}

TEST_P(PerDegreeTest, IsNearTheCanonicalSumInDecodeAndDependsOnTheRanks) {
  AttentionCase canonical = MakePerDegreeCase(GetParam());
  canonical.facts.sum = AttentionSum::kCanonical;
  const AttentionCase model = MakePerDegreeCase(GetParam());
  const int64_t width = model.facts.hidden_size;
  LocalRanks alone(canonical, 1);
  const RowBatch<Bf16> expected =
      RunAll(*alone.group, MakeTestSession(3, 400, 170, width), {170, 1});
  double largest = 0;
  for (int64_t r = 0; r < 400; ++r) {
    for (const Bf16 element : expected.rows().span(r)) {
      largest = std::max(largest, std::abs(double{ToFloat(element)}));
    }
  }
  bool differs = false;
  for (const int32_t num_ranks : {1, 3, 4}) {
    LocalRanks ranks(model, num_ranks);
    const RowBatch<Bf16> found =
        RunAll(*ranks.group, MakeTestSession(3, 400, 170, width), {170, 1});
    EXPECT_LE(LargestDifference(expected.rows(), found.rows()), 4 * 0x1p-9 * largest)
        << num_ranks << " ranks";
    const RowBatch<Bf16> again =
        RunAll(*ranks.group, MakeTestSession(3, 400, 170, width), {170, 1});
    EXPECT_EQ(FirstDifference(found.rows(), again.rows()), "") << num_ranks << " ranks";
    differs = differs || !FirstDifference(expected.rows(), found.rows()).empty();
  }
  EXPECT_TRUE(differs);  // else the setting was ignored
}

std::string NameOf(const ::testing::TestParamInfo<PerDegreeCase>& info) {
  return absl::StrCat(std::get<0>(info.param), "_", AttentionLayoutName(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Cases, PerDegreeTest,
                         ::testing::Combine(::testing::Values("gqa", "mqa", "mha", "mla",
                                                              "mla_yarn"),
                                            ::testing::Values(AttentionLayout::kZigzag)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Layouts, PerDegreeTest,
                         ::testing::Combine(::testing::Values("gqa", "mla"),
                                            ::testing::Values(AttentionLayout::kContiguous,
                                                              AttentionLayout::kStriped)),
                         NameOf);

}  // namespace
}  // namespace moebius
