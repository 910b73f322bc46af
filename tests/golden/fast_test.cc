// SPDX-License-Identifier: Apache-2.0
// The fast bf16 path, teacher-forced, against another implementation's fp32 run. Its errors are
// measured by those of that implementation's own bf16 run.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

#include "node/embedded.h"
#include "node/forced_logits.h"
#include "tests/golden/golden_run.h"

namespace moebius {
namespace {

// From this recorded gap on, a choice that differs is no near tie.
constexpr float kClearGap = 0x1p-5f;

/// How far a bf16 run is from the fp32 run, on rows whose expert sets agree in all layers.
struct LogitErrors {
  int64_t num_rows = 0;
  double rms = 0;
  double percentile = 0;  // 99.9th of the absolute errors
  double maximum = 0;
};

/// Tokens whose expert set differs from the fp32 run's in some layer.
struct Flips {
  int64_t num_rows = 0;
  int64_t num_clear = 0;  // no near tie in the first layer where they differ
};

bool SameExperts(const std::vector<int16_t>& a, const std::vector<int16_t>& b, size_t token,
                 size_t top_k) {
  return std::equal(a.begin() + static_cast<std::ptrdiff_t>(token * top_k),
                    a.begin() + static_cast<std::ptrdiff_t>((token + 1) * top_k),
                    b.begin() + static_cast<std::ptrdiff_t>(token * top_k));
}

// The index of the first layer in which the token's experts differ from fp32's; -1 for none.
// `experts` [layers][T, k].
int64_t FirstFlip(const GoldenRun& run, const std::vector<const std::vector<int16_t>*>& experts,
                  size_t token) {
  for (size_t layer = 0; layer < run.layers.size(); ++layer) {
    const std::vector<int16_t>& recorded = run.layers[layer].experts_fp32;
    const size_t top_k = recorded.size() / run.token_ids.size();
    if (!SameExperts(*experts[layer], recorded, token, top_k)) return static_cast<int64_t>(layer);
  }
  return -1;
}

Flips CountFlips(const GoldenRun& run, const std::vector<const std::vector<int16_t>*>& experts) {
  Flips flips;
  for (size_t token = 0; token < run.token_ids.size(); ++token) {
    const int64_t layer = FirstFlip(run, experts, token);
    if (layer < 0) continue;
    ++flips.num_rows;
    if (run.layers[static_cast<size_t>(layer)].gap[token] >= kClearGap) ++flips.num_clear;
  }
  return flips;
}

LogitErrors MeasureErrors(const GoldenRun& run, FloatRows logits,
                          const std::vector<const std::vector<int16_t>*>& experts) {
  LogitErrors errors;
  std::vector<double> magnitudes;
  double sum_of_squares = 0;
  for (size_t index = 0; index < run.rows.size(); ++index) {
    if (FirstFlip(run, experts, static_cast<size_t>(run.rows[index])) >= 0) continue;
    ++errors.num_rows;
    const int64_t row = static_cast<int64_t>(index);
    for (int64_t id = 0; id < logits.width; ++id) {
      const double error = double{logits.row(row)[id]} - run.logits_fp32.rows().row(row)[id];
      sum_of_squares += error * error;
      magnitudes.push_back(std::abs(error));
    }
  }
  if (magnitudes.empty()) return errors;
  std::sort(magnitudes.begin(), magnitudes.end());
  const double count = static_cast<double>(magnitudes.size());
  errors.rms = std::sqrt(sum_of_squares / count);
  errors.percentile = magnitudes[static_cast<size_t>(std::ceil(0.999 * count)) - 1];
  errors.maximum = magnitudes.back();
  return errors;
}

class FastPathTest : public testing::TestWithParam<GoldenCase> {};

TEST_P(FastPathTest, ErrsNoMoreThanTheRecordedBf16Run) {
  const GoldenCase& golden = GetParam();
  const auto run = ReadGoldenRun(golden);
  ASSERT_TRUE(run.ok()) << run.status();
  EmbeddedOptions options;
  options.model_path = absl::StrCat(MOEBIUS_SOURCE_DIR, "/", golden.model);
  const auto node = EmbeddedNode::Open(options);
  ASSERT_TRUE(node.ok()) << node.status();
  const auto forced = (*node)->TeacherForced(run->token_ids, run->rows);
  ASSERT_TRUE(forced.ok()) << forced.status();
  ASSERT_EQ(forced->rows, run->rows);
  ASSERT_EQ(forced->layers.size(), run->layers.size());

  std::vector<const std::vector<int16_t>*> our_experts, their_experts;
  for (size_t layer = 0; layer < run->layers.size(); ++layer) {
    ASSERT_EQ(forced->layers[layer].layer, run->layers[layer].layer);
    ASSERT_EQ(forced->layers[layer].experts.size(), run->layers[layer].experts_fp32.size());
    our_experts.push_back(&forced->layers[layer].experts);
    their_experts.push_back(&run->layers[layer].experts_bf16);
  }
  const LogitErrors ours = MeasureErrors(*run, forced->logits.rows(), our_experts);
  const LogitErrors theirs = MeasureErrors(*run, run->logits_bf16.rows(), their_experts);
  const Flips our_flips = CountFlips(*run, our_experts);
  const Flips their_flips = CountFlips(*run, their_experts);
  std::printf(
      "| %s | %lld / %lld | %.5f / %.5f | %.5f / %.5f | %.5f / %.5f | %lld / %lld | "
      "%lld / %lld |\n",
      golden.name.c_str(), static_cast<long long>(ours.num_rows),
      static_cast<long long>(theirs.num_rows), ours.rms, theirs.rms, ours.percentile,
      theirs.percentile, ours.maximum, theirs.maximum, static_cast<long long>(our_flips.num_rows),
      static_cast<long long>(their_flips.num_rows), static_cast<long long>(our_flips.num_clear),
      static_cast<long long>(their_flips.num_clear));

  EXPECT_GT(ours.num_rows, 0) << golden.name;
  EXPECT_LE(ours.rms, 1.0 * theirs.rms) << golden.name;
  EXPECT_LE(ours.percentile, 1.25 * theirs.percentile) << golden.name;
  EXPECT_LE(ours.maximum, 2.0 * theirs.maximum) << golden.name;
  EXPECT_LE(our_flips.num_rows, 2 * their_flips.num_rows + 3) << golden.name;
  const int64_t one_in_hundred = static_cast<int64_t>(run->token_ids.size()) / 100;
  EXPECT_LE(our_flips.num_clear, std::max(one_in_hundred, their_flips.num_clear + 1))
      << golden.name;
}

// Cases with a bf16 record; the fast path reads a folder's own config.json.
std::vector<GoldenCase> Bf16Cases(std::vector<GoldenCase> cases) {
  const auto without_record = [](const GoldenCase& golden) {
    return !golden.config_file.empty() || golden.group_fill == GroupFill::kZero;
  };
  cases.erase(std::remove_if(cases.begin(), cases.end(), without_record), cases.end());
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Golden, FastPathTest, testing::ValuesIn(Bf16Cases(MOEBIUS_GOLDEN_CASES())),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace moebius
