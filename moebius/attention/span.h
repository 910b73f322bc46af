// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"

#include "moebius/attention/attention_layout.h"
#include "moebius/attention/attention_sum.h"
#include "moebius/base/check.h"

namespace moebius {

/// A half-open range of absolute positions.
struct PositionRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  friend bool operator==(const PositionRange&, const PositionRange&) = default;
};

/// Which keys a causal query at position q sees: the p with q − size < p <= q, so `size` keys with
/// its own; size 0 is no window, every p <= q. A fact of a layer, the same for all its heads; what
/// it hides follows from integers alone.
struct KeyWindow {
  int64_t size = 0;

  bool is_bounded() const { return size > 0; }
  /// The first key that a query at `position` sees.
  int64_t FirstKey(int64_t position) const {
    return is_bounded() && position >= size ? position + 1 - size : 0;
  }
  friend bool operator==(KeyWindow, KeyWindow) = default;
};

/// What a row of a prompt sees of that prompt: up to itself, or all of it (a prefix-LM). Generated
/// rows see what is before them and themselves. A fact of the model; not kCausal has no windows.
enum class PromptMask { kCausal, kWhole };

/// How the keys of every session are cut, at absolute positions, into spans and key blocks. The
/// cuts belong to the model: they are the same for every chunking, batch, thread and rank count.
/// Under the per-degree sum they depend on the number of ranks, on the layout and on the prompt's
/// length: SessionSpans (session_spans.h) says where they are, and spans here are the canonical
/// ones. Pure and immutable.
class SpanGeometry {
 public:
  /// `span` is a multiple of `key_block`, which is a multiple of 32 (ValidateSpanGeometry). The
  /// canonical sum has no layout: it is left aside.
  SpanGeometry(int64_t span, int64_t key_block, AttentionSum sum = AttentionSum::kCanonical,
               int32_t num_ranks = 1, AttentionLayout layout = AttentionLayout::kZigzag,
               PromptMask mask = PromptMask::kCausal)
      : span_(span),
        key_block_(key_block),
        sum_(sum),
        num_ranks_(num_ranks),
        layout_(sum == AttentionSum::kPerDegree ? layout : AttentionLayout::kZigzag),
        mask_(mask) {
    MOEBIUS_CHECK(key_block > 0 && key_block % 32 == 0);
    MOEBIUS_CHECK(span > 0 && span % key_block == 0);
    MOEBIUS_CHECK_GE(num_ranks, 1);
  }

  AttentionSum sum() const { return sum_; }
  bool is_canonical() const { return sum_ == AttentionSum::kCanonical; }
  int32_t num_ranks() const { return num_ranks_; }    // per-degree
  AttentionLayout layout() const { return layout_; }  // per-degree
  PromptMask mask() const { return mask_; }

  int64_t span() const { return span_; }
  int64_t key_block() const { return key_block_; }
  /// Positions of the largest span that a session has.
  int64_t max_span() const { return layout_ == AttentionLayout::kStriped ? key_block_ : span_; }
  int64_t blocks_per_span() const { return max_span() / key_block_; }  // of the largest

  int64_t SpanOf(int64_t position) const { return position / span_; }
  int64_t BlockOf(int64_t position) const { return position / key_block_; }
  /// Spans (key blocks) that hold the keys of positions [0, length).
  int64_t NumSpans(int64_t length) const { return (length + span_ - 1) / span_; }
  int64_t NumBlocks(int64_t length) const { return (length + key_block_ - 1) / key_block_; }
  /// All positions of a span, whether keys are there or not.
  PositionRange SpanPositions(int64_t span_index) const {
    return {span_index * span_, (span_index + 1) * span_};
  }
  /// The first span of which a query at `position` sees a key.
  int64_t FirstSpan(int64_t position, KeyWindow window) const {
    return SpanOf(window.FirstKey(position));
  }
  /// How many of `keys` are in a span.
  int64_t NumKeysIn(int64_t span_index, PositionRange keys) const {
    const PositionRange span = SpanPositions(span_index);
    return std::max<int64_t>(0, std::min(span.end, keys.end) - std::max(span.begin, keys.begin));
  }
  /// How many keys of a span a causal query at `position` sees.
  int64_t NumVisibleKeys(int64_t span_index, int64_t position, KeyWindow window) const {
    return NumKeysIn(span_index, {window.FirstKey(position), position + 1});
  }
  /// How many spans before its own a query at `position` sees keys of.
  int64_t NumEarlierSpans(int64_t position, KeyWindow window) const {
    return SpanOf(position) - FirstSpan(position, window);
  }

  friend bool operator==(const SpanGeometry&, const SpanGeometry&) = default;

 private:
  int64_t span_;
  int64_t key_block_;
  AttentionSum sum_;
  int32_t num_ranks_;
  AttentionLayout layout_;
  PromptMask mask_;
};

/// INVALID_ARGUMENT in words when (span, key_block) is not a geometry that the kernels compute.
absl::Status ValidateSpanGeometry(int64_t span, int64_t key_block);

/// The rank, of `num_ranks` >= 1, that first owns a span: fold(span mod 2N), with fold(x) = x for
/// x < N and 2N - 1 - x above. Every rank gets the same causal work from each 2N spans.
int64_t OwnerOfSpan(int64_t span_index, int64_t num_ranks);

}  // namespace moebius
