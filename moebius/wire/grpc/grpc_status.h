// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace moebius {

/// The status as gRPC carries it: code, message, and EncodeStatus in the error details.
grpc::Status ToGrpcStatus(const absl::Status& status);

/// The other way. Without (readable) details code and message are kept.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace moebius
