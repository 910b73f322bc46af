// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/dispatch_plan.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/routing/replica_choice.h"

namespace moebius {
struct DispatchPlan::Scratch {
  // One assignment of a row on its way from the gate to a service.
  struct Route {
    int32_t id = 0;
    int32_t service = 0;
    float weight = 0;
    int32_t group = 0;  // combine group; num_combine_groups for a slice
    uint8_t joins_previous = 0;
  };

  ReplicaChoice replicas;
  std::vector<int64_t> rows_of_id;
  std::vector<int32_t> group_of_id;
  // By service.
  std::vector<int64_t> last_row;     // the last row that came by
  std::vector<int64_t> num_rows;     // then the next row's place
  std::vector<int64_t> num_routes;   // then the next assignment's place
  std::vector<int64_t> num_replies;  // then the next reply row's number
  // By row, in the order of its sum.
  std::vector<Route> routes;
  std::vector<int64_t> route_begin;  // [num_rows + 1]
  // Of DeriveDispatchOrder, [ids].
  std::vector<int64_t> counts;
};

DispatchPlan::DispatchPlan() : scratch_(std::make_unique<Scratch>()) {}
DispatchPlan::~DispatchPlan() = default;
DispatchPlan::DispatchPlan(DispatchPlan&&) noexcept = default;
DispatchPlan& DispatchPlan::operator=(DispatchPlan&&) noexcept = default;

absl::Span<const CombineEntry> DispatchPlan::Entries(int64_t row) const {
  MOEBIUS_DCHECK(row >= 0 && row < num_rows_);
  const auto begin = static_cast<size_t>(entry_begin_[static_cast<size_t>(row)]);
  const auto end = static_cast<size_t>(entry_begin_[static_cast<size_t>(row) + 1]);
  return absl::MakeConstSpan(entries_).subspan(begin, end - begin);
}

class DispatchPlanBuilder {
 public:
  DispatchPlanBuilder(const LayerRule& rule, const Assignments& assignments,
                      const Placement& placement, const DispatchLimits& limits, DispatchPlan& plan)
      : rule_(rule),
        assignments_(assignments),
        placement_(placement),
        limits_(limits),
        plan_(plan),
        scratch_(*plan.scratch_),
        num_ids_(rule.num_experts + rule.num_slices),
        num_services_(placement.num_services()) {}

  absl::Status Build() {
    MOEBIUS_RETURN_IF_ERROR(CheckShapes());
    MOEBIUS_RETURN_IF_ERROR(CountRows());
    MOEBIUS_RETURN_IF_ERROR(scratch_.replicas.Choose(rule_.layer, placement_, limits_,
                                                     scratch_.rows_of_id, assignments_.num_rows));
    RouteRows();
    MOEBIUS_RETURN_IF_ERROR(CheckLimits());
    PlaceServices();
    for (int64_t row = 0; row < assignments_.num_rows; ++row) FillRow(row);
    DeriveOrders();
    plan_.num_rows_ = assignments_.num_rows;
    return absl::OkStatus();
  }

  // A plan without rows, with the same number of services.
  void Clear() {
    plan_.rule_ = rule_;
    plan_.epoch_ = placement_.epoch();
    plan_.num_rows_ = 0;
    plan_.counts_ = DispatchCounts();
    plan_.row_begin_.assign(1, 0);
    plan_.entry_begin_.assign(1, 0);
    plan_.services_.resize(static_cast<size_t>(num_services_));
    for (int32_t s = 0; s < num_services_; ++s) {
      ServiceDispatch& dispatch = plan_.services_[static_cast<size_t>(s)];
      dispatch = ServiceDispatch();
      dispatch.service = ServiceId(s);
      dispatch.epoch = placement_.epoch();
      dispatch.row_begin = plan_.row_begin_;
    }
  }

 private:
  using Route = DispatchPlan::Scratch::Route;

  absl::Status CheckShapes() const;
  absl::Status CountRows();
  void RouteRows();
  void RouteRow(int64_t row);
  void JoinWholeGroups(int64_t first);
  void CountRoutes(int64_t row, int64_t first);
  absl::Status CheckLimits() const;
  void PlaceServices();
  void FillRow(int64_t row);
  void AddEntry(const Route& route, const Route* next);
  void DeriveOrders();

  const LayerRule& rule_;
  const Assignments& assignments_;
  const Placement& placement_;
  const DispatchLimits& limits_;
  DispatchPlan& plan_;
  DispatchPlan::Scratch& scratch_;
  const int32_t num_ids_;
  const int32_t num_services_;
};

absl::Status DispatchPlanBuilder::CheckShapes() const {
  const auto refuse = [](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("dispatch plan: ", what));
  };
  const PlacementShape& shape = placement_.shape();
  const int32_t layer = rule_.layer.value();
  if (layer < 0 || layer >= placement_.num_layers()) {
    return refuse(
        absl::StrFormat("layer %d; the placement has %d", layer, placement_.num_layers()));
  }
  const PlacementShape::Layer& facts = shape.LayerAt(rule_.layer);
  if (rule_.num_experts != shape.num_experts || rule_.num_slices != facts.num_slices ||
      (assignments_.top_k > 0) != facts.has_experts) {
    return refuse(absl::StrFormat(
        "layer %d has %d experts, %d slices, %d choices; the placement has %d, %d, %s", layer,
        rule_.num_experts, rule_.num_slices, assignments_.top_k, shape.num_experts,
        facts.num_slices, facts.has_experts ? "some" : "none"));
  }
  if (assignments_.top_k < 0 || assignments_.top_k > kMaxTopK || assignments_.num_rows < 0 ||
      assignments_.expert_ids.size() !=
          static_cast<size_t>(assignments_.num_rows * assignments_.top_k) ||
      assignments_.weights.size() != assignments_.expert_ids.size()) {
    return refuse(absl::StrFormat("%d rows of %d choices with %d ids and %d weights",
                                  assignments_.num_rows, assignments_.top_k,
                                  assignments_.expert_ids.size(), assignments_.weights.size()));
  }
  if (rule_.num_combine_groups < 1) {
    return refuse(absl::StrFormat("%d combine groups", rule_.num_combine_groups));
  }
  if (!limits_.usable_services.empty() &&
      limits_.usable_services.size() != static_cast<size_t>(num_services_)) {
    return refuse(absl::StrFormat("usability of %d services; the placement has %d",
                                  limits_.usable_services.size(), num_services_));
  }
  // Places are 32 bits wide; offsets of elements are computed in 64 bits by whoever uses them.
  if (assignments_.num_rows * (int64_t{assignments_.top_k} + rule_.num_slices) > INT32_MAX) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("dispatch plan: %d rows of %d assignments; at most 2^31 - 1 fit in one",
                        assignments_.num_rows, assignments_.top_k + rule_.num_slices));
  }
  return absl::OkStatus();
}

absl::Status DispatchPlanBuilder::CountRows() {
  std::vector<int64_t>& rows = scratch_.rows_of_id;
  rows.assign(static_cast<size_t>(num_ids_), 0);
  int64_t without_expert = 0;
  for (size_t a = 0; a < assignments_.expert_ids.size(); ++a) {
    const int32_t id = assignments_.expert_ids[a];
    if (id >= 0 && id < rule_.num_experts) {
      ++rows[static_cast<size_t>(id)];
    } else if (id == kNoExpert) {
      ++without_expert;
    } else if (IsDropped(id) && DemandedExpert(id) < rule_.num_experts) {
      ++plan_.counts_.dropped;
    } else {
      return absl::InvalidArgumentError(absl::StrFormat(
          "dispatch plan: expert %d of row %d is not in [0, %d)", DemandedExpert(id),
          static_cast<int64_t>(a) / assignments_.top_k, rule_.num_experts));
    }
  }
  const auto num_refused = static_cast<int64_t>(assignments_.refused_rows.size());
  if (without_expert != num_refused * assignments_.top_k) {
    return absl::InvalidArgumentError(
        absl::StrFormat("dispatch plan: %d choices without expert, but %d refused rows of %d",
                        without_expert, num_refused, assignments_.top_k));
  }
  for (int32_t id = rule_.num_experts; id < num_ids_; ++id) {
    rows[static_cast<size_t>(id)] = assignments_.num_rows - num_refused;
  }
  plan_.counts_.demanded = assignments_.num_rows * assignments_.top_k - without_expert;
  plan_.counts_.served = plan_.counts_.demanded - plan_.counts_.dropped;
  return absl::OkStatus();
}

void DispatchPlanBuilder::RouteRows() {
  const auto num_rows = static_cast<size_t>(assignments_.num_rows);
  scratch_.routes.clear();
  scratch_.routes.reserve(num_rows * static_cast<size_t>(assignments_.top_k + rule_.num_slices));
  scratch_.route_begin.assign(1, 0);
  scratch_.group_of_id.resize(static_cast<size_t>(rule_.num_experts));
  for (int32_t id = 0; id < rule_.num_experts; ++id) {
    scratch_.group_of_id[static_cast<size_t>(id)] = rule_.CombineGroup(id);
  }
  for (std::vector<int64_t>* by_service :
       {&scratch_.num_rows, &scratch_.num_routes, &scratch_.num_replies}) {
    by_service->assign(static_cast<size_t>(num_services_), 0);
  }
  scratch_.last_row.assign(static_cast<size_t>(num_services_), -1);
  size_t next_refused = 0;
  for (int64_t row = 0; row < assignments_.num_rows; ++row) {
    if (next_refused < assignments_.refused_rows.size() &&
        assignments_.refused_rows[next_refused] == row) {
      ++next_refused;
    } else {
      RouteRow(row);
    }
    scratch_.route_begin.push_back(static_cast<int64_t>(scratch_.routes.size()));
  }
}

void DispatchPlanBuilder::RouteRow(int64_t row) {
  std::vector<Route>& routes = scratch_.routes;
  const auto first = static_cast<int64_t>(routes.size());
  const int32_t* const ids = assignments_.expert_ids.data() + row * assignments_.top_k;
  const float* const weights = assignments_.weights.data() + row * assignments_.top_k;
  for (int32_t choice = 0; choice < assignments_.top_k; ++choice) {
    if (ids[choice] < 0) continue;  // dropped
    Route route;
    route.id = ids[choice];
    route.service = scratch_.replicas.ServiceOf(route.id, row);
    route.weight = weights[choice];
    route.group = scratch_.group_of_id[static_cast<size_t>(route.id)];
    // A stable insertion by group keeps the choices of a group in their order.
    routes.push_back(route);
    size_t place = routes.size() - 1;
    while (place > static_cast<size_t>(first) && routes[place - 1].group > route.group) {
      routes[place] = routes[place - 1];
      --place;
    }
    routes[place] = route;
  }
  for (int32_t slice = 0; slice < rule_.num_slices; ++slice) {
    Route route;
    route.id = rule_.num_experts + slice;
    route.service = scratch_.replicas.ServiceOf(route.id, row);
    route.weight = 1;
    route.group = rule_.num_combine_groups;
    routes.push_back(route);
  }
  JoinWholeGroups(first);
  CountRoutes(row, first);
}

void DispatchPlanBuilder::JoinWholeGroups(int64_t first) {
  Route* const end = scratch_.routes.data() + scratch_.routes.size();
  Route* begin = scratch_.routes.data() + first;
  while (begin < end) {
    Route* group_end = begin + 1;
    bool on_one_service = true;
    for (; group_end < end && group_end->group == begin->group; ++group_end) {
      on_one_service = on_one_service && group_end->service == begin->service;
    }
    // The slices of a MoE layer are terms of the row's own sum, which begins with its groups.
    const bool may_join = begin->group < rule_.num_combine_groups || assignments_.top_k == 0;
    if (on_one_service && may_join) {
      for (Route* route = begin + 1; route < group_end; ++route) route->joins_previous = 1;
    }
    begin = group_end;
  }
}

void DispatchPlanBuilder::CountRoutes(int64_t row, int64_t first) {
  for (size_t i = static_cast<size_t>(first); i < scratch_.routes.size(); ++i) {
    const Route& route = scratch_.routes[i];
    const auto service = static_cast<size_t>(route.service);
    ++scratch_.num_routes[service];
    scratch_.num_replies[service] += route.joins_previous == 0;
    if (scratch_.last_row[service] != row) {
      scratch_.last_row[service] = row;
      ++scratch_.num_rows[service];
    }
  }
}

absl::Status DispatchPlanBuilder::CheckLimits() const {
  if (limits_.max_rows_per_service <= 0) return absl::OkStatus();
  for (int32_t s = 0; s < num_services_; ++s) {
    const int64_t rows = scratch_.num_rows[static_cast<size_t>(s)];
    if (rows > limits_.max_rows_per_service) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("layer %d: %d rows for service %d, which takes %d", rule_.layer.value(),
                          rows, s, limits_.max_rows_per_service));
    }
  }
  return absl::OkStatus();
}

// Gives every service its part of the arrays; counts become the places to fill next.
void DispatchPlanBuilder::PlaceServices() {
  int64_t rows = 0, routes = 0;
  for (int32_t s = 0; s < num_services_; ++s) {
    const auto service = static_cast<size_t>(s);
    rows += std::exchange(scratch_.num_rows[service], rows);
    routes += std::exchange(scratch_.num_routes[service], routes);
    plan_.counts_.reply_rows += std::exchange(scratch_.num_replies[service], 0);
  }
  plan_.counts_.dispatched_rows = rows;
  plan_.row_ids_.resize(static_cast<size_t>(rows));
  plan_.row_begin_.resize(static_cast<size_t>(rows + num_services_));
  for (auto* const by_route : {&plan_.expert_ids_, &plan_.expert_rows_, &plan_.expert_position_}) {
    by_route->resize(static_cast<size_t>(routes));
  }
  plan_.weights_.resize(static_cast<size_t>(routes));
  plan_.joins_previous_.resize(static_cast<size_t>(routes));
  plan_.entries_.clear();
  plan_.entries_.reserve(static_cast<size_t>(routes));
  plan_.entry_begin_.assign(1, 0);
  plan_.entry_begin_.reserve(static_cast<size_t>(assignments_.num_rows) + 1);
  scratch_.last_row.assign(static_cast<size_t>(num_services_), -1);
}

void DispatchPlanBuilder::FillRow(int64_t row) {
  const Route* const begin =
      scratch_.routes.data() + scratch_.route_begin[static_cast<size_t>(row)];
  const Route* const end =
      scratch_.routes.data() + scratch_.route_begin[static_cast<size_t>(row) + 1];
  for (const Route* route = begin; route < end; ++route) {
    const auto service = static_cast<size_t>(route->service);
    const auto place = static_cast<size_t>(scratch_.num_routes[service]++);
    if (scratch_.last_row[service] != row) {
      scratch_.last_row[service] = row;
      const auto row_place = static_cast<size_t>(scratch_.num_rows[service]++);
      plan_.row_ids_[row_place] = static_cast<int32_t>(row);
      // Each service before this one has one offset more than rows.
      plan_.row_begin_[row_place + service] = static_cast<int64_t>(place);
    }
    plan_.expert_ids_[place] = route->id;
    plan_.weights_[place] = route->weight;
    plan_.joins_previous_[place] = route->joins_previous;
    if (route->joins_previous == 0) AddEntry(*route, route + 1 < end ? route + 1 : nullptr);
  }
  plan_.entry_begin_.push_back(static_cast<int64_t>(plan_.entries_.size()));
}

// The term of the row's sum that a reply row becomes. `next` is the row's next route, or null.
void DispatchPlanBuilder::AddEntry(const Route& route, const Route* next) {
  CombineEntry entry;
  entry.service = route.service;
  entry.reply_row =
      static_cast<int32_t>(scratch_.num_replies[static_cast<size_t>(route.service)]++);
  entry.weight = route.weight;
  const bool is_sum = next != nullptr && next->joins_previous != 0;
  if (route.group < rule_.num_combine_groups) {
    entry.kind = is_sum ? CombineEntry::Kind::kGroupSum : CombineEntry::Kind::kTerm;
    entry.ends_group = is_sum || next == nullptr || next->group != route.group;
  } else {
    entry.kind = is_sum ? CombineEntry::Kind::kRowSum : CombineEntry::Kind::kSlice;
  }
  plan_.entries_.push_back(entry);
}

// The services' views, and what they derive from their rows.
void DispatchPlanBuilder::DeriveOrders() {
  scratch_.counts.resize(static_cast<size_t>(num_ids_));
  // Grows to the most segments that there can be, so that no view moves below.
  plan_.experts_.resize(plan_.expert_ids_.size());
  size_t row_begin = 0, route_begin = 0, segment_begin = 0;
  for (size_t s = 0; s < plan_.services_.size(); ++s) {
    const size_t num_rows = static_cast<size_t>(scratch_.num_rows[s]) - row_begin;
    const size_t num_routes = static_cast<size_t>(scratch_.num_routes[s]) - route_begin;
    const absl::Span<int64_t> offsets =
        absl::MakeSpan(plan_.row_begin_).subspan(row_begin + s, num_rows + 1);
    for (size_t row = 0; row < num_rows; ++row) offsets[row] -= static_cast<int64_t>(route_begin);
    offsets[num_rows] = static_cast<int64_t>(num_routes);

    ServiceDispatch& dispatch = plan_.services_[s];
    dispatch.row_ids = absl::MakeSpan(plan_.row_ids_).subspan(row_begin, num_rows);
    dispatch.row_begin = offsets;
    dispatch.expert_ids = absl::MakeSpan(plan_.expert_ids_).subspan(route_begin, num_routes);
    dispatch.weights = absl::MakeSpan(plan_.weights_).subspan(route_begin, num_routes);
    dispatch.joins_previous =
        absl::MakeSpan(plan_.joins_previous_).subspan(route_begin, num_routes);
    DispatchOrderStorage storage;
    storage.counts = absl::MakeSpan(scratch_.counts);
    storage.experts = absl::MakeSpan(plan_.experts_).subspan(segment_begin);
    storage.expert_rows = absl::MakeSpan(plan_.expert_rows_).subspan(route_begin, num_routes);
    storage.expert_position =
        absl::MakeSpan(plan_.expert_position_).subspan(route_begin, num_routes);
    DeriveDispatchOrder(num_ids_, storage, dispatch);

    row_begin += num_rows;
    route_begin += num_routes;
    segment_begin += dispatch.experts.size();
  }
  plan_.counts_.active_experts = static_cast<int64_t>(segment_begin);
}

absl::Status BuildDispatchPlan(const LayerRule& rule, const Assignments& assignments,
                               const Placement& placement, const DispatchLimits& limits,
                               DispatchPlan* plan) {
  DispatchPlanBuilder builder(rule, assignments, placement, limits, *plan);
  builder.Clear();
  absl::Status status = builder.Build();
  if (!status.ok()) builder.Clear();
  return status;
}

}  // namespace moebius
