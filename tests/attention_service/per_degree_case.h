// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "moebius/attention/attention_layout.h"
#include "tests/attention_service/double_reference.h"

namespace moebius::testing {

constexpr int64_t kPerDegreeBlock = 32;
constexpr int32_t kPerDegreeRanks[] = {1, 2, 3, 4, 5, 8};

/// A name of AttentionCaseNames, and a layout.
using PerDegreeCase = std::tuple<std::string, AttentionLayout>;

/// With open heads, the per-degree sum and blocks of kPerDegreeBlock keys: zigzag with one in a
/// span, the others with two.
inline AttentionCase MakePerDegreeCase(const std::string& name,
                                       AttentionLayout layout = AttentionLayout::kZigzag) {
  const bool is_zigzag = layout == AttentionLayout::kZigzag;
  AttentionCase model =
      MakeCaseWithOpenHeads(name, is_zigzag ? kPerDegreeBlock : 2 * kPerDegreeBlock);
  model.facts.key_block = kPerDegreeBlock;
  model.facts.sum = AttentionSum::kPerDegree;
  model.facts.layout = layout;
  return model;
}
inline AttentionCase MakePerDegreeCase(const PerDegreeCase& of) {
  return MakePerDegreeCase(std::get<0>(of), std::get<1>(of));
}

}  // namespace moebius::testing
