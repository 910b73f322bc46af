// SPDX-License-Identifier: Apache-2.0
// The fp32 reference path against what another implementation computed in fp32.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

#include "moebius/base/executor.h"
#include "moebius/model/checkpoint.h"
#include "node/forced_logits.h"
#include "node/reference_model.h"
#include "tests/golden/golden_run.h"

namespace moebius {
namespace {

// Below this recorded gap the other implementation's own choice is a matter of rounding.
constexpr float kDecidedGap = 1e-5f;
constexpr double kWeightTolerance = 1e-5;

double LargestMagnitude(FloatRows rows) {
  double largest = 0;
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    for (const float value : rows.span(row)) largest = std::max<double>(largest, std::abs(value));
  }
  return largest;
}

// True where every MoE layer's recorded choice for the token is decided.
bool IsDecided(const GoldenRun& run, size_t token) {
  return std::all_of(run.layers.begin(), run.layers.end(),
                     [&](const GoldenLayer& layer) { return layer.gap[token] > kDecidedGap; });
}

template <typename T>
absl::Span<const T> RowOf(const std::vector<T>& values, size_t row, size_t width) {
  return absl::MakeConstSpan(values).subspan(row * width, width);
}

std::string Text(absl::Span<const int16_t> experts) {
  std::string text;
  for (const int16_t expert : experts) absl::StrAppend(&text, text.empty() ? "" : " ", expert);
  return text;
}

class ReferenceModelTest : public testing::TestWithParam<GoldenCase> {
 protected:
  void SetUp() override {
    CheckpointOptions options;
    options.reads_as_stored = true;
    options.numerics.group_fill = GetParam().group_fill;
    const std::string root = absl::StrCat(MOEBIUS_SOURCE_DIR, "/");
    if (!GetParam().config_file.empty()) options.config_file = root + GetParam().config_file;
    const auto checkpoint = Checkpoint::Open(root + GetParam().model, options);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    auto model = ReferenceModel::Load(**checkpoint);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    auto run = ReadGoldenRun(GetParam());
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *std::move(run);
  }

  // Returns the largest error of a logit over the largest logit.
  double ExpectLogits(const ForcedLogits& forced) {
    EXPECT_EQ(forced.rows, run_.rows);
    const double largest = LargestMagnitude(run_.logits_fp32.rows());
    double worst = 0;
    for (size_t index = 0; index < run_.rows.size(); ++index) {
      const absl::Span<const float> ours = forced.logits.rows().span(static_cast<int64_t>(index));
      const absl::Span<const float> theirs =
          run_.logits_fp32.rows().span(static_cast<int64_t>(index));
      double error = 0;
      for (size_t id = 0; id < ours.size(); ++id) {
        error = std::max<double>(error, std::abs(double{ours[id]} - theirs[id]));
      }
      EXPECT_LE(error, GetParam().tolerance * largest)
          << GetParam().name << ": logits of row " << run_.rows[index] << ", largest logit "
          << largest;
      worst = std::max(worst, error / largest);
    }
    return worst;
  }

  // Returns the number of undecided tokens whose experts differ.
  int64_t ExpectExperts(const ForcedLogits& forced) {
    const size_t k = static_cast<size_t>(forced.top_k);
    int64_t undecided_flips = 0;
    EXPECT_EQ(forced.layers.size(), run_.layers.size());
    for (size_t i = 0; i < std::min(forced.layers.size(), run_.layers.size()); ++i) {
      EXPECT_EQ(forced.layers[i].layer, run_.layers[i].layer);
      for (size_t token = 0; token < run_.token_ids.size(); ++token) {
        const auto ours = RowOf(forced.layers[i].experts, token, k);
        const auto theirs = RowOf(run_.layers[i].experts_fp32, token, k);
        if (ours == theirs) continue;
        if (!IsDecided(run_, token)) {
          ++undecided_flips;
          continue;
        }
        ADD_FAILURE() << GetParam().name << ": layer " << run_.layers[i].layer << ", row " << token
                      << " chose " << Text(ours) << ", recorded " << Text(theirs) << ", gap "
                      << run_.layers[i].gap[token];
      }
    }
    return undecided_flips;
  }

  // Returns the largest error of a gate weight where the experts are the same.
  double ExpectWeights(const ForcedLogits& forced) {
    const size_t k = static_cast<size_t>(forced.top_k);
    double worst = 0;
    for (size_t i = 0; i < std::min(forced.layers.size(), run_.layers.size()); ++i) {
      const GoldenLayer& recorded = run_.layers[i];
      const size_t num_recorded = recorded.weights_fp32.size() / k;
      for (size_t index = 0; index < num_recorded; ++index) {
        // All tokens, or those of `rows` in the long cases.
        const size_t token =
            num_recorded == run_.token_ids.size() ? index : static_cast<size_t>(run_.rows[index]);
        if (RowOf(forced.layers[i].experts, token, k) != RowOf(recorded.experts_fp32, token, k)) {
          continue;  // reported above
        }
        for (size_t choice = 0; choice < k; ++choice) {
          const double error = std::abs(double{forced.layers[i].weights[token * k + choice]} -
                                        recorded.weights_fp32[index * k + choice]);
          EXPECT_LE(error, kWeightTolerance)
              << GetParam().name << ": layer " << recorded.layer << ", row " << token << ", expert "
              << recorded.experts_fp32[token * k + choice];
          worst = std::max(worst, error);
        }
      }
    }
    return worst;
  }

  Executor executor_{DefaultNumThreads()};
  std::unique_ptr<const ReferenceModel> model_;
  GoldenRun run_;
};

// One pass over the prompt for all of it: the long prompts take minutes.
TEST_P(ReferenceModelTest, GivesTheRecordedLogitsExpertsWeightsAndContinuation) {
  const int64_t last_row = static_cast<int64_t>(run_.token_ids.size()) - 1;
  ASSERT_EQ(run_.rows.back(), last_row);
  ReferenceSequence sequence(*model_, executor_);
  const auto forced = sequence.Append(run_.token_ids, run_.rows);
  ASSERT_TRUE(forced.ok()) << forced.status();
  const double logit_error = ExpectLogits(*forced);
  const int64_t undecided_flips = ExpectExperts(*forced);
  const double weight_error = ExpectWeights(*forced);

  const int64_t first = MostLikelyToken(forced->logits.rows().span(forced->logits.num_rows() - 1));
  auto generated = sequence.ContinueGreedily({first}, static_cast<int64_t>(run_.greedy.size()) - 1);
  ASSERT_TRUE(generated.ok()) << generated.status();
  generated->insert(generated->begin(), first);
  EXPECT_EQ(*generated, run_.greedy) << GetParam().name;
  std::printf("| %s | %zu | %.2g | %.2g | %.2g | %lld | %zu |\n", GetParam().name.c_str(),
              run_.token_ids.size(), logit_error, GetParam().tolerance, weight_error,
              static_cast<long long>(undecided_flips), run_.greedy.size());
}

INSTANTIATE_TEST_SUITE_P(Golden, ReferenceModelTest, testing::ValuesIn(MOEBIUS_GOLDEN_CASES()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace moebius
