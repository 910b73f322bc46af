// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "attention_service/attention_weights.h"
#include "moebius/attention/head_map.h"
#include "moebius/attention/session_spans.h"
#include "moebius/transport/frame/frame_limits.h"

namespace moebius {

/// What messages between attention ranks hold, for a model. A value.
struct ExchangeShape {
  SpanGeometry geometry;
  int64_t kv_row_width = 0;   // of all KV heads
  int64_t kv_head_width = 0;  // of one; a latent is one
  int64_t num_heads = 0;
  int64_t head_size = 0;  // of queries
  int64_t v_head_dim = 0;
  int64_t max_rows = 0;  // of a step

  static ExchangeShape Of(const AttentionFacts& facts, int32_t num_ranks, int64_t max_rows);

  int64_t KvRowWidth(HeadRange kv_heads) const { return kv_heads.size() * kv_head_width; }
  int64_t state_width() const { return v_head_dim + (geometry.is_canonical() ? 2 : 1); }
  /// The largest questions: what standing room must hold.
  uint64_t MaxKvRequestBytes() const;
  uint64_t MaxQueryBytes() const;
  /// `limits`, made wide enough for every message between ranks.
  FrameLimits Widen(FrameLimits limits) const;
};

}  // namespace moebius
