// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/api/router_codec.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"
#include "moebius/wire/error_detail.h"

namespace moebius {
namespace {

namespace pb = router_pb;

constexpr int64_t kBf16Bytes = 2;

template <typename T, typename Repeated>
std::vector<T> VectorOf(const Repeated& in) {
  return std::vector<T>(in.begin(), in.end());
}

template <typename Values, typename Repeated>
void SetAll(const Values& values, Repeated* out) {
  out->Add(values.begin(), values.end());
}

absl::Status CheckSize(absl::string_view field, int64_t size, int64_t expected) {
  if (size == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " has ", size, " entries, not ", expected));
}

// [num_rows, hidden_size] bf16 in `size` bytes, whatever the numbers are.
absl::Status CheckRows(int64_t num_rows, int64_t hidden_size, size_t size) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (num_rows < 0 || num_rows > kMost || hidden_size < 1 || hidden_size > kMost) {
    return absl::InvalidArgumentError(absl::StrCat("num_rows is ", num_rows, " and hidden_size ",
                                                   hidden_size, ": there are no such rows"));
  }
  const int64_t bytes = num_rows * hidden_size * kBf16Bytes;
  if (static_cast<int64_t>(size) == bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rows has ", size, " bytes; ", num_rows, " × ",
                                                 hidden_size, " bf16 values take ", bytes));
}

pb::RequestState ProtoOf(RequestState state) {
  switch (state) {
    case RequestState::kQueued:
      return pb::REQUEST_STATE_QUEUED;
    case RequestState::kRunning:
      return pb::REQUEST_STATE_RUNNING;
    case RequestState::kFinished:
      return pb::REQUEST_STATE_FINISHED;
    case RequestState::kFailed:
      return pb::REQUEST_STATE_FAILED;
  }
  return pb::REQUEST_STATE_UNSPECIFIED;
}

absl::StatusOr<RequestState> RequestStateOf(pb::RequestState state) {
  switch (state) {
    case pb::REQUEST_STATE_QUEUED:
      return RequestState::kQueued;
    case pb::REQUEST_STATE_RUNNING:
      return RequestState::kRunning;
    case pb::REQUEST_STATE_FINISHED:
      return RequestState::kFinished;
    case pb::REQUEST_STATE_FAILED:
      return RequestState::kFailed;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("state ", static_cast<int>(state), " of a request is unknown"));
  }
}

}  // namespace

void ToProto(const RouteRequest& request, pb::RouteRequest* out) {
  SetAll(request.token_ids, out->mutable_token_ids());
  out->set_layer(request.layer);
  if (request.num_services.has_value()) out->set_num_services(*request.num_services);
}

RouteRequest FromProto(const pb::RouteRequest& in) {
  RouteRequest request;
  request.token_ids = VectorOf<int64_t>(in.token_ids());
  request.layer = in.layer();
  if (in.has_num_services()) request.num_services = in.num_services();
  return request;
}

void ToProto(const RouteAnswer& answer, pb::RouteResponse* out) {
  out->set_layer(answer.layer);
  out->set_num_experts(answer.num_experts);
  out->set_top_k(answer.top_k);
  out->set_num_groups(answer.num_groups);
  out->set_num_kept_groups(answer.num_kept_groups);
  SetAll(answer.token_ids, out->mutable_token_ids());
  SetAll(answer.expert_ids, out->mutable_expert_ids());
  SetAll(answer.weights, out->mutable_weights());
  for (const RoutedService& service : answer.services) {
    pb::RoutedService* entry = out->add_services();
    entry->set_name(service.name);
    SetAll(service.experts, entry->mutable_experts());
    entry->set_rows_sent(service.rows_sent);
    entry->set_reply_rows(service.reply_rows);
  }
  out->set_row_bytes(answer.row_bytes);
  out->set_shared_rows_sent(answer.shared_rows_sent);
  out->set_shared_reply_rows(answer.shared_reply_rows);
  SetAll(answer.load, out->mutable_load());
  SetAll(answer.dropped, out->mutable_dropped());
  SetAll(answer.rerouted, out->mutable_rerouted());
  out->set_group_fill_mismatches(answer.group_fill_mismatches);
  if (!answer.closest_tie.has_value()) return;
  pb::ClosestTie* tie = out->mutable_closest_tie();
  tie->set_token_index(answer.closest_tie->token_index);
  tie->set_chosen_expert(answer.closest_tie->chosen_expert);
  tie->set_next_expert(answer.closest_tie->next_expert);
  tie->set_gap(answer.closest_tie->gap);
}

absl::StatusOr<RouteAnswer> FromProto(const pb::RouteResponse& in) {
  RouteAnswer answer;
  answer.layer = in.layer();
  answer.num_experts = in.num_experts();
  answer.top_k = in.top_k();
  answer.num_groups = in.num_groups();
  answer.num_kept_groups = in.num_kept_groups();
  answer.token_ids = VectorOf<int64_t>(in.token_ids());
  answer.expert_ids = VectorOf<int32_t>(in.expert_ids());
  answer.weights = VectorOf<float>(in.weights());
  const int64_t choices = answer.num_tokens() * answer.top_k;
  MOEBIUS_RETURN_IF_ERROR(CheckSize("expert_ids", in.expert_ids_size(), choices));
  MOEBIUS_RETURN_IF_ERROR(CheckSize("weights", in.weights_size(), choices));
  for (const pb::RoutedService& entry : in.services()) {
    answer.services.push_back(
        {entry.name(), VectorOf<int32_t>(entry.experts()), entry.rows_sent(), entry.reply_rows()});
  }
  answer.row_bytes = in.row_bytes();
  answer.shared_rows_sent = in.shared_rows_sent();
  answer.shared_reply_rows = in.shared_reply_rows();
  answer.load = VectorOf<int64_t>(in.load());
  answer.dropped = VectorOf<int64_t>(in.dropped());
  answer.rerouted = VectorOf<int64_t>(in.rerouted());
  MOEBIUS_RETURN_IF_ERROR(CheckSize("load", in.load_size(), in.num_experts()));
  MOEBIUS_RETURN_IF_ERROR(CheckSize("dropped", in.dropped_size(), in.num_experts()));
  MOEBIUS_RETURN_IF_ERROR(CheckSize("rerouted", in.rerouted_size(), in.num_experts()));
  answer.group_fill_mismatches = in.group_fill_mismatches();
  if (in.has_closest_tie()) {
    const pb::ClosestTie& tie = in.closest_tie();
    answer.closest_tie =
        ClosestTie{tie.token_index(), tie.chosen_expert(), tie.next_expert(), tie.gap()};
  }
  return answer;
}

void ToProto(ForwardRequest request, pb::ForwardRequest* out) {
  out->set_layer(request.layer);
  out->set_num_rows(request.num_rows);
  out->set_hidden_size(request.hidden_size);
  out->set_config_hash(std::move(request.config_hash));
  out->set_rows(std::move(request.rows));
}

absl::StatusOr<ForwardRequest> FromProto(pb::ForwardRequest in) {
  MOEBIUS_RETURN_IF_ERROR(CheckRows(in.num_rows(), in.hidden_size(), in.rows().size()));
  ForwardRequest request;
  request.layer = in.layer();
  request.num_rows = in.num_rows();
  request.hidden_size = in.hidden_size();
  request.config_hash = std::move(*in.mutable_config_hash());
  request.rows = std::move(*in.mutable_rows());
  return request;
}

void ToProto(ForwardAnswer answer, pb::ForwardResponse* out) {
  out->set_num_rows(answer.num_rows);
  out->set_hidden_size(answer.hidden_size);
  ToProto(answer.exactness, out->mutable_exactness());
  out->set_assignments(answer.assignments);
  out->set_rows(std::move(answer.rows));
}

absl::StatusOr<ForwardAnswer> FromProto(pb::ForwardResponse in) {
  MOEBIUS_RETURN_IF_ERROR(CheckRows(in.num_rows(), in.hidden_size(), in.rows().size()));
  ForwardAnswer answer;
  answer.num_rows = in.num_rows();
  answer.hidden_size = in.hidden_size();
  answer.assignments = in.assignments();
  answer.exactness = FromProto(in.exactness());
  answer.rows = std::move(*in.mutable_rows());
  return answer;
}

void ToProto(const ExpertLoadTable& table, pb::GetExpertLoadResponse* out) {
  SetAll(table.layer_ids, out->mutable_layer_ids());
  out->set_num_experts(table.num_experts);
  SetAll(table.demand, out->mutable_demand());
  SetAll(table.dropped, out->mutable_dropped());
  SetAll(table.active, out->mutable_active());
  out->set_has_capacity(table.has_capacity);
}

absl::StatusOr<ExpertLoadTable> FromProto(const pb::GetExpertLoadResponse& in) {
  const int64_t size = int64_t{in.layer_ids_size()} * in.num_experts();
  MOEBIUS_RETURN_IF_ERROR(CheckSize("demand", in.demand_size(), size));
  MOEBIUS_RETURN_IF_ERROR(CheckSize("dropped", in.dropped_size(), size));
  ExpertLoadTable table;
  table.layer_ids = VectorOf<int32_t>(in.layer_ids());
  table.num_experts = in.num_experts();
  table.demand = VectorOf<int64_t>(in.demand());
  table.dropped = VectorOf<int64_t>(in.dropped());
  table.active = VectorOf<int64_t>(in.active());
  MOEBIUS_RETURN_IF_ERROR(CheckSize("active", in.active_size(), in.layer_ids_size()));
  table.has_capacity = in.has_capacity();
  return table;
}

void ToProto(const Explanation& explanation, pb::ExplainResponse* out) {
  out->set_request_id(explanation.request_id);
  out->set_state(ProtoOf(explanation.state));
  out->set_age_seconds(explanation.age_seconds);
  if (!explanation.failure.ok()) {
    out->mutable_failure()->ParseFromString(EncodeStatus(explanation.failure));
  }
  ToProto(explanation.last, out->mutable_last());
}

absl::StatusOr<Explanation> FromProto(const pb::ExplainResponse& in) {
  Explanation explanation;
  explanation.request_id = in.request_id();
  MOEBIUS_ASSIGN_OR_RETURN(explanation.state, RequestStateOf(in.state()));
  explanation.age_seconds = in.age_seconds();
  if (in.has_failure()) explanation.failure = DecodeStatus(in.failure().SerializeAsString());
  MOEBIUS_ASSIGN_OR_RETURN(explanation.last, FromProto(in.last()));
  return explanation;
}

}  // namespace moebius
