// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/client/client.h"

// What all clients of this folder do with gRPC.

namespace moebius {

/// INVALID_ARGUMENT or NOT_FOUND for TLS files that cannot be read or do not belong together.
/// Connects when first used.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ClientOptions& options);

/// As metadata "authorization: Bearer KEY"; nothing where `key` is empty.
void SetApiKey(grpc::ClientContext* context, const std::string& key);

/// INVALID_ARGUMENT for a key that cannot be sent: gRPC ends the process for metadata that is not
/// printable ASCII. Empty is right: there is none. The key is not repeated.
absl::Status ValidateApiKey(absl::string_view key);
/// As metadata "traceparent"; nothing where the text is empty or not printable.
void SetTraceparent(grpc::ClientContext* context, const std::string& traceparent);

void SetDeadline(grpc::ClientContext* context, absl::Duration timeout);

/// UNAVAILABLE with a hint; `whom` is "a router at HOST:PORT".
absl::Status Unreachable(absl::string_view whom, absl::string_view reason);

/// Whether the service had said anything before its call ended.
enum class CallProgress { kNothingHeard, kAnswerBegun };

/// What a call ended with: the service's own failure with its detail; or, where gRPC alone speaks,
/// that it was not reached, was lost in the middle of its answer (UNAVAILABLE) or did not answer in
/// time (DEADLINE_EXCEEDED), with a hint.
absl::Status CallStatus(absl::string_view whom, const grpc::Status& status,
                        CallProgress progress = CallProgress::kNothingHeard);

}  // namespace moebius
