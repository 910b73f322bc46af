// SPDX-License-Identifier: Apache-2.0
// The long recorded case: 4,000 bytes cross 31 spans of the demo. Too slow for the sanitizers.
#include "gtest/gtest.h"

#include "tests/node/expected_cases.h"

namespace moebius {
namespace {

void ExpectLongCase(const EmbeddedOptions& options) {
  ExpectSameBits(*OpenDemo(options), FindExpectedCase("long"));
}

TEST(LongBitsTest, HoldInChunksOfTheRowBudget) { ExpectLongCase(EmbeddedOptions()); }

TEST(LongBitsTest, HoldWhole) {
  EmbeddedOptions options;
  options.row_budget = 4096;
  ExpectLongCase(options);
}

TEST(LongBitsTest, HoldOnOneThread) {
  EmbeddedOptions options;
  options.num_threads = 1;
  ExpectLongCase(options);
}

TEST(LongBitsTest, HoldOnFourExpertPipelines) {
  EmbeddedOptions options;
  options.num_expert_pipelines = 4;
  ExpectLongCase(options);
}

TEST(LongBitsTest, HoldWhenKvIsLostBehindALongPrompt) {
  ExpectedCase expected = FindExpectedCase("long");
  expected.request.recompute_after = 9;
  ExpectSameBits(*OpenDemo(), expected);
}

}  // namespace
}  // namespace moebius
