// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cli/bench/ffn_workload.h"

#include "moebius/tensor/bf16.h"

namespace moebius {

/// A plain loop over weights as a checkpoint stores them, on one core: what one gets without any of
/// this. Not thread-safe.
class PlainLoop {
 public:
  explicit PlainLoop(const FfnShape& shape);
  /// Of one row and its top_k experts.
  double Seconds();

 private:
  const FfnShape shape_;
  std::vector<Bf16> gate_, up_, down_;  // of one expert
  std::vector<float> row_, gates_, ups_, out_;
};

}  // namespace moebius
