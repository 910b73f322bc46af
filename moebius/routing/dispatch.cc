// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/dispatch.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

absl::Status Refuse(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrFormat("dispatch: %s", what));
}

absl::Status CheckSizes(const ServiceDispatch& dispatch) {
  const size_t num_assignments = dispatch.expert_ids.size();
  if (dispatch.weights.size() != num_assignments ||
      dispatch.joins_previous.size() != num_assignments) {
    return Refuse(absl::StrFormat("%d expert ids, %d weights, %d joins; they must be equal",
                                  num_assignments, dispatch.weights.size(),
                                  dispatch.joins_previous.size()));
  }
  if (dispatch.row_begin.size() != dispatch.row_ids.size() + 1) {
    return Refuse(absl::StrFormat("%d rows need one offset more, not %d", dispatch.row_ids.size(),
                                  dispatch.row_begin.size()));
  }
  if (dispatch.row_begin.front() != 0 ||
      dispatch.row_begin.back() != static_cast<int64_t>(num_assignments)) {
    return Refuse(absl::StrFormat("offsets run from %d to %d, not from 0 to %d",
                                  dispatch.row_begin.front(), dispatch.row_begin.back(),
                                  num_assignments));
  }
  return absl::OkStatus();
}

absl::Status CheckRows(const ServiceDispatch& dispatch, int64_t num_rows) {
  for (size_t row = 0; row < dispatch.row_ids.size(); ++row) {
    const int64_t id = dispatch.row_ids[row];
    if (id < 0 || id >= num_rows) {
      return Refuse(absl::StrFormat("row %d is not in [0, %d)", id, num_rows));
    }
    if (row > 0 && id <= dispatch.row_ids[row - 1]) {
      return Refuse(absl::StrFormat("row %d follows row %d", id, dispatch.row_ids[row - 1]));
    }
    if (dispatch.row_begin[row] >= dispatch.row_begin[row + 1]) {
      return Refuse(absl::StrFormat("row %d has assignments from %d to %d", id,
                                    dispatch.row_begin[row], dispatch.row_begin[row + 1]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAssignments(const ServiceDispatch& dispatch, size_t row, int32_t num_ids) {
  const auto begin = static_cast<size_t>(dispatch.row_begin[row]);
  const auto end = static_cast<size_t>(dispatch.row_begin[row + 1]);
  for (size_t a = begin; a < end; ++a) {
    const int32_t id = dispatch.expert_ids[a];
    if (id < 0 || id >= num_ids) {
      return Refuse(absl::StrFormat("expert %d of row %d is not in [0, %d)", id,
                                    dispatch.row_ids[row], num_ids));
    }
    for (size_t before = begin; before < a; ++before) {
      if (dispatch.expert_ids[before] == id) {
        return Refuse(absl::StrFormat("row %d has expert %d twice", dispatch.row_ids[row], id));
      }
    }
    if (!std::isfinite(dispatch.weights[a])) {
      return Refuse(absl::StrFormat("the weight of expert %d in row %d is not finite", id,
                                    dispatch.row_ids[row]));
    }
    if (dispatch.joins_previous[a] > 1 || (a == begin && dispatch.joins_previous[a] != 0)) {
      return Refuse(absl::StrFormat("join %d at expert %d of row %d", dispatch.joins_previous[a],
                                    id, dispatch.row_ids[row]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateServiceDispatch(const ServiceDispatch& dispatch, int64_t num_rows,
                                     int32_t num_ids) {
  MOEBIUS_RETURN_IF_ERROR(CheckSizes(dispatch));
  // Distinct ids within a row bound a row's assignments, and with them the work below.
  MOEBIUS_RETURN_IF_ERROR(CheckRows(dispatch, num_rows));
  for (size_t row = 0; row < dispatch.row_ids.size(); ++row) {
    const int64_t count = dispatch.row_begin[row + 1] - dispatch.row_begin[row];
    if (count > num_ids) {
      return Refuse(absl::StrFormat("row %d has %d assignments; there are %d experts",
                                    dispatch.row_ids[row], count, num_ids));
    }
    MOEBIUS_RETURN_IF_ERROR(CheckAssignments(dispatch, row, num_ids));
  }
  return absl::OkStatus();
}

void DeriveDispatchOrder(int32_t num_ids, const DispatchOrderStorage& storage,
                         ServiceDispatch& dispatch) {
  const int64_t num_assignments = dispatch.num_assignments();
  dispatch.num_reply_rows = 0;
  dispatch.experts = {};
  dispatch.expert_rows = storage.expert_rows;
  dispatch.expert_position = storage.expert_position;
  if (num_assignments == 0) return;

  int64_t* const next = storage.counts.data();
  std::fill_n(next, num_ids, int64_t{0});
  for (const int32_t id : dispatch.expert_ids) ++next[id];
  size_t num_segments = 0;
  int64_t begin = 0;
  for (int32_t id = 0; id < num_ids; ++id) {
    const int64_t count = next[id];
    if (count == 0) continue;
    storage.experts[num_segments++] = ExpertSegment{ExpertId(id), begin, begin + count};
    next[id] = begin;
    begin += count;
  }
  dispatch.experts = storage.experts.first(num_segments);
  for (int64_t row = 0; row < dispatch.num_rows(); ++row) {
    const int32_t row_id = dispatch.row_ids[static_cast<size_t>(row)];
    const int64_t end = dispatch.row_begin[static_cast<size_t>(row) + 1];
    for (int64_t a = dispatch.row_begin[static_cast<size_t>(row)]; a < end; ++a) {
      const auto index = static_cast<size_t>(a);
      const int64_t position = next[dispatch.expert_ids[index]]++;
      storage.expert_rows[static_cast<size_t>(position)] = row_id;
      storage.expert_position[index] = static_cast<int32_t>(position);
      dispatch.num_reply_rows += dispatch.joins_previous[index] == 0;
    }
  }
}

void DispatchOrder::Derive(int32_t num_ids, ServiceDispatch& dispatch) {
  const size_t num_assignments = dispatch.expert_ids.size();
  counts_.resize(static_cast<size_t>(num_ids));
  experts_.resize(std::min(num_assignments, static_cast<size_t>(num_ids)));
  expert_rows_.resize(num_assignments);
  expert_position_.resize(num_assignments);
  DeriveDispatchOrder(
      num_ids,
      DispatchOrderStorage{absl::MakeSpan(counts_), absl::MakeSpan(experts_),
                           absl::MakeSpan(expert_rows_), absl::MakeSpan(expert_position_)},
      dispatch);
}

}  // namespace moebius
