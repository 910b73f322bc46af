// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/base/strong_id.h"
#include "moebius/transport/frame/message.h"

// One row that proves that an expert service answers, before any work goes there.

namespace moebius {

/// The step number of canary rows: no lead ever counts so far.
inline constexpr uint64_t kCanaryStep = ~uint64_t{0};

/// A dispatch of one row of ones to one expert of the key's layer.
Message BuildCanary(const MessageKey& key, ExpertId id, Epoch epoch, int64_t hidden_size);

/// OK for an answer of one finite row; else what came instead.
absl::Status CheckCanary(const absl::StatusOr<Message>& answer, int64_t hidden_size);

}  // namespace moebius
