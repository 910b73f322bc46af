// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/capacity.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "moebius/base/check.h"
#include "moebius/base/parse_number.h"
#include "moebius/base/status.h"
#include "moebius/routing/gate.h"

namespace moebius {
namespace {

// What rounding a factor to a double, and its products, can add.
constexpr double kRounding = 1e-12;

constexpr std::pair<CapacityOrder, absl::string_view> kOrders[] = {
    {CapacityOrder::kWeight, "weight"},
    {CapacityOrder::kPosition, "position"},
    {CapacityOrder::kToken, "token"},
};
constexpr std::pair<CapacityOverflow, absl::string_view> kOverflows[] = {
    {CapacityOverflow::kDrop, "drop"},
    {CapacityOverflow::kDropRenormalize, "drop_renormalize"},
    {CapacityOverflow::kNextBest, "next_best"},
    {CapacityOverflow::kReject, "reject"},
};

template <typename Enum, size_t kSize>
absl::string_view NameOf(const std::pair<Enum, absl::string_view> (&names)[kSize], Enum value) {
  return names[static_cast<size_t>(value)].second;
}

template <typename Enum, size_t kSize>
absl::Status ReadName(const std::pair<Enum, absl::string_view> (&names)[kSize],
                      absl::string_view flag, const std::string& text, Enum* value) {
  if (text.empty()) return absl::OkStatus();
  std::vector<absl::string_view> known;
  for (const auto& [candidate, name] : names) {
    known.push_back(name);
    if (name != text) continue;
    *value = candidate;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is '", text, "'; it must be one of ", absl::StrJoin(known, ", ")));
}

// Scales what a row keeps to the sum that all of it had. `weights` are those of before the drop.
void KeepSumOfWeights(absl::Span<const int32_t> ids, absl::Span<float> weights) {
  float all = 0, kept = 0;
  for (size_t choice = 0; choice < ids.size(); ++choice) {
    all += weights[choice];
    if (!IsDropped(ids[choice])) kept += weights[choice];
  }
  if (kept == 0) return;
  for (size_t choice = 0; choice < ids.size(); ++choice) {
    if (!IsDropped(ids[choice])) weights[choice] = weights[choice] / kept * all;
  }
}

}  // namespace

absl::Status ValidateCapacity(const CapacityPolicy& policy) {
  if (!std::isfinite(policy.factor) || policy.factor < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("capacity: factor is %g; it must be 0 (dropless) or more", policy.factor));
  }
  if (policy.min_capacity < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "capacity: min_capacity is %d; it must be at least 1", policy.min_capacity));
  }
  if (policy.max_tries < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("capacity: max_tries is %d; it must be at least 1", policy.max_tries));
  }
  return absl::OkStatus();
}

absl::StatusOr<CapacityPolicy> ParseCapacity(const CapacityText& text) {
  CapacityPolicy policy;
  if (text.factor.empty() &&
      !(text.min_capacity.empty() && text.order.empty() && text.overflow.empty())) {
    return absl::InvalidArgumentError("a capacity policy needs --capacity-factor");
  }
  if (!text.factor.empty()) {
    MOEBIUS_ASSIGN_OR_RETURN(policy.factor, ParseNumber("--capacity-factor", text.factor));
  }
  if (!text.min_capacity.empty()) {
    MOEBIUS_ASSIGN_OR_RETURN(policy.min_capacity,
                             ParseInteger("--min-capacity", text.min_capacity));
  }
  MOEBIUS_RETURN_IF_ERROR(ReadName(kOrders, "--capacity-by", text.order, &policy.order));
  MOEBIUS_RETURN_IF_ERROR(
      ReadName(kOverflows, "--capacity-overflow", text.overflow, &policy.overflow));
  MOEBIUS_RETURN_IF_ERROR(ValidateCapacity(policy));
  return policy;
}

std::string DescribeCapacity(const CapacityPolicy& policy) {
  if (policy.dropless()) return "dropless";
  return absl::StrCat("capacity factor ", policy.factor, " by ", NameOf(kOrders, policy.order),
                      ", ", NameOf(kOverflows, policy.overflow), "; of all rows of a step");
}

int64_t ExpertCapacity(const CapacityPolicy& policy, int64_t num_rows, int32_t top_k,
                       int32_t num_experts) {
  MOEBIUS_CHECK(!policy.dropless());
  const double rows = policy.factor * static_cast<double>(num_rows) * top_k / num_experts;
  // Nobody has more rows than there are.
  const double capacity = std::min(std::ceil(rows * (1 - kRounding)), 0x1p62);
  return std::max(policy.min_capacity, static_cast<int64_t>(capacity));
}

void CapacityLimiter::Apply(const CapacityPolicy& policy, int32_t num_experts,
                            const GateInput& gate, Assignments* assignments,
                            CapacityResult* result) {
  const auto experts = static_cast<size_t>(num_experts);
  for (auto* by_expert :
       {&result->demand, &result->dropped, &result->rerouted_out, &result->rerouted_in}) {
    by_expert->assign(experts, 0);
  }
  result->capacity = result->total_dropped = result->total_rerouted = 0;
  result->rejected_rows.clear();
  result->dropped_of_row.clear();
  result->rerouted_of_row.clear();
  GroupByExpert(*assignments, num_experts);
  for (size_t expert = 0; expert < experts; ++expert) {
    result->demand[expert] = begin_[expert + 1] - begin_[expert];
  }
  if (policy.dropless() || assignments->top_k == 0) return;

  const auto refused = static_cast<int64_t>(assignments->refused_rows.size());
  result->capacity =
      ExpertCapacity(policy, assignments->num_rows - refused, assignments->top_k, num_experts);
  FindOverflow(policy, *assignments, result->capacity);
  if (overflow_.empty()) return;
  const auto num_rows = static_cast<size_t>(assignments->num_rows);
  result->dropped_of_row.assign(num_rows, 0);
  result->rerouted_of_row.assign(num_rows, 0);
  switch (policy.overflow) {
    case CapacityOverflow::kDrop:
      Drop(*assignments, *result);
      break;
    case CapacityOverflow::kDropRenormalize:
      Drop(*assignments, *result);
      for (size_t row = 0; row < num_rows; ++row) {
        if (result->dropped_of_row[row] == 0) continue;
        const size_t first = row * static_cast<size_t>(assignments->top_k);
        KeepSumOfWeights(assignments->RowIds(static_cast<int64_t>(row)),
                         absl::MakeSpan(assignments->weights)
                             .subspan(first, static_cast<size_t>(assignments->top_k)));
      }
      break;
    case CapacityOverflow::kNextBest:
      Reroute(policy, gate, *assignments, *result);
      break;
    case CapacityOverflow::kReject:
      RejectRows(*assignments, *result);
      break;
  }
}

// A counting sort: begin_, by_expert_.
void CapacityLimiter::GroupByExpert(const Assignments& assignments, int32_t num_experts) {
  begin_.assign(static_cast<size_t>(num_experts) + 1, 0);
  for (const int32_t id : assignments.expert_ids) {
    MOEBIUS_DCHECK(id == kNoExpert || !IsDropped(id));
    if (id != kNoExpert) ++begin_[static_cast<size_t>(id) + 1];
  }
  for (size_t expert = 1; expert < begin_.size(); ++expert) begin_[expert] += begin_[expert - 1];
  by_expert_.resize(static_cast<size_t>(begin_.back()));
  taken_.assign(begin_.begin(), begin_.end() - 1);  // places to fill
  for (size_t a = 0; a < assignments.expert_ids.size(); ++a) {
    const int32_t id = assignments.expert_ids[a];
    if (id == kNoExpert) continue;
    by_expert_[static_cast<size_t>(taken_[static_cast<size_t>(id)]++)] = static_cast<int64_t>(a);
  }
}

void CapacityLimiter::FindOverflow(const CapacityPolicy& policy, const Assignments& assignments,
                                   int64_t capacity) {
  overflow_.clear();
  const int64_t top_k = assignments.top_k;
  // Indices are in the order of (token, choice), and distinct: every order below is total.
  const auto before = [&](int64_t a, int64_t b) {
    switch (policy.order) {
      case CapacityOrder::kWeight: {
        const float weight_a = assignments.weights[static_cast<size_t>(a)];
        const float weight_b = assignments.weights[static_cast<size_t>(b)];
        return weight_a != weight_b ? weight_a > weight_b : a < b;
      }
      case CapacityOrder::kPosition:
        return a % top_k != b % top_k ? a % top_k < b % top_k : a < b;
      case CapacityOrder::kToken:
        break;
    }
    return a < b;
  };
  for (size_t expert = 0; expert + 1 < begin_.size(); ++expert) {
    if (begin_[expert + 1] - begin_[expert] <= capacity) continue;
    const auto begin = by_expert_.begin() + begin_[expert];
    const auto end = by_expert_.begin() + begin_[expert + 1];
    std::nth_element(begin, begin + capacity, end, before);
    overflow_.insert(overflow_.end(), begin + capacity, end);
  }
  std::sort(overflow_.begin(), overflow_.end());
}

void CapacityLimiter::Drop(Assignments& assignments, CapacityResult& result) {
  for (const int64_t a : overflow_) {
    int32_t& id = assignments.expert_ids[static_cast<size_t>(a)];
    ++result.dropped[static_cast<size_t>(id)];
    ++result.dropped_of_row[static_cast<size_t>(a / assignments.top_k)];
    ++result.total_dropped;
    id = MarkDropped(id);
  }
}

void CapacityLimiter::Reroute(const CapacityPolicy& policy, const GateInput& gate,
                              Assignments& assignments, CapacityResult& result) {
  MOEBIUS_CHECK(gate.config != nullptr);
  MOEBIUS_CHECK_EQ(gate.logits.num_rows, assignments.num_rows);
  for (size_t expert = 0; expert < result.demand.size(); ++expert) {
    taken_[expert] = std::min(result.demand[expert], result.capacity);
  }
  CandidateRanking candidates;
  int64_t ranked_row = -1;
  for (const int64_t a : overflow_) {
    const int64_t row = a / assignments.top_k;
    if (row != std::exchange(ranked_row, row)) {
      candidates.Rank(*gate.config, gate.logits.span(row), gate.bias);
    }
    int32_t& id = assignments.expert_ids[static_cast<size_t>(a)];
    const auto full = static_cast<size_t>(id);
    const absl::Span<const int32_t> chosen = assignments.RowIds(row);
    int32_t tries = 0;
    std::optional<CandidateRanking::Candidate> found;
    for (const CandidateRanking::Candidate& candidate : candidates.all()) {
      const bool is_chosen = std::any_of(chosen.begin(), chosen.end(), [&](int32_t other) {
        return DemandedExpert(other) == candidate.expert;
      });
      if (is_chosen) continue;
      if (tries++ == policy.max_tries) break;
      if (taken_[static_cast<size_t>(candidate.expert)] == result.capacity) continue;
      found = candidate;
      break;
    }
    if (!found.has_value()) {
      ++result.dropped[full];
      ++result.dropped_of_row[static_cast<size_t>(row)];
      ++result.total_dropped;
      id = MarkDropped(id);
      continue;
    }
    ++taken_[static_cast<size_t>(found->expert)];
    ++result.rerouted_out[full];
    ++result.rerouted_in[static_cast<size_t>(found->expert)];
    ++result.rerouted_of_row[static_cast<size_t>(row)];
    ++result.total_rerouted;
    id = found->expert;
    assignments.weights[static_cast<size_t>(a)] = found->weight;
  }
}

// A row of which one assignment does not fit is left out as a whole.
void CapacityLimiter::RejectRows(Assignments& assignments, CapacityResult& result) {
  for (const int64_t a : overflow_) {
    const int64_t row = a / assignments.top_k;
    if (result.rejected_rows.empty() || result.rejected_rows.back() != row) {
      result.rejected_rows.push_back(row);
    }
  }
  for (const int64_t row : result.rejected_rows) {
    for (int64_t choice = 0; choice < assignments.top_k; ++choice) {
      int32_t& id = assignments.expert_ids[static_cast<size_t>(row * assignments.top_k + choice)];
      ++result.dropped[static_cast<size_t>(id)];
      id = MarkDropped(id);
    }
    result.dropped_of_row[static_cast<size_t>(row)] = assignments.top_k;
    result.total_dropped += assignments.top_k;
  }
}

}  // namespace moebius
