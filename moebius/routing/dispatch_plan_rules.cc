// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/status.h"
#include "moebius/routing/dispatch_plan.h"

namespace moebius {
namespace {

absl::Status Broken(const char* rule, const std::string& what) {
  return absl::InternalError(absl::StrCat("dispatch plan breaks ", rule, ": ", what));
}

// One assignment as a service was asked for it.
struct Asked {
  int32_t id = 0;
  float weight = 0;
  int32_t service = 0;
  int32_t reply_row = 0;
  int64_t reply_terms = 0;  // assignments that this reply row sums
};

// States the rules in their own words, sharing nothing with the builder.
class DispatchPlanRules {
 public:
  DispatchPlanRules(const DispatchPlan& plan, const Assignments& assignments,
                    const Placement& placement, const DispatchLimits& limits)
      : plan_(plan),
        rule_(plan.rule()),
        assignments_(assignments),
        placement_(placement),
        limits_(limits),
        asked_(static_cast<size_t>(assignments.num_rows)) {}

  absl::Status Check() {
    if (plan_.num_rows() != assignments_.num_rows) {
      return Broken("R1", absl::StrFormat("%d rows planned, %d assigned", plan_.num_rows(),
                                          assignments_.num_rows));
    }
    if (plan_.epoch() != placement_.epoch() ||
        plan_.services().size() != static_cast<size_t>(placement_.num_services())) {
      return Broken("R4", absl::StrFormat("%d services in epoch %d, not %d in %d",
                                          plan_.services().size(), plan_.epoch().value(),
                                          placement_.num_services(), placement_.epoch().value()));
    }
    for (const ServiceDispatch& dispatch : plan_.services()) {
      MOEBIUS_RETURN_IF_ERROR(CheckService(dispatch));
    }
    for (int64_t row = 0; row < assignments_.num_rows; ++row) {
      MOEBIUS_RETURN_IF_ERROR(CheckDispatchedOnce(row));
      MOEBIUS_RETURN_IF_ERROR(CheckSum(row));
    }
    MOEBIUS_RETURN_IF_ERROR(CheckEveryReplyCombined());
    return CheckConservation();
  }

 private:
  bool IsRefused(int64_t row) const {
    for (const int64_t refused : assignments_.refused_rows) {
      if (refused == row) return true;
    }
    return false;
  }

  absl::Status CheckService(const ServiceDispatch& dispatch) {
    const int32_t service = dispatch.service.value();
    if (dispatch.num_rows() > 0 && !limits_.usable_services.empty() &&
        limits_.usable_services[static_cast<size_t>(service)] == 0) {
      return Broken("R6", absl::StrFormat("service %d is unusable and has rows", service));
    }
    if (limits_.max_rows_per_service > 0 && dispatch.num_rows() > limits_.max_rows_per_service) {
      return Broken("R6", absl::StrFormat("service %d has %d rows, limit %d", service,
                                          dispatch.num_rows(), limits_.max_rows_per_service));
    }
    // Ascending rows are distinct rows (R3); ids, offsets and joins are in range (R5).
    const int32_t num_ids = rule_.num_experts + rule_.num_slices;
    const absl::Status valid = ValidateServiceDispatch(dispatch, assignments_.num_rows, num_ids);
    if (!valid.ok()) {
      return Broken("R3 or R5",
                    absl::StrFormat("service %d: %s", service, std::string(valid.message())));
    }
    int32_t reply_row = -1;
    for (int64_t row = 0; row < dispatch.num_rows(); ++row) {
      CollectRow(dispatch, static_cast<size_t>(row), reply_row);
    }
    if (reply_row + 1 != dispatch.num_reply_rows) {
      return Broken("R9", absl::StrFormat("service %d has %d reply rows, its dispatch says %d",
                                          service, reply_row + 1, dispatch.num_reply_rows));
    }
    return CheckOrder(dispatch);
  }

  void CollectRow(const ServiceDispatch& dispatch, size_t row, int32_t& reply_row) {
    std::vector<Asked>& asked = asked_[static_cast<size_t>(dispatch.row_ids[row])];
    for (int64_t a = dispatch.row_begin[row]; a < dispatch.row_begin[row + 1]; ++a) {
      const auto index = static_cast<size_t>(a);
      if (dispatch.joins_previous[index] == 0) ++reply_row;
      asked.push_back(Asked{dispatch.expert_ids[index], dispatch.weights[index],
                            dispatch.service.value(), reply_row, 0});
    }
    for (Asked& each : asked) {
      if (each.service != dispatch.service.value()) continue;
      each.reply_terms = 0;
      for (const Asked& other : asked) {
        each.reply_terms += other.service == each.service && other.reply_row == each.reply_row;
      }
    }
  }

  absl::Status CheckOrder(const ServiceDispatch& dispatch) {
    // Where each assignment lies in the order of experts, by a plain scan.
    for (const ExpertSegment& segment : dispatch.experts) {
      if (!placement_.Holds(rule_.layer, segment.id, dispatch.service)) {
        return Broken("R4", absl::StrFormat("service %d is asked for expert %d, which it lacks",
                                            dispatch.service.value(), segment.id.value()));
      }
    }
    std::vector<std::pair<int32_t, int32_t>> seen(dispatch.expert_ids.size(), {-1, -1});
    for (int64_t row = 0; row < dispatch.num_rows(); ++row) {
      for (int64_t a = dispatch.row_begin[static_cast<size_t>(row)];
           a < dispatch.row_begin[static_cast<size_t>(row) + 1]; ++a) {
        const auto index = static_cast<size_t>(a);
        const auto position = static_cast<size_t>(dispatch.expert_position[index]);
        if (position >= seen.size() || seen[position].first >= 0 ||
            dispatch.expert_rows[position] != dispatch.row_ids[static_cast<size_t>(row)]) {
          return Broken("R9", absl::StrFormat("service %d: assignment %d is not in place",
                                              dispatch.service.value(), a));
        }
        seen[position] = {dispatch.expert_ids[index], dispatch.row_ids[static_cast<size_t>(row)]};
      }
    }
    size_t next = 0;
    for (const ExpertSegment& segment : dispatch.experts) {
      for (int64_t position = segment.begin; position < segment.end; ++position, ++next) {
        if (position != static_cast<int64_t>(next) || seen[next].first != segment.id.value() ||
            (next > 0 && !(seen[next - 1] < seen[next]))) {
          return Broken("R9",
                        absl::StrFormat("service %d: place %d of expert %d is wrong",
                                        dispatch.service.value(), position, segment.id.value()));
        }
      }
    }
    if (next != seen.size()) {
      return Broken("R9", absl::StrFormat("service %d: experts cover %d of %d assignments",
                                          dispatch.service.value(), next, seen.size()));
    }
    return absl::OkStatus();
  }

  // The assignments of a row in the order of its sum: what R1 and R7 are judged by.
  std::vector<std::pair<int32_t, float>> ExpectedTerms(int64_t row) const {
    std::vector<std::pair<int32_t, float>> terms;
    if (IsRefused(row)) return terms;
    for (int32_t group = 0; group < rule_.num_combine_groups; ++group) {
      for (int32_t choice = 0; choice < assignments_.top_k; ++choice) {
        const int32_t id = assignments_.RowIds(row)[static_cast<size_t>(choice)];
        if (id >= 0 && rule_.CombineGroup(id) == group) {
          terms.emplace_back(id, assignments_.RowWeights(row)[static_cast<size_t>(choice)]);
        }
      }
    }
    for (int32_t slice = 0; slice < rule_.num_slices; ++slice) {
      terms.emplace_back(rule_.num_experts + slice, 1.0f);
    }
    return terms;
  }

  absl::Status CheckDispatchedOnce(int64_t row) const {
    const std::vector<std::pair<int32_t, float>> expected = ExpectedTerms(row);
    std::set<std::pair<int32_t, float>> kept(expected.begin(), expected.end());
    for (const Asked& asked : asked_[static_cast<size_t>(row)]) {
      if (kept.erase({asked.id, asked.weight}) != 1) {
        return Broken("R1", absl::StrFormat("row %d: expert %d is dispatched twice or uncalled for",
                                            row, asked.id));
      }
    }
    if (!kept.empty()) {
      return Broken(
          "R1", absl::StrFormat("row %d: expert %d is not dispatched", row, kept.begin()->first));
    }
    return absl::OkStatus();
  }

  const Asked* FindAsked(int64_t row, int32_t id) const {
    for (const Asked& asked : asked_[static_cast<size_t>(row)]) {
      if (asked.id == id) return &asked;
    }
    return nullptr;
  }

  int32_t SumGroup(int32_t id) const {
    return id < rule_.num_experts ? rule_.CombineGroup(id) : rule_.num_combine_groups;
  }

  // Walks a row's entries beside the terms that the model wants, in the model's order.
  absl::Status CheckSum(int64_t row) const {
    const std::vector<std::pair<int32_t, float>> terms = ExpectedTerms(row);
    size_t term = 0;
    for (const CombineEntry& entry : plan_.Entries(row)) {
      if (term >= terms.size()) {
        return Broken("R7", absl::StrFormat("row %d has more entries than terms", row));
      }
      const Asked* const asked = FindAsked(row, terms[term].first);
      if (asked->service != entry.service || asked->reply_row != entry.reply_row) {
        return Broken("R7", absl::StrFormat("row %d takes expert %d from service %d, reply %d", row,
                                            terms[term].first, entry.service, entry.reply_row));
      }
      const auto num_terms = static_cast<size_t>(asked->reply_terms);
      MOEBIUS_RETURN_IF_ERROR(CheckEntry(row, terms, term, num_terms, entry));
      term += num_terms;
    }
    if (term != terms.size()) {
      return Broken("R1",
                    absl::StrFormat("row %d combines %d of %d terms", row, term, terms.size()));
    }
    return absl::OkStatus();
  }

  absl::Status CheckEntry(int64_t row, const std::vector<std::pair<int32_t, float>>& terms,
                          size_t first, size_t num_terms, const CombineEntry& entry) const {
    const int32_t group = SumGroup(terms[first].first);
    const size_t end = first + num_terms;
    const bool starts = first == 0 || SumGroup(terms[first - 1].first) != group;
    const bool ends = end >= terms.size() || SumGroup(terms[end].first) != group;
    const bool is_slice = group == rule_.num_combine_groups;
    if (num_terms > 1) {
      for (size_t i = first; i < end; ++i) {
        const Asked* const asked = i < terms.size() ? FindAsked(row, terms[i].first) : nullptr;
        if (asked == nullptr || asked->reply_row != entry.reply_row ||
            asked->service != entry.service || SumGroup(terms[i].first) != group) {
          return Broken("R8", absl::StrFormat("row %d: reply %d of service %d sums more than a "
                                              "group",
                                              row, entry.reply_row, entry.service));
        }
      }
      if (!starts || !ends || (is_slice && assignments_.top_k > 0)) {
        return Broken("R8", absl::StrFormat("row %d: reply %d of service %d is no whole group", row,
                                            entry.reply_row, entry.service));
      }
    }
    const auto kind =
        is_slice ? (num_terms > 1 ? CombineEntry::Kind::kRowSum : CombineEntry::Kind::kSlice)
                 : (num_terms > 1 ? CombineEntry::Kind::kGroupSum : CombineEntry::Kind::kTerm);
    if (entry.kind != kind || (!is_slice && entry.ends_group != ends) ||
        (kind == CombineEntry::Kind::kTerm && entry.weight != terms[first].second)) {
      return Broken("R7", absl::StrFormat("row %d: the entry of expert %d has the wrong kind, end "
                                          "or weight",
                                          row, terms[first].first));
    }
    return absl::OkStatus();
  }

  absl::Status CheckEveryReplyCombined() const {
    std::vector<std::vector<int>> combined;
    for (const ServiceDispatch& dispatch : plan_.services()) {
      combined.emplace_back(static_cast<size_t>(dispatch.num_reply_rows), 0);
    }
    for (int64_t row = 0; row < plan_.num_rows(); ++row) {
      for (const CombineEntry& entry : plan_.Entries(row)) {
        ++combined[static_cast<size_t>(entry.service)][static_cast<size_t>(entry.reply_row)];
      }
    }
    for (size_t service = 0; service < combined.size(); ++service) {
      for (size_t reply = 0; reply < combined[service].size(); ++reply) {
        if (combined[service][reply] != 1) {
          return Broken("R9", absl::StrFormat("reply %d of service %d is combined %d times", reply,
                                              service, combined[service][reply]));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckConservation() const {
    std::vector<int64_t> demand(static_cast<size_t>(rule_.num_experts), 0);
    std::vector<int64_t> dropped = demand, served = demand;
    for (const int32_t id : assignments_.expert_ids) {
      if (id == kNoExpert) continue;
      ++demand[static_cast<size_t>(DemandedExpert(id))];
      if (IsDropped(id)) ++dropped[static_cast<size_t>(DemandedExpert(id))];
    }
    DispatchCounts counts;
    for (const ServiceDispatch& dispatch : plan_.services()) {
      for (const int32_t id : dispatch.expert_ids) {
        if (id < rule_.num_experts) ++served[static_cast<size_t>(id)];
      }
      counts.dispatched_rows += dispatch.num_rows();
      counts.reply_rows += dispatch.num_reply_rows;
      counts.active_experts += static_cast<int64_t>(dispatch.experts.size());
    }
    for (size_t e = 0; e < demand.size(); ++e) {
      if (demand[e] != served[e] + dropped[e]) {
        return Broken("R2", absl::StrFormat("expert %d: demand %d, served %d, dropped %d", e,
                                            demand[e], served[e], dropped[e]));
      }
      counts.demanded += demand[e];
      counts.served += served[e];
      counts.dropped += dropped[e];
    }
    const DispatchCounts& said = plan_.counts();
    if (said.demanded != counts.demanded || said.served != counts.served ||
        said.dropped != counts.dropped || said.dispatched_rows != counts.dispatched_rows ||
        said.reply_rows != counts.reply_rows || said.active_experts != counts.active_experts) {
      return Broken("R2", absl::StrFormat("counted demand %d, served %d, dropped %d; said %d, %d, "
                                          "%d",
                                          counts.demanded, counts.served, counts.dropped,
                                          said.demanded, said.served, said.dropped));
    }
    return absl::OkStatus();
  }

  const DispatchPlan& plan_;
  const LayerRule& rule_;
  const Assignments& assignments_;
  const Placement& placement_;
  const DispatchLimits& limits_;
  std::vector<std::vector<Asked>> asked_;  // by row
};

}  // namespace

absl::Status ValidateDispatchPlan(const DispatchPlan& plan, const Assignments& assignments,
                                  const Placement& placement, const DispatchLimits& limits) {
  return DispatchPlanRules(plan, assignments, placement, limits).Check();
}

}  // namespace moebius
