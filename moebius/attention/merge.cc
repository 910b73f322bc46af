// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/merge.h"

#include <algorithm>
#include <cmath>

#include "moebius/base/check.h"
#include "moebius/kernels/math.h"
#include "moebius/kernels/row_ops.h"

namespace moebius {
namespace {

// Elements that the compiler takes together: a count that it knows, without overlap.
constexpr size_t kLanes = 16;

// into = into · a + from · b, every product and sum rounded.
void Weigh(const float* __restrict from, float a, float b, size_t size, float* __restrict into) {
  size_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) into[i + j] = into[i + j] * a + from[i + j] * b;
  }
  for (; i < size; ++i) into[i] = into[i] * a + from[i] * b;
}

}  // namespace

void ClearPartial(Partial& partial) {
  std::fill(partial.acc.begin(), partial.acc.end(), 0.0f);
  partial.m = -std::numeric_limits<float>::infinity();
  partial.l = 0;
  partial.num_keys = 0;
}

void MergePartial(const Partial& from, Partial& into) {
  MOEBIUS_DCHECK_EQ(from.acc.size(), into.acc.size());
  if (from.empty()) return;
  if (into.empty()) {
    std::copy(from.acc.begin(), from.acc.end(), into.acc.begin());
    into.m = from.m;
    into.l = from.l;
    into.num_keys = from.num_keys;
    return;
  }
  const float m = from.m > into.m ? from.m : into.m;
  const float a = Exp(into.m - m);
  const float b = Exp(from.m - m);
  Weigh(from.acc.data(), a, b, into.acc.size(), into.acc.data());
  into.l = into.l * a + from.l * b;
  into.m = m;
  into.num_keys += from.num_keys;
}

void MergeSink(float sink, Partial& partial) {
  if (partial.empty()) return;  // no value: the output stays +0
  const float m = sink > partial.m ? sink : partial.m;
  const float a = Exp(partial.m - m);
  for (float& element : partial.acc) element = element * a;
  partial.l = partial.l * a + Exp(sink - m);
  partial.m = m;
}

void NormalizePartial(const Partial& partial, absl::Span<Bf16> out) {
  MOEBIUS_DCHECK_EQ(partial.acc.size(), out.size());
  if (partial.empty()) {
    std::fill(out.begin(), out.end(), Bf16{});
    return;
  }
  DivideRow(partial.acc, partial.l, out);
}

double LogSumExp(const Partial& partial) {
  if (partial.empty()) return -std::numeric_limits<double>::infinity();
  return static_cast<double>(partial.m) + std::log(static_cast<double>(partial.l));
}

}  // namespace moebius
