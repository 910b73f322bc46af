// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/base/host_memory.h"
#include "moebius/model/checkpoint.h"
#include "moebius/placement/placement.h"

namespace moebius {

/// Bytes of the parameters outside the feed-forward part: bf16, or FP8 and its scales.
int64_t BytesBesideExperts(const Checkpoint& checkpoint);

/// Packed bytes of the feed-forward part, each replica of `placement` counted. The placement is the
/// checkpoint's.
int64_t ExpertBytes(const Checkpoint& checkpoint, const Placement& placement);

/// Services of one host that hold each routed expert when nobody says: two, or one where there is
/// one service, or where two do not fit its memory beside the rest and a KV pool of `kv_bytes`.
int64_t ReplicasThatFit(const Checkpoint& checkpoint, int32_t num_services, int64_t kv_bytes,
                        const HostMemory& memory);

}  // namespace moebius
