// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "attention_service/kv_exchange.h"
#include "attention_service/kv_layout.h"
#include "moebius/attention/span.h"
#include "moebius/base/executor.h"
#include "moebius/tensor/buffer.h"

namespace moebius {

/// Spans that other ranks own, of one layer and one round, as the kernels read them. The memory is
/// reused from round to round. Not thread-safe, save Find.
class ForeignKv {
 public:
  ForeignKv(const KvLayout& layout, const SpanGeometry& geometry)
      : layout_(layout), geometry_(geometry) {}

  /// Packs `rows[i]`, the first positions of the span of needs[i], of `heads`. On the executor.
  void Pack(absl::Span<const KvSpanNeed> needs, absl::Span<const ReceivedRows> rows,
            HeadRange heads, Executor& executor);
  void Clear() { needs_.clear(); }

  /// The blocks of a span, whose first begins with the span, or null when it is not here.
  const Bf16* Find(int64_t session_index, int64_t span) const;

 private:
  int64_t span_elements() const { return geometry_.blocks_per_span() * layout_.layer_elements(); }

  KvLayout layout_;
  SpanGeometry geometry_;
  std::vector<KvSpanNeed> needs_;
  Array<Bf16> memory_;  // per need its blocks
};

}  // namespace moebius
