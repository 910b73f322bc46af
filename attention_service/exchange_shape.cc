// SPDX-License-Identifier: Apache-2.0
#include "attention_service/exchange_shape.h"

#include <algorithm>

#include "attention_service/exchange_limits.h"
#include "attention_service/kv_layout.h"
#include "moebius/transport/frame/frame_header.h"
#include "moebius/wire/error_detail.h"
#include "moebius/wire/exchange_codec.h"

namespace moebius {
namespace {

constexpr int64_t kMaxPosition = int64_t{1} << 24;  // ValidateStepPlan's bound
constexpr int64_t kBf16Bytes = sizeof(Bf16);
constexpr int64_t kFloatBytes = sizeof(float);

template <typename T>
void RaiseTo(int64_t needed, T& limit) {
  limit = std::max(limit, static_cast<T>(needed));
}

}  // namespace

ExchangeShape ExchangeShape::Of(const AttentionFacts& facts, int32_t num_ranks, int64_t max_rows) {
  const KvLayout layout(facts, PairOrder::kAdjacent);
  return {.geometry = GeometryOf(facts, num_ranks),
          .kv_row_width = layout.row_width(),
          .kv_head_width = layout.row_width({0, 1}),
          .num_heads = facts.config.num_query_heads,
          .head_size = facts.config.qk_head_dim,
          .v_head_dim = facts.config.v_head_dim,
          .max_rows = max_rows};
}

uint64_t ExchangeShape::MaxKvRequestBytes() const {
  return KvRequestMetadataBytes(kMaxExchangeParts) + kMessageAlignment;
}

uint64_t ExchangeShape::MaxQueryBytes() const {
  const int64_t row_bytes = num_heads * head_size * kBf16Bytes;
  const int64_t rows_bytes = std::max(row_bytes, std::min(kMaxExchangeBytes, max_rows * row_bytes));
  return QueryStatesMetadataBytes(kMaxExchangeParts) + kMessageAlignment +
         static_cast<uint64_t>(rows_bytes);
}

FrameLimits ExchangeShape::Widen(FrameLimits limits) const {
  const int64_t span = geometry.span();
  // A rank owns two spans of a round; joined rounds and batches keep to kMaxExchangeBytes.
  const int64_t kv_rows = std::max(2 * span, kMaxExchangeBytes / (kv_row_width * kBf16Bytes));
  const int64_t states = std::max(num_heads * (kMaxPosition / span),
                                  kMaxExchangeBytes / (state_width() * kFloatBytes));
  // Heads of a step's rows come whole.
  const int64_t head_rows = max_rows * num_heads;
  const int64_t queries =
      std::max({num_heads, head_rows, kMaxExchangeBytes / (head_size * kBf16Bytes)});
  const int64_t bytes = std::max({kMaxExchangeBytes, 2 * span * kv_row_width * kBf16Bytes,
                                  head_rows * std::max(head_size, v_head_dim) * kBf16Bytes,
                                  num_heads * (kMaxPosition / span) * state_width() * kFloatBytes});
  constexpr int64_t kMetadataBytes =
      static_cast<int64_t>(QueryStatesMetadataBytes(kMaxExchangeParts) + kMaxStatusBytes) + 128;
  RaiseTo(std::max({kv_rows, states, queries}), limits.max_num_rows);
  RaiseTo(std::max({kv_row_width, state_width(), head_size}), limits.max_row_width);
  RaiseTo(kMetadataBytes, limits.max_metadata_bytes);
  RaiseTo(std::min(bytes + kMetadataBytes, static_cast<int64_t>(kMaxMessageBytes)),
          limits.max_message_bytes);
  RaiseTo(kMaxPosition, limits.max_round);
  return limits;
}

}  // namespace moebius
