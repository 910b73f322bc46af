// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moebius/base/gate_config.h"
#include "moebius/routing/bias_balancer.h"
#include "moebius/tensor/buffer.h"

namespace moebius {

/// Traffic that a balancer is shown again and again: the logits of one gate.
struct BalanceTraffic {
  std::string name;
  GateConfig config;
  std::vector<float> base;               // [E], the checkpoint's biases; empty: zeros
  std::vector<RowBatch<float>> windows;  // [rows, E] each, taken in turns
};

/// How a balancer fared, window by window; entry w was seen under the biases of w updates.
struct BalanceCurve {
  std::string name;
  std::vector<double> max_violation;
  std::vector<double> changed;  // share of rows whose set of experts is not the checkpoint's
  float max_delta = 0;          // of the biases at the end
};

/// A gate whose first expert nearly all rows want, and others less and less: `num_windows` windows
/// of 2,000 assignments per expert, so that shot noise stays below 0.1. The same for a seed.
BalanceTraffic SkewedTraffic(ScoreFunction function, int32_t num_experts, int32_t top_k,
                             int num_windows, uint64_t seed);

/// Runs `num_updates` updates. Float environment of the executor.
BalanceCurve RunBalance(const BalanceTraffic& traffic, const BiasOptions& options, int num_updates);

/// Two panels over the updates: MaxVio, and the share of rows whose experts changed.
std::string DrawCurves(const std::vector<BalanceCurve>& curves);

}  // namespace moebius
