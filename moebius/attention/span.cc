// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/span.h"

#include "absl/strings/str_cat.h"

namespace moebius {

absl::Status ValidateSpanGeometry(int64_t span, int64_t key_block) {
  constexpr int64_t kMaxSpan = int64_t{1} << 20;
  if (key_block < 32 || key_block > 128 || key_block % 32 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("key block is ", key_block, ", it must be 32, 64, 96 or 128"));
  }
  if (span < key_block || span > kMaxSpan || span % key_block != 0) {
    return absl::InvalidArgumentError(absl::StrCat("span is ", span, ", it must be a multiple of ",
                                                   key_block, " (the key block) up to ", kMaxSpan));
  }
  return absl::OkStatus();
}

int64_t OwnerOfSpan(int64_t span_index, int64_t num_ranks) {
  MOEBIUS_CHECK(span_index >= 0 && num_ranks >= 1);
  const int64_t x = span_index % (2 * num_ranks);
  return x < num_ranks ? x : 2 * num_ranks - 1 - x;
}

}  // namespace moebius
