// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "moebius/base/random.h"
#include "moebius/placement/balance.h"

namespace moebius {

/// One case of tests/golden/data/eplb/cases.json: what the public balancer answered.
struct EplbCase {
  std::string name;
  std::vector<BalanceProblem> problems;  // by layer
  std::vector<BalancedLayer> answers;    // by layer
  std::vector<double> max_over_mean;     // by layer, six digits
};

std::vector<EplbCase> ReadEplbCases();

/// Any counts, loads of three kinds (even, falling like 1/rank, few hot ones), equal or unequal
/// capacities, groups and nodes that divide or do not.
BalanceProblem RandomProblem(Random& random);

}  // namespace moebius
