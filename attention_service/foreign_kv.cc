// SPDX-License-Identifier: Apache-2.0
#include "attention_service/foreign_kv.h"

#include <algorithm>

#include "moebius/base/check.h"

namespace moebius {

void ForeignKv::Pack(absl::Span<const KvSpanNeed> needs, absl::Span<const ReceivedRows> rows,
                     HeadRange heads, Executor& executor) {
  MOEBIUS_CHECK_EQ(needs.size(), rows.size());
  needs_.assign(needs.begin(), needs.end());
  memory_.Resize(needs.size() * static_cast<size_t>(span_elements()));
  const int64_t blocks = geometry_.blocks_per_span();
  executor.ParallelFor(static_cast<int64_t>(needs.size()) * blocks, [&](int64_t index, int) {
    const Bf16Rows span_rows = rows[static_cast<size_t>(index / blocks)].rows;
    const int64_t begin = std::min(index % blocks * geometry_.key_block(), span_rows.num_rows);
    const int64_t end = std::min(begin + geometry_.key_block(), span_rows.num_rows);
    Bf16* block = memory_.data() + index * layout_.layer_elements();
    // Heads that nobody asked for and blocks without positions are never read.
    if (begin < end) layout_.WriteBlock(span_rows.Slice(begin, end), heads, block);
  });
}

const Bf16* ForeignKv::Find(int64_t session_index, int64_t span) const {
  for (size_t i = 0; i < needs_.size(); ++i) {
    if (needs_[i].session_index != session_index || needs_[i].span != span) continue;
    return memory_.data() + static_cast<int64_t>(i) * span_elements();
  }
  return nullptr;
}

}  // namespace moebius
