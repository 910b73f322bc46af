// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "moebius/tensor/rows.h"
#include "tests/attention_service/attention_fixture.h"

namespace moebius::testing {

/// A case whose output projection is the identity, so that heads come out as they are.
AttentionCase MakeCaseWithOpenHeads(const std::string& name, int64_t span);

struct HeadError {
  double max_error = 0;
  double max_value = 0;  // of the expected ones
  /// Rounding P and the output to bf16 (2^-9 each, relative) is all that a one-pass kernel loses;
  /// twice that.
  double bound() const { return 2 * 0x1p-9 * max_value; }
  double max_input = 0;  // of the values that are averaged
  /// The same loss where outputs are means of many values, which are larger than they.
  double bound_of_means() const { return 0x1p-9 * (max_value + max_input); }
};

/// Layer 0 of one session's prompt rows, every `stride`th row of every head and the last, against
/// attention in fp64 over the rounded queries, keys and values. `model` has open heads; where it is
/// not causal the first `prompt_length` rows (-1: all) see each other and the others what is before
/// them.
HeadError CompareHeadsWithDouble(const AttentionCase& model, Bf16Rows rows, Bf16Rows found,
                                 int64_t stride = 13, int64_t prompt_length = -1);

}  // namespace moebius::testing
