// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "moebius/attention/session_method.h"
#include "moebius/model/model_config.h"

namespace moebius {

/// The heads of a model, as the cost model counts them; a window where every layer has one, as a
/// layer without costs far more than one with it.
AttentionHeads HeadsOf(const AttentionConfig& config);

/// The value of --attention-method: a method's name, or "auto" for the cost model's choice of each
/// session and step. INVALID_ARGUMENT quotes it and says what may be.
absl::StatusOr<std::optional<AttentionMethod>> ParseAttentionRule(const std::string& text);

/// The value of --attention-rates: "measured" (nothing), or FLOP/s of a rank's kernel, bytes/s and
/// seconds of a message, as "100e9,1e9,100e-6". INVALID_ARGUMENT quotes it and says what may be.
absl::StatusOr<std::optional<RankRates>> ParseRankRates(const std::string& text);
/// For the log: "kernel 100 GFLOP/s, links 1 GB/s, 100 µs a message".
std::string DescribeRankRates(const RankRates& rates);

}  // namespace moebius
