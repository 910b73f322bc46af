// SPDX-License-Identifier: Apache-2.0
#include "node/reference_gate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "moebius/base/check.h"

namespace moebius {
namespace {

double SigmoidOf(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// What experts are ranked by: the logits themselves where the choice is by logit.
std::vector<float> Scores(ScoreFunction function, absl::Span<const float> logits) {
  std::vector<float> scores(logits.begin(), logits.end());
  if (function == ScoreFunction::kSigmoid) {
    for (float& score : scores) score = static_cast<float>(SigmoidOf(score));
  }
  if (function != ScoreFunction::kSoftmax) return scores;
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  for (size_t e = 0; e < logits.size(); ++e) {
    scores[e] = static_cast<float>(std::exp(logits[e] - largest) / sum);
  }
  return scores;
}

// The indices of the `count` largest values, ties to the lowest index, best first.
std::vector<int> Largest(absl::Span<const float> values, int count) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
  order.resize(static_cast<size_t>(count));
  return order;
}

// A group's score is the sum of its two best selection scores.
float GroupScore(absl::Span<const float> group) {
  if (group.size() == 1) return group[0];
  const std::vector<int> best = Largest(group, 2);
  return group[best[0]] + group[best[1]];
}

// Turns the logits of the chosen into what they weigh, before any scaling.
void WeighChosenLogits(ScoreFunction function, const std::vector<int>& chosen,
                       std::vector<float>& scores) {
  if (function == ScoreFunction::kSigmoidOfChosen) {
    for (const int expert : chosen) scores[expert] = static_cast<float>(SigmoidOf(scores[expert]));
  }
  if (function != ScoreFunction::kSoftmaxOfChosen) return;
  double largest = scores[chosen[0]], sum = 0;
  for (const int expert : chosen) largest = std::max<double>(largest, scores[expert]);
  for (const int expert : chosen) sum += std::exp(scores[expert] - largest);
  for (const int expert : chosen) {
    scores[expert] = static_cast<float>(std::exp(scores[expert] - largest) / sum);
  }
}

// Replaces the selection scores outside the kept groups by the fill.
void LimitGroups(const GateConfig& config, GroupFill group_fill, std::vector<float>& selection) {
  const size_t width = selection.size() / static_cast<size_t>(config.num_groups);
  std::vector<float> group_scores;
  for (size_t begin = 0; begin < selection.size(); begin += width) {
    group_scores.push_back(GroupScore(absl::MakeConstSpan(selection).subspan(begin, width)));
  }
  const float fill =
      group_fill == GroupFill::kZero ? 0.0f : -std::numeric_limits<float>::infinity();
  std::vector<float> limited(selection.size(), fill);
  for (const int group : Largest(group_scores, config.num_kept_groups)) {
    const auto begin = static_cast<std::ptrdiff_t>(static_cast<size_t>(group) * width);
    std::copy_n(selection.begin() + begin, width, limited.begin() + begin);
  }
  selection = std::move(limited);
}

}  // namespace

void ChooseReferenceExperts(const GateConfig& config, GroupFill group_fill,
                            absl::Span<const float> logits, absl::Span<const float> bias,
                            absl::Span<int16_t> experts, absl::Span<float> weights) {
  MOEBIUS_CHECK_EQ(static_cast<int64_t>(logits.size()), config.num_experts);
  MOEBIUS_CHECK(bias.empty() || bias.size() == logits.size());
  std::vector<float> scores = Scores(config.score_function, logits);
  std::vector<float> selection = scores;
  for (size_t e = 0; e < bias.size(); ++e) selection[e] += bias[e];
  for (float& score : selection) {
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();  // keeps sorting sound
  }
  if (config.num_groups > 1) LimitGroups(config, group_fill, selection);
  std::vector<int> chosen = Largest(selection, config.top_k);
  std::sort(chosen.begin(), chosen.end());

  WeighChosenLogits(config.score_function, chosen, scores);
  double sum = 1e-20;
  for (const int expert : chosen) sum += scores[expert];
  const double divisor = config.normalize_weights ? sum : 1.0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    experts[i] = static_cast<int16_t>(chosen[i]);
    weights[i] = static_cast<float>(scores[chosen[i]] / divisor) * config.routed_scaling_factor;
  }
}

}  // namespace moebius
