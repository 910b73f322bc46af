// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/grpc/grpc_status.h"

#include <string>

#include "moebius/wire/error_detail.h"

namespace moebius {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string details = EncodeStatus(status);
  // The message too is metadata, which has a limit: as long as in the details.
  const std::string message(DecodeStatus(details).message());
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message, details);
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  absl::Status detailed = DecodeStatus(status.error_details());
  // A proxy may have put a code of its own on top; gRPC's is the one that the caller saw.
  if (!detailed.ok() && detailed.code() == code) return detailed;
  return absl::Status(code, status.error_message());
}

}  // namespace moebius
