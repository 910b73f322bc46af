// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "gtest/gtest.h"

#include "tests/attention_service/rank_world.h"

namespace moebius::testing {

/// A kind of links under ranks; the suite is rank_links_test.cc, a transport's own file
/// instantiates it.
struct RankLinks {
  std::string name;
  ProviderFactory make;
  friend std::ostream& operator<<(std::ostream& out, const RankLinks& links) {
    return out << links.name;
  }
};
class RankLinksTest : public ::testing::TestWithParam<RankLinks> {};

}  // namespace moebius::testing
