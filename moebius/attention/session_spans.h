// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/attention/span.h"

namespace moebius {

/// The spans of one session: what is owned, sent and summed as one piece. A value.
///
/// Canonical: those of the geometry, at absolute positions.
///
/// Per-degree, over N ranks: the prompt goes in units of 2N spans. A whole unit is cut as in the
/// canonical sum; the last one, of T positions, is the classic zigzag without any rule of
/// divisibility: its 2N spans end at ⌊j · T / 2N⌋ (zigzag.h) and some may be empty. Generated
/// positions follow in spans of one key block. Owners follow from a span's index as ever
/// (SpanOwner), so chunks go from rank 0 up to N − 1 and back.
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
  /// How many keys of a span a query at `position` sees.
  int64_t NumVisibleKeys(int64_t span, int64_t position, KeyWindow window) const;

  /// Per-degree: positions of [0, length) in spans that OwnerOfSpan gives to `owner`.
  int64_t NumPositionsOf(int32_t owner, int64_t length) const;

  const SpanGeometry& geometry() const { return geometry_; }
  bool is_canonical() const { return geometry_.is_canonical(); }
  friend bool operator==(const SessionSpans&, const SessionSpans&) = default;

 private:
  int64_t period() const { return 2 * int64_t{geometry_.num_ranks()}; }
  // Of a period of 2N spans those of `owner`, up to `length`.
  int64_t PositionsInPeriod(int64_t index, int32_t owner, int64_t length) const;

  SpanGeometry geometry_;
  // Per-degree.
  int64_t prompt_length_ = 0;
  int64_t num_units_ = 0;        // whole ones
  int64_t last_begin_ = 0;       // of the last, shorter unit
  int64_t last_size_ = 0;        // 0: there is none
  int64_t first_generated_ = 0;  // span
};

}  // namespace moebius
