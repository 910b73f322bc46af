// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "moebius/model/random_checkpoint.h"

// Shapes of published models, for measurements without their weights.

namespace moebius {

/// "olmoe-1b-7b", "qwen3-30b-a3b", "deepseek-v3", "demo" (that of models/demo).
std::vector<std::string> ModelShapeNames();

/// The sizes of a published model; weights stay random, and ids are bytes where they fit. Fewer
/// layers are the first ones, of which at least one is sparse. INVALID_ARGUMENT for any other name.
absl::StatusOr<RandomCheckpointOptions> FindModelShape(absl::string_view name);

/// The same model with about `factor` times the weights, factor >= 1: hidden size, low ranks,
/// widths of experts and dense layers and numbers of heads times its square root, widths up to the
/// next multiple of 32. Layers, experts, heads' sizes and vocabulary stay. Pure.
RandomCheckpointOptions ScaleShape(const RandomCheckpointOptions& shape, int64_t factor);

}  // namespace moebius
