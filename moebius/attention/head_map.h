// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/base/check.h"

// Which heads of a layer each of U ranks computes (Ulysses). Any counts: nothing has to divide.

namespace moebius {

/// A half-open range of heads.
struct HeadRange {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  friend bool operator==(const HeadRange&, const HeadRange&) = default;
};

/// Query heads of rank u: [⌊u · Hq / U⌋, ⌊(u + 1) · Hq / U⌋). Every head is of exactly one rank;
/// ranks beyond the heads have none.
inline HeadRange QueryHeadsOf(int32_t u, int32_t num_parts, int64_t query_heads) {
  MOEBIUS_DCHECK(u >= 0 && u < num_parts);
  return {static_cast<int32_t>(u * query_heads / num_parts),
          static_cast<int32_t>((u + 1) * query_heads / num_parts)};
}

/// KV heads that query heads `heads` read, G = Hq / Hkv of them to a KV head (Hkv divides Hq):
/// [⌊begin / G⌋, ⌈end / G⌉). A KV head that several ranks need is of each of them; no query heads,
/// no KV heads.
inline HeadRange KvHeadsOf(HeadRange heads, int64_t query_heads, int64_t kv_heads) {
  MOEBIUS_DCHECK(kv_heads >= 1 && query_heads % kv_heads == 0);
  if (heads.empty()) return {};
  const int64_t group = query_heads / kv_heads;
  return {static_cast<int32_t>(heads.begin / group),
          static_cast<int32_t>((heads.end + group - 1) / group)};
}

/// Σ over the U ranks of their KV heads: max(Hkv, U) where U divides Hq and either divides the
/// other.
inline int64_t SumOfKvHeads(int32_t num_parts, int64_t query_heads, int64_t kv_heads) {
  int64_t sum = 0;
  for (int32_t u = 0; u < num_parts; ++u) {
    sum += KvHeadsOf(QueryHeadsOf(u, num_parts, query_heads), query_heads, kv_heads).size();
  }
  return sum;
}

}  // namespace moebius
