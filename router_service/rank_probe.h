// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "moebius/attention/cost_model.h"
#include "moebius/base/strong_id.h"
#include "moebius/transport/transport.h"

namespace moebius {

/// What attention ranks and the links to them can do, for the cost model: of each the slowest
/// rank's. Round trips of small messages give the latency, of 1 MiB the bandwidth, the best of a
/// few each; the ranks say what their kernels have been measured at. Links between ranks are taken
/// to be like those to the router.
///
/// Waits for the ranks' answers, tens of milliseconds each and at most a second: not from the
/// reactor. UNAVAILABLE for a rank that does not answer, INVALID_ARGUMENT for nonsense.
absl::StatusOr<RankRates> MeasureRankRates(Transport& transport, absl::Span<const PeerId> ranks);

}  // namespace moebius
