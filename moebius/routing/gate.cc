// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/gate.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>

#include "absl/strings/str_format.h"

#include "moebius/base/check.h"
#include "moebius/routing/gate_scores.h"

namespace moebius {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
// Rows of one task: some 50 µs of work, against some 5 µs for a fork and join.
constexpr int64_t kRowsPerTask = 32;

// The best `count` of what was offered: descending score, ties to the id offered first.
template <int kMax>
class Best {
 public:
  explicit Best(int count) : count_(count) { scores_.fill(kNegativeInfinity); }

  // Ids are offered ascending, so that "not greater" already means "behind its equals".
  void Offer(float score, int32_t id) {
    if (size_ == count_ && !(score > scores_[static_cast<size_t>(count_ - 1)])) return;
    int place = size_ < count_ ? size_++ : count_ - 1;
    while (place > 0 && score > scores_[static_cast<size_t>(place - 1)]) {
      scores_[static_cast<size_t>(place)] = scores_[static_cast<size_t>(place - 1)];
      ids_[static_cast<size_t>(place)] = ids_[static_cast<size_t>(place - 1)];
      --place;
    }
    scores_[static_cast<size_t>(place)] = score;
    ids_[static_cast<size_t>(place)] = id;
  }

  int size() const { return size_; }
  int32_t id(int place) const { return ids_[static_cast<size_t>(place)]; }
  float score(int place) const { return scores_[static_cast<size_t>(place)]; }
  absl::Span<const int32_t> ids() const {
    return absl::MakeConstSpan(ids_.data(), static_cast<size_t>(size_));
  }
  bool Has(int32_t id) const {
    return std::find(ids_.begin(), ids_.begin() + size_, id) != ids_.begin() + size_;
  }

 private:
  int count_;
  int size_ = 0;
  std::array<float, kMax> scores_;
  std::array<int32_t, kMax> ids_{};
};

// The chosen ones, and one more to see who came next.
using BestExperts = Best<kMaxTopK + 1>;

bool AllFinite(absl::Span<const float> logits) {
  // x - x is 0 for a finite x and NaN for all others; a sum of zeros stays 0.
  float sum = 0;
  for (const float logit : logits) sum += logit - logit;
  return sum == 0;
}

// The sum of the two best selection scores, or the one of a group of one expert.
float GroupScore(absl::Span<const float> selection) {
  if (selection.size() == 1) return selection[0];
  float best = kNegativeInfinity, second = kNegativeInfinity;
  for (const float score : selection) {
    second = std::max(second, std::min(best, score));
    best = std::max(best, score);
  }
  return best + second;
}

void KeepGroups(const GateConfig& config, const float* selection,
                std::array<bool, kMaxGroups>& kept) {
  Best<kMaxGroups> groups(config.num_kept_groups);
  const int32_t width = config.num_experts / config.num_groups;
  for (int32_t group = 0; group < config.num_groups; ++group) {
    groups.Offer(
        GroupScore(absl::MakeConstSpan(selection + group * width, static_cast<size_t>(width))),
        group);
  }
  std::fill_n(kept.begin(), config.num_groups, false);
  for (int i = 0; i < groups.size(); ++i) kept[static_cast<size_t>(groups.id(i))] = true;
}

BestExperts Choose(const GateConfig& config, const float* selection,
                   const std::array<bool, kMaxGroups>& kept, GroupFill fill, int count) {
  BestExperts best(count);
  const int32_t width = config.num_experts / config.num_groups;
  for (int32_t group = 0; group < config.num_groups; ++group) {
    const bool is_kept = kept[static_cast<size_t>(group)];
    // -inf can never be among the k best: the kept groups have k candidates.
    if (!is_kept && fill == GroupFill::kNegativeInfinity) continue;
    for (int32_t e = group * width; e < (group + 1) * width; ++e) {
      best.Offer(is_kept ? selection[e] : 0.0f, e);
    }
  }
  return best;
}

// The choice under the other fill than `fill`, given that under `fill`.
bool OtherFillDiffers(const GateConfig& config, const float* selection,
                      const std::array<bool, kMaxGroups>& kept, GroupFill fill,
                      const BestExperts& chosen) {
  // A zero from outside enters only where it beats the worst, or ties with it. Where the worst of
  // a choice with zeros is above them, it has none.
  if (chosen.score(chosen.size() - 1) > 0) return false;
  const GroupFill other_fill =
      fill == GroupFill::kZero ? GroupFill::kNegativeInfinity : GroupFill::kZero;
  const BestExperts other = Choose(config, selection, kept, other_fill, config.top_k);
  for (int i = 0; i < other.size(); ++i) {
    if (!chosen.Has(other.id(i))) return true;
  }
  return false;
}

using ExpertScores = std::array<float, kMaxExperts>;

// Fills the scores of a row, and the selection scores where a bias makes them others. Returns the
// latter.
const float* RankExperts(const GateConfig& config, absl::Span<const float> logits,
                         absl::Span<const float> bias, ExpertScores& scores,
                         ExpertScores& selection) {
  const auto num_experts = static_cast<size_t>(config.num_experts);
  ScoreExperts(config.score_function, logits, scores.data());
  if (bias.empty()) return scores.data();
  for (size_t e = 0; e < num_experts; ++e) selection[e] = scores[e] + bias[e];
  return selection.data();
}

// Chooses for rows [begin, end); refused rows get kNoExpert.
void SelectRows(const GateConfig& config, GroupFill fill, FloatRows logits,
                absl::Span<const float> bias, int64_t begin, int64_t end, Assignments& assignments,
                GateCounts& counts) {
  ExpertScores scores;
  ExpertScores selection;
  std::array<bool, kMaxGroups> kept;
  kept[0] = true;
  for (int64_t row = begin; row < end; ++row) {
    int32_t* const ids = assignments.expert_ids.data() + row * config.top_k;
    float* const weights = assignments.weights.data() + row * config.top_k;
    const absl::Span<const float> row_logits = logits.span(row);
    if (!AllFinite(row_logits)) {
      std::fill_n(ids, config.top_k, kNoExpert);
      std::fill_n(weights, config.top_k, 0.0f);
      ++counts.refused_rows;
      continue;
    }
    const float* const ranked = RankExperts(config, row_logits, bias, scores, selection);
    if (config.num_groups > 1) KeepGroups(config, ranked, kept);
    const BestExperts chosen = Choose(config, ranked, kept, fill, config.top_k);
    if (config.num_groups > 1 && OtherFillDiffers(config, ranked, kept, fill, chosen)) {
      ++counts.group_fill_mismatches;
    }
    const ChoiceWeights row_weights(config, scores.data(), chosen.ids());
    for (int i = 0; i < chosen.size(); ++i) {
      ids[i] = chosen.id(i);
      weights[i] = row_weights.Of(scores[static_cast<size_t>(chosen.id(i))]);
    }
  }
}

void CheckShapes(const GateConfig& config, FloatRows logits, absl::Span<const float> bias) {
  MOEBIUS_CHECK_EQ(logits.width, config.num_experts);
  MOEBIUS_CHECK_LE(config.num_experts, kMaxExperts);
  MOEBIUS_CHECK_LE(config.top_k, kMaxTopK);
  MOEBIUS_CHECK_LE(config.num_groups, kMaxGroups);
  MOEBIUS_CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == config.num_experts);
}

void ListRefusedRows(const GateCounts& counts, Assignments& assignments) {
  if (counts.refused_rows == 0) return;
  for (int64_t row = 0; row < assignments.num_rows; ++row) {
    if (assignments.RowIds(row)[0] == kNoExpert) assignments.refused_rows.push_back(row);
  }
}

}  // namespace

absl::Status ValidateGate(const GateConfig& config) {
  const auto refuse = [](const char* field, int64_t value, const std::string& allowed) {
    return absl::InvalidArgumentError(
        absl::StrFormat("gate: %s is %d; it must be %s", field, value, allowed));
  };
  if (config.num_experts < 1 || config.num_experts > kMaxExperts) {
    return refuse("num_experts", config.num_experts, absl::StrFormat("in [1, %d]", kMaxExperts));
  }
  if (config.top_k < 1 || config.top_k > kMaxTopK) {
    return refuse("top_k", config.top_k, absl::StrFormat("in [1, %d]", kMaxTopK));
  }
  if (config.num_groups < 1 || config.num_groups > kMaxGroups ||
      config.num_experts % config.num_groups != 0) {
    return refuse(
        "num_groups", config.num_groups,
        absl::StrFormat("in [1, %d] and divide num_experts %d", kMaxGroups, config.num_experts));
  }
  if (config.num_kept_groups < 1 || config.num_kept_groups > config.num_groups) {
    return refuse("num_kept_groups", config.num_kept_groups,
                  absl::StrFormat("in [1, num_groups %d]", config.num_groups));
  }
  const int32_t candidates = config.num_experts / config.num_groups * config.num_kept_groups;
  if (config.top_k > candidates) {
    return refuse("top_k", config.top_k,
                  absl::StrFormat("at most %d, the experts of the kept groups", candidates));
  }
  if (!std::isfinite(config.routed_scaling_factor)) {
    return absl::InvalidArgumentError("gate: routed_scaling_factor is not finite");
  }
  return absl::OkStatus();
}

void SelectExperts(const GateConfig& config, GroupFill fill, FloatRows logits,
                   absl::Span<const float> bias, Assignments* assignments, GateCounts* counts) {
  CheckShapes(config, logits, bias);
  assignments->Reset(logits.num_rows, config.top_k);
  *counts = GateCounts();
  SelectRows(config, fill, logits, bias, 0, logits.num_rows, *assignments, *counts);
  ListRefusedRows(*counts, *assignments);
}

void SelectExperts(Executor& executor, const GateConfig& config, GroupFill fill, FloatRows logits,
                   absl::Span<const float> bias, Assignments* assignments, GateCounts* counts) {
  CheckShapes(config, logits, bias);
  assignments->Reset(logits.num_rows, config.top_k);
  std::atomic<int64_t> refused_rows = 0, mismatches = 0;
  const int64_t num_tasks = (logits.num_rows + kRowsPerTask - 1) / kRowsPerTask;
  executor.ParallelFor(num_tasks, [&](int64_t task, int) {
    const int64_t begin = task * kRowsPerTask;
    const int64_t end = std::min(begin + kRowsPerTask, logits.num_rows);
    GateCounts partial;
    SelectRows(config, fill, logits, bias, begin, end, *assignments, partial);
    refused_rows.fetch_add(partial.refused_rows, std::memory_order_relaxed);
    mismatches.fetch_add(partial.group_fill_mismatches, std::memory_order_relaxed);
  });
  *counts = GateCounts{refused_rows.load(), mismatches.load()};
  ListRefusedRows(*counts, *assignments);
}

bool ScoreRow(const GateConfig& config, absl::Span<const float> logits, absl::Span<float> scores) {
  MOEBIUS_CHECK_EQ(static_cast<int64_t>(scores.size()), config.num_experts);
  CheckShapes(config, FloatRows(logits.data(), 1, static_cast<int64_t>(logits.size())), {});
  if (!AllFinite(logits)) return false;
  ExpertScores row_scores;
  ExpertScores selection;
  RankExperts(config, logits, {}, row_scores, selection);
  std::copy_n(row_scores.begin(), scores.size(), scores.begin());
  return true;
}

std::optional<RunnerUp> FindRunnerUp(const GateConfig& config, GroupFill fill,
                                     absl::Span<const float> logits, absl::Span<const float> bias) {
  CheckShapes(config, FloatRows(logits.data(), 1, static_cast<int64_t>(logits.size())), bias);
  if (!AllFinite(logits)) return std::nullopt;
  ExpertScores scores;
  ExpertScores selection;
  std::array<bool, kMaxGroups> kept;
  kept[0] = true;
  const float* const ranked = RankExperts(config, logits, bias, scores, selection);
  if (config.num_groups > 1) KeepGroups(config, ranked, kept);
  const BestExperts best = Choose(config, ranked, kept, fill, config.top_k + 1);
  if (best.size() <= config.top_k) return std::nullopt;
  const int last = config.top_k - 1;
  return RunnerUp{best.id(last), best.id(last + 1), best.score(last) - best.score(last + 1)};
}

void CandidateRanking::Rank(const GateConfig& config, absl::Span<const float> logits,
                            absl::Span<const float> bias) {
  CheckShapes(config, FloatRows(logits.data(), 1, static_cast<int64_t>(logits.size())), bias);
  ExpertScores scores;
  ExpertScores selection;
  std::array<bool, kMaxGroups> kept;
  kept[0] = true;
  const float* const ranked = RankExperts(config, logits, bias, scores, selection);
  if (config.num_groups > 1) KeepGroups(config, ranked, kept);
  const BestExperts chosen =
      Choose(config, ranked, kept, GroupFill::kNegativeInfinity, config.top_k);
  const ChoiceWeights row_weights(config, scores.data(), chosen.ids());
  candidates_.clear();
  const int32_t width = config.num_experts / config.num_groups;
  for (int32_t expert = 0; expert < config.num_experts; ++expert) {
    if (!kept[static_cast<size_t>(expert / width)]) continue;
    candidates_.push_back({expert, row_weights.Of(scores[static_cast<size_t>(expert)])});
  }
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [ranked](const Candidate& a, const Candidate& b) {
                     return ranked[a.expert] > ranked[b.expert];
                   });
}

}  // namespace moebius
