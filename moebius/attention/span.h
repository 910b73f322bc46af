// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"

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

/// How the keys of every session are cut, at absolute positions, into spans and key blocks. The
/// cuts belong to the model: they are the same for every chunking, batch, thread and rank count.
/// Pure and immutable.
class SpanGeometry {
 public:
  /// `span` is a multiple of `key_block`, which is a multiple of 32 (ValidateSpanGeometry).
  SpanGeometry(int64_t span, int64_t key_block) : span_(span), key_block_(key_block) {
    MOEBIUS_CHECK(key_block > 0 && key_block % 32 == 0);
    MOEBIUS_CHECK(span > 0 && span % key_block == 0);
  }

  int64_t span() const { return span_; }
  int64_t key_block() const { return key_block_; }
  int64_t blocks_per_span() const { return span_ / key_block_; }

  int64_t SpanOf(int64_t position) const { return position / span_; }
  int64_t BlockOf(int64_t position) const { return position / key_block_; }
  /// Spans (key blocks) that hold the keys of positions [0, length).
  int64_t NumSpans(int64_t length) const { return (length + span_ - 1) / span_; }
  int64_t NumBlocks(int64_t length) const { return (length + key_block_ - 1) / key_block_; }
  /// All positions of a span, whether keys are there or not.
  PositionRange SpanPositions(int64_t span_index) const {
    return {span_index * span_, (span_index + 1) * span_};
  }
  /// How many keys of a span a causal query at `position` sees: its keys are [0, position].
  int64_t NumVisibleKeys(int64_t span_index, int64_t position) const {
    const int64_t seen = position + 1 - span_index * span_;
    return seen < 0 ? 0 : (seen > span_ ? span_ : seen);
  }

 private:
  int64_t span_;
  int64_t key_block_;
};

/// INVALID_ARGUMENT in words when (span, key_block) is not a geometry that the kernels compute.
absl::Status ValidateSpanGeometry(int64_t span, int64_t key_block);

/// The rank, of `num_ranks` >= 1, that first owns a span: fold(span mod 2N), with fold(x) = x for
/// x < N and 2N - 1 - x above. Every rank gets the same causal work from each 2N spans.
int64_t OwnerOfSpan(int64_t span_index, int64_t num_ranks);

}  // namespace moebius
