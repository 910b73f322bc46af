// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "moebius/model/model_config.h"
#include "moebius/model/parameters.h"
#include "moebius/model/tensor_directory.h"

namespace moebius {

/// Bytes of one tensor that the model hash reads: all of a small one, else one window whose place
/// depends on the tensor's name. docs/adr/0005-model-and-config-hash.md.
inline constexpr uint64_t kHashedWholeBytes = 4096;
inline constexpr uint64_t kHashWindowBytes = 512;

/// XXH3 over the canonical configuration and, by ascending name, each consumed tensor's name, type,
/// shape and sample: independent of shards, ignored tensors and the spelling of config.json.
absl::StatusOr<uint64_t> HashModel(const ModelConfig& config,
                                   const std::vector<Parameter>& parameters,
                                   const TensorDirectory& directory);

/// XXH3 of CanonicalNumericsText: the config hash.
uint64_t HashNumerics(const NumericsConfig& numerics, uint64_t model_hash);

}  // namespace moebius
