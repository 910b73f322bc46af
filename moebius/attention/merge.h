// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "absl/types/span.h"

#include "moebius/tensor/bf16.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// The softmax of one (query row, head) over a set of keys, un-normalised, in natural-log units:
///   m = max s_j,  l = Σ exp(s_j − m),  acc = Σ exp(s_j − m)·v_j.
/// A partial over one span is made by the span kernel (kernels/attention.h) and by nothing else;
/// who does it, and where, cannot change a bit of it.
///
/// `num_keys` is the number of visible keys, known from positions. It alone says whether a partial
/// is empty: m, l and acc of an empty one (−inf, 0, 0) are never looked at.
struct Partial {
  absl::Span<float> acc;  // [v_head_dim]; memory of the owner
  float m = -std::numeric_limits<float>::infinity();
  float l = 0;
  int64_t num_keys = 0;

  bool empty() const { return num_keys == 0; }
};

/// Makes `partial` empty: acc and l at +0.
void ClearPartial(Partial& partial);

/// into = merge(into, from), the one fold step of the canonical sum. Spans must come in ascending
/// order. If a side is empty the result is the other one, by selection. Otherwise, in fp32 with
/// every product and sum rounded:
///   M = max(m, m'),  a = Exp(m − M),  b = Exp(m' − M),
///   acc = acc·a + acc'·b,  l = l·a + l'·b,  m = M.
/// Source: Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018.
void MergePartial(const Partial& from, Partial& into);

/// Adds a learned sink with logit `sink` to the denominator: after the last merge, at most once.
/// The sink counts as a key without a value.
void MergeSink(float sink, Partial& partial);

/// out = bf16(acc / l), or +0 for an empty partial. `out` has the length of acc.
void NormalizePartial(const Partial& partial, absl::Span<Bf16> out);

/// m + ln(l): what other implementations call lse; −inf when empty. For tests and for comparisons,
/// never part of an output.
double LogSumExp(const Partial& partial);

}  // namespace moebius
