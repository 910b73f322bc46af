// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "node/forced_logits.h"

namespace moebius {

/// Writes a safetensors file that other programs can compare: `logits` [T, vocab_size] F32 and, for
/// every MoE layer L, `layerL.experts` [T, top_k] I16, ids ascending within a token, and
/// `layerL.weights` [T, top_k] F32 in that order. Gate logits are not written. The file appears
/// whole or not at all. INVALID_ARGUMENT unless `forced` keeps the logits of every token.
absl::Status WriteLogitsFile(const ForcedLogits& forced, const std::string& path);

/// Reads such a file. Gate logits are empty and num_experts is 0: the file does not hold them.
/// INVALID_ARGUMENT names the tensor that is missing, too many or of a wrong type or shape.
absl::StatusOr<ForcedLogits> ReadLogitsFile(const std::string& path);

}  // namespace moebius
