// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/session_spans.h"

#include <algorithm>

#include "moebius/base/check.h"

namespace moebius {

SessionSpans::SessionSpans(const SpanGeometry& geometry, int64_t prompt_length)
    : geometry_(geometry), whole_end_(geometry.mask() == PromptMask::kWhole ? prompt_length : 0) {
  if (geometry.is_canonical() || geometry.layout() == AttentionLayout::kStriped) return;
  prompt_length_ = prompt_length;
  num_units_ = prompt_length / unit();
  last_begin_ = num_units_ * unit();
  last_size_ = prompt_length - last_begin_;
  first_generated_ = (num_units_ + (last_size_ > 0 ? 1 : 0)) * period();
}

int64_t SessionSpans::SpanOf(int64_t position) const {
  if (is_canonical()) return geometry_.SpanOf(position);
  if (position < last_begin_) {
    return position / unit() * period() + position % unit() / geometry_.span();
  }
  if (position >= prompt_length_) {
    return first_generated_ + geometry_.BlockOf(position) - geometry_.BlockOf(prompt_length_);
  }
  // The last j with ⌊j · T / pieces⌋ at or before it.
  const int64_t offset = position - last_begin_;
  return num_units_ * period() + ((offset + 1) * pieces() - 1) / last_size_;
}

PositionRange SessionSpans::SpanPositions(int64_t span) const {
  if (is_canonical()) return geometry_.SpanPositions(span);
  if (span < first_generated_) {
    const int64_t unit_index = span / period();
    const int64_t size = unit_index < num_units_ ? unit() : last_size_;
    const auto bound = [&](int64_t j) {
      return unit_index * unit() + std::min(j, pieces()) * size / pieces();
    };
    return {bound(span % period()), bound(span % period() + 1)};
  }
  const int64_t block = geometry_.BlockOf(prompt_length_) + span - first_generated_;
  return {std::max(prompt_length_, block * geometry_.key_block()),
          (block + 1) * geometry_.key_block()};
}

int64_t SessionSpans::NumVisibleKeys(int64_t span, int64_t position, KeyWindow window) const {
  const PositionRange positions = SpanPositions(span);
  const int64_t begin = std::max(positions.begin, window.FirstKey(position));
  return std::max<int64_t>(0, std::min(positions.end, KeyEnd(position)) - begin);
}

int64_t SessionSpans::PositionsInPeriod(int64_t index, int32_t owner, int64_t length) const {
  int64_t count = 0;
  for (const int64_t j : {int64_t{owner}, period() - 1 - owner}) {
    const PositionRange positions = SpanPositions(index * period() + j);
    count += std::max<int64_t>(0, std::min(positions.end, length) - positions.begin);
  }
  return count;
}

int64_t SessionSpans::NumPositionsOf(int32_t owner, int64_t length) const {
  MOEBIUS_DCHECK(!is_canonical());
  if (length == 0) return 0;
  const int64_t last = (NumSpans(length) - 1) / period();
  const int64_t whole_units = std::min(last, num_units_);
  int64_t count = whole_units * (unit() / geometry_.num_ranks());
  // The shorter unit, and the generated period whose first block has begun with prompt positions.
  const int64_t uneven_end = std::min(last, whole_units + 2);
  for (int64_t index = whole_units; index < uneven_end; ++index) {
    count += PositionsInPeriod(index, owner, length);
  }
  count += (last - uneven_end) * 2 * geometry_.key_block();
  return count + PositionsInPeriod(last, owner, length);
}

}  // namespace moebius
