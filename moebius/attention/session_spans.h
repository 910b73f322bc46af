// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "moebius/attention/span.h"

namespace moebius {

/// The spans of one session: what is owned, sent and summed as one piece; and which of its keys a
/// query sees. A value.
///
/// Canonical: those of the geometry, at absolute positions.
///
/// Per-degree, over N ranks, by the layout. Without any rule of divisibility, so spans may be
/// empty:
///   zigzag      The prompt goes in units of 2N canonical spans, the last one, of T positions, with
///               cuts at ⌊j · T / 2N⌋: the classic zigzag.
///   contiguous  The prompt goes in units of N canonical spans, the last one with cuts at
///               ⌊j · T / N⌋: one piece for each rank.
///   striped     Key blocks at absolute positions, prompt and generated ones alike.
/// Under the first two generated positions follow the prompt in spans of one key block. Owners
/// follow from a span's index as ever (SpanOwner), from rank 0 up to N − 1 and back: each 2N
/// indices are two of every rank. A contiguous unit's N spans are the first half of 2N indices and
/// the other half is empty.
class SessionSpans {
 public:
  SessionSpans(const SpanGeometry& geometry, int64_t prompt_length);

  int64_t SpanOf(int64_t position) const;
  /// All positions of a span, whether keys are there or not. Consecutive spans join.
  PositionRange SpanPositions(int64_t span) const;
  /// Spans up to the one that holds the last key of [0, length).
  int64_t NumSpans(int64_t length) const { return length == 0 ? 0 : SpanOf(length - 1) + 1; }
  /// The first span of which a query at `position` sees a key.
  int64_t FirstSpan(int64_t position, KeyWindow window) const {
    return SpanOf(window.FirstKey(position));
  }
  /// The end of the keys that a query at `position` sees: behind itself, or behind the prompt that
  /// it sees whole.
  int64_t KeyEnd(int64_t position) const { return std::max(position + 1, whole_end_); }
  /// The keys that a query at `position` sees.
  PositionRange KeysOf(int64_t position, KeyWindow window) const {
    return {window.FirstKey(position), KeyEnd(position)};
  }
  /// How many keys of a span a query at `position` sees.
  int64_t NumVisibleKeys(int64_t span, int64_t position, KeyWindow window) const;
  /// The end of the spans that a query at `position` may see at other ranks: its own span, and of a
  /// prompt that it sees whole all.
  int64_t EndOfAskedSpans(int64_t position) const {
    return position < whole_end_ ? NumSpans(whole_end_) : SpanOf(position);
  }

  /// Per-degree: which part of a rank's keys a span belongs to, ascending. A generated row's state
  /// is a fold of one state for each segment, so that segments can be computed beside each other.
  /// They begin at absolute positions: about kSegmentBlocks key blocks of each rank.
  static constexpr int64_t kSegmentBlocks = 16;
  int64_t SegmentOf(int64_t span) const {
    return SpanPositions(span).begin /
           (kSegmentBlocks * geometry_.key_block() * geometry_.num_ranks());
  }

  /// Per-degree: positions of [0, length) in spans that OwnerOfSpan gives to `owner`.
  int64_t NumPositionsOf(int32_t owner, int64_t length) const;

  const SpanGeometry& geometry() const { return geometry_; }
  bool is_canonical() const { return geometry_.is_canonical(); }
  friend bool operator==(const SessionSpans&, const SessionSpans&) = default;

 private:
  int64_t period() const { return 2 * int64_t{geometry_.num_ranks()}; }
  // Of a period of 2N spans those of `owner`, up to `length`.
  int64_t PositionsInPeriod(int64_t index, int32_t owner, int64_t length) const;

  // Of a unit with positions.
  int64_t pieces() const {
    return geometry_.layout() == AttentionLayout::kContiguous ? geometry_.num_ranks() : period();
  }
  int64_t unit() const { return pieces() * geometry_.span(); }

  SpanGeometry geometry_;
  int64_t whole_end_ = 0;  // of the prompt that its rows see whole; 0: they are causal
  // Per-degree. Striped: all positions are as generated ones, behind no prompt.
  int64_t prompt_length_ = 0;
  int64_t num_units_ = 0;        // whole ones
  int64_t last_begin_ = 0;       // of the last, shorter unit
  int64_t last_size_ = 0;        // 0: there is none
  int64_t first_generated_ = 0;  // span
};

}  // namespace moebius
