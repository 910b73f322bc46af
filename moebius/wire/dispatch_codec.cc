// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/dispatch_codec.h"

#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/transport/frame/byte_codec.h"
#include "moebius/wire/message_kind.h"

namespace moebius {
namespace {

absl::Status Refuse(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("dispatch: ", why));
}

SharedBytes GatherRows(const ServiceDispatch& dispatch, Bf16Rows rows) {
  const size_t row_bytes = static_cast<size_t>(rows.width) * sizeof(Bf16);
  BytesBuilder builder(dispatch.row_ids.size() * row_bytes);
  uint8_t* out = builder.data();
  for (const int32_t row : dispatch.row_ids) {
    std::memcpy(out, rows.row(row), row_bytes);
    out += row_bytes;
  }
  return std::move(builder).Share();
}

}  // namespace

Message BuildDispatch(const MessageKey& key, const ServiceDispatch& dispatch, Bf16Rows rows) {
  MOEBIUS_CHECK_EQ(key.kind, kDispatchKind);
  const size_t num_rows = dispatch.row_ids.size();
  ByteWriter out;
  out.Write(static_cast<uint32_t>(num_rows));
  out.Write(static_cast<uint32_t>(dispatch.expert_ids.size()));
  for (size_t row = 0; row < num_rows; ++row) {
    out.Write(static_cast<uint16_t>(dispatch.row_begin[row + 1] - dispatch.row_begin[row]));
  }
  for (const int32_t id : dispatch.expert_ids) {
    MOEBIUS_DCHECK(id >= 0 && id <= std::numeric_limits<uint16_t>::max());
    out.Write(static_cast<uint16_t>(id));
  }
  out.WriteArray(dispatch.weights);
  out.WriteArray(dispatch.joins_previous);
  Message message;
  message.key = key;
  message.epoch = dispatch.epoch.value();
  message.metadata = out.Share();
  SetRows(message, GatherRows(dispatch, rows), dispatch.num_rows(), rows.width);
  return message;
}

absl::Status ReceivedDispatch::Decode(const Message& message, int64_t hidden_size,
                                      int32_t num_ids) {
  dispatch_ = ServiceDispatch();
  ByteReader in(message.metadata.span());
  const uint64_t num_rows = in.Read<uint32_t>();
  const uint64_t num_assignments = in.Read<uint32_t>();
  if (message.num_rows != num_rows) {
    return Refuse(
        absl::StrCat(num_rows, " rows in the metadata, ", message.num_rows, " in the header"));
  }
  in.ReadArray(num_rows, counts_);
  in.ReadArray(num_assignments, ids_);
  in.ReadArray(num_assignments, weights_);
  in.ReadArray(num_assignments, joins_);
  if (!in.AtEnd()) {
    return Refuse(absl::StrCat(message.metadata.size(), " bytes of metadata for ", num_rows,
                               " rows and ", num_assignments, " assignments"));
  }
  MOEBIUS_ASSIGN_OR_RETURN(rows_, RowsOf(message, static_cast<int64_t>(num_rows), hidden_size));
  expert_ids_.assign(ids_.begin(), ids_.end());
  row_ids_.resize(num_rows);
  row_begin_.assign(1, 0);
  for (size_t row = 0; row < num_rows; ++row) {
    row_ids_[row] = static_cast<int32_t>(row);
    row_begin_.push_back(row_begin_.back() + counts_[row]);
  }
  ServiceDispatch dispatch;
  dispatch.epoch = Epoch(message.epoch);
  dispatch.row_ids = absl::MakeConstSpan(row_ids_);
  dispatch.row_begin = absl::MakeConstSpan(row_begin_);
  dispatch.expert_ids = absl::MakeConstSpan(expert_ids_);
  dispatch.weights = absl::MakeConstSpan(weights_);
  dispatch.joins_previous = absl::MakeConstSpan(joins_);
  MOEBIUS_RETURN_IF_ERROR(
      ValidateServiceDispatch(dispatch, static_cast<int64_t>(num_rows), num_ids));
  order_.Derive(num_ids, dispatch);
  dispatch_ = dispatch;
  return absl::OkStatus();
}

}  // namespace moebius
