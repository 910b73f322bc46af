// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/service/participant_description.h"

namespace moebius {

/// Who an attention rank is and what it holds.
struct AttentionDescription : ParticipantDescription {
  int64_t kv_block_tokens = 0;
  int64_t kv_num_blocks = 0;
  int64_t kv_used_blocks = 0;
  int64_t sessions = 0;
};

/// What operators may ask of an attention rank. Thread-safe.
class AttentionControl {
 public:
  virtual ~AttentionControl() = default;
  virtual AttentionDescription Describe() const = 0;
};

}  // namespace moebius
