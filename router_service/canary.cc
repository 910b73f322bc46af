// SPDX-License-Identifier: Apache-2.0
#include "router_service/canary.h"

#include <cmath>

#include "moebius/base/status.h"
#include "moebius/routing/dispatch.h"
#include "moebius/tensor/bf16.h"
#include "moebius/tensor/buffer.h"
#include "moebius/wire/dispatch_codec.h"
#include "moebius/wire/row_codec.h"

namespace moebius {

Message BuildCanary(const MessageKey& key, ExpertId id, Epoch epoch, int64_t hidden_size) {
  const int32_t row_id = 0;
  const int64_t row_begin[] = {0, 1};
  const int32_t expert_id = id.value();
  const float weight = 1;
  const uint8_t joins = 0;
  ServiceDispatch dispatch;
  dispatch.epoch = epoch;
  dispatch.row_ids = absl::MakeConstSpan(&row_id, 1);
  dispatch.row_begin = row_begin;
  dispatch.expert_ids = absl::MakeConstSpan(&expert_id, 1);
  dispatch.weights = absl::MakeConstSpan(&weight, 1);
  dispatch.joins_previous = absl::MakeConstSpan(&joins, 1);
  RowBatch<Bf16> row(1, hidden_size);
  for (Bf16& element : row.rows().span(0)) element = ToBf16(1.0f);
  return BuildDispatch(key, dispatch, row.rows());
}

absl::Status CheckCanary(const absl::StatusOr<Message>& answer, int64_t hidden_size) {
  if (!answer.ok()) return answer.status();
  MOEBIUS_ASSIGN_OR_RETURN(const ReceivedRows reply, ParseReply(*answer, 1, hidden_size));
  for (const Bf16 element : reply.rows.span(0)) {
    if (!std::isfinite(ToFloat(element))) {
      return absl::DataLossError("its canary row came back with numbers that are not finite");
    }
  }
  return absl::OkStatus();
}

}  // namespace moebius
