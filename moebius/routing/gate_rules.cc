// SPDX-License-Identifier: Apache-2.0
// The rules of what a gate chose, checked from scratch: slowly, and sharing only the scores with
// the code that chose.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/routing/gate.h"

namespace moebius {
namespace {

// Of weights that were computed in fp32 against their definition in double.
constexpr double kWeightTolerance = 1e-5;

absl::Status Broken(const char* rule, int64_t row, const std::string& what) {
  return absl::InternalError(absl::StrFormat("gate rule %s: row %d %s", rule, row, what));
}

// One row: what it was chosen from, and what was chosen.
struct RowOfGate {
  int64_t index = 0;
  std::vector<float> scores;     // [E], before any bias
  std::vector<float> selection;  // [E], scores + bias; those outside the kept groups as filled
  absl::Span<const int32_t> ids;
  absl::Span<const float> weights;
};

// Whether `a` comes before `b` in the order of choice.
bool Precedes(const std::vector<float>& values, size_t a, size_t b) {
  return values[a] > values[b] || (values[a] == values[b] && a < b);
}

double SumOfTwoBest(const float* begin, int32_t width) {
  std::vector<float> members(begin, begin + width);
  std::sort(members.rbegin(), members.rend());
  return width == 1 ? members[0] : members[0] + members[1];
}

// Replaces the selection scores outside the kept groups, and says which groups are kept.
std::vector<uint8_t> LimitGroups(const GateConfig& config, GroupFill fill,
                                 std::vector<float>& selection) {
  const int32_t width = config.num_experts / config.num_groups;
  std::vector<float> scores;
  for (int32_t group = 0; group < config.num_groups; ++group) {
    scores.push_back(static_cast<float>(SumOfTwoBest(selection.data() + group * width, width)));
  }
  std::vector<uint8_t> kept(scores.size());
  for (size_t group = 0; group < scores.size(); ++group) {
    int32_t before = 0;
    for (size_t other = 0; other < scores.size(); ++other) {
      before += static_cast<int32_t>(Precedes(scores, other, group));
    }
    kept[group] = before < config.num_kept_groups ? 1 : 0;
    if (kept[group] == 1) continue;
    std::fill_n(selection.begin() + static_cast<std::ptrdiff_t>(group) * width, width,
                fill == GroupFill::kZero ? 0.0f : -std::numeric_limits<float>::infinity());
  }
  return kept;
}

absl::Status CheckIds(const GateConfig& config, const RowOfGate& row) {
  for (size_t choice = 0; choice < row.ids.size(); ++choice) {
    const int32_t id = row.ids[choice];
    if (id < 0 || id >= config.num_experts) {
      return Broken("G2", row.index, absl::StrFormat("has expert %d", id));
    }
    if (std::count(row.ids.begin(), row.ids.begin() + static_cast<std::ptrdiff_t>(choice), id)) {
      return Broken("G2", row.index, absl::StrFormat("has expert %d twice", id));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGroups(const GateConfig& config, const std::vector<uint8_t>& kept,
                         const RowOfGate& row) {
  for (const int32_t id : row.ids) {
    const int32_t group = id / (config.num_experts / config.num_groups);
    if (kept[static_cast<size_t>(group)] == 0) {
      return Broken("G3", row.index,
                    absl::StrFormat("has expert %d of group %d, which is not kept", id, group));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOrder(const RowOfGate& row) {
  for (size_t choice = 1; choice < row.ids.size(); ++choice) {
    if (!Precedes(row.selection, static_cast<size_t>(row.ids[choice - 1]),
                  static_cast<size_t>(row.ids[choice]))) {
      return Broken(
          "G4", row.index,
          absl::StrFormat("has expert %d before %d", row.ids[choice - 1], row.ids[choice]));
    }
  }
  const auto last = static_cast<size_t>(row.ids.back());
  for (size_t expert = 0; expert < row.selection.size(); ++expert) {
    if (!Precedes(row.selection, expert, last)) continue;
    if (std::count(row.ids.begin(), row.ids.end(), static_cast<int32_t>(expert)) == 0) {
      return Broken("G4", row.index,
                    absl::StrFormat("leaves out expert %d, better than %d", expert, last));
    }
  }
  return absl::OkStatus();
}

double UnscaledWeight(ScoreFunction function, float score, double largest) {
  switch (function) {
    case ScoreFunction::kSigmoid:
    case ScoreFunction::kSoftmax:
      return score;
    case ScoreFunction::kSoftmaxOfChosen:
      return std::exp(score - largest);
    case ScoreFunction::kSigmoidOfChosen:
      return 1 / (1 + std::exp(-static_cast<double>(score)));
  }
  return 0;
}

absl::Status CheckWeights(const GateConfig& config, const RowOfGate& row) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const int32_t id : row.ids) {
    largest = std::max<double>(largest, row.scores[static_cast<size_t>(id)]);
  }
  const auto unscaled = [&](int32_t id) {
    return UnscaledWeight(config.score_function, row.scores[static_cast<size_t>(id)], largest);
  };
  for (const int32_t id : row.ids) sum += unscaled(id);
  const bool is_divided =
      config.normalize_weights || config.score_function == ScoreFunction::kSoftmaxOfChosen;
  for (size_t choice = 0; choice < row.ids.size(); ++choice) {
    const double expected =
        unscaled(row.ids[choice]) / (is_divided ? sum + 1e-20 : 1) * config.routed_scaling_factor;
    const double error = std::abs(row.weights[choice] - expected);
    // A weight that is not finite fails this as well.
    if (!(error <= kWeightTolerance * (std::abs(expected) + 1e-20))) {
      return Broken("G5", row.index,
                    absl::StrFormat("weighs expert %d by %g, not by %g", row.ids[choice],
                                    row.weights[choice], expected));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRefused(bool is_listed, const RowOfGate& row) {
  if (!is_listed) return Broken("G1", row.index, "is not finite and is not listed as refused");
  for (size_t choice = 0; choice < row.ids.size(); ++choice) {
    if (row.ids[choice] != kNoExpert || row.weights[choice] != 0) {
      return Broken("G1", row.index, "is refused and chooses");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateAssignments(const GateConfig& config, GroupFill fill, FloatRows logits,
                                 absl::Span<const float> bias, const Assignments& assignments) {
  if (assignments.num_rows != logits.num_rows || assignments.top_k != config.top_k) {
    return absl::InternalError(
        absl::StrFormat("gate rule G1: %d rows of %d choices for %d rows, top-%d",
                        assignments.num_rows, assignments.top_k, logits.num_rows, config.top_k));
  }
  size_t num_refused = 0;
  RowOfGate row;
  row.scores.resize(static_cast<size_t>(config.num_experts));
  for (row.index = 0; row.index < logits.num_rows; ++row.index) {
    row.ids = assignments.RowIds(row.index);
    row.weights = assignments.RowWeights(row.index);
    const bool is_listed = num_refused < assignments.refused_rows.size() &&
                           assignments.refused_rows[num_refused] == row.index;
    num_refused += static_cast<size_t>(is_listed);
    if (!ScoreRow(config, logits.span(row.index), absl::MakeSpan(row.scores))) {
      MOEBIUS_RETURN_IF_ERROR(CheckRefused(is_listed, row));
      continue;
    }
    if (is_listed) return Broken("G1", row.index, "is finite and is listed as refused");
    row.selection = row.scores;
    for (size_t expert = 0; expert < bias.size(); ++expert) row.selection[expert] += bias[expert];
    MOEBIUS_RETURN_IF_ERROR(CheckIds(config, row));
    if (config.num_groups > 1) {
      const std::vector<uint8_t> kept = LimitGroups(config, fill, row.selection);
      if (fill == GroupFill::kNegativeInfinity) {
        MOEBIUS_RETURN_IF_ERROR(CheckGroups(config, kept, row));
      }
    }
    MOEBIUS_RETURN_IF_ERROR(CheckOrder(row));
    MOEBIUS_RETURN_IF_ERROR(CheckWeights(config, row));
  }
  if (num_refused != assignments.refused_rows.size()) {
    return absl::InternalError("gate rule G1: refused rows are not ascending, or do not exist");
  }
  return absl::OkStatus();
}

}  // namespace moebius
