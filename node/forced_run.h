// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "moebius/model/model_config.h"
#include "node/forced_logits.h"
#include "router_service/row_pipeline.h"

namespace moebius {

/// Runs given token ids as one prompt through a row pipeline, `chunk_rows` in a step, and keeps the
/// logits of `rows` (ascending; empty: all) and what every gate chose. The session is ended
/// afterwards. Nothing else may use the pipeline meanwhile. On an executor thread where the ports
/// are direct.
/// INVALID_ARGUMENT for no ids, ids outside the vocabulary, rows out of range or not ascending,
/// more than `chunk_rows` ids where attention is not causal, and values that are not finite; else
/// what a step says.
absl::StatusOr<ForcedLogits> RunForced(const ModelConfig& config, RowPipeline& pipeline,
                                       int64_t chunk_rows, absl::Span<const int64_t> token_ids,
                                       absl::Span<const int64_t> rows);

}  // namespace moebius
