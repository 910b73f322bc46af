// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

#include "moebius/kernels/expert_ffn.h"
#include "moebius/kernels/kernels.h"
#include "moebius/model/checkpoint.h"
#include "moebius/placement/placement.h"

namespace moebius {

/// Told of each expert that was read and packed, by its index in the list, in any order, on the
/// thread of the caller of PackExperts.
using OnPacked = absl::FunctionRef<void(size_t index, std::unique_ptr<const PackedExpert> expert)>;

/// Reads and packs experts on `num_threads` threads, the caller's included; fewer where the host
/// has no more. Each holds one expert as it is stored beside what is packed, so that the memory of
/// loading is that of the weights and of `num_threads` experts. On failure the status of one expert
/// that could not be read; what was packed before has been told. `experts` exist in the model.
absl::Status PackExperts(const Checkpoint& checkpoint, absl::Span<const HeldExpert> experts,
                         PairOrder order, int num_threads, OnPacked on_packed);

}  // namespace moebius
