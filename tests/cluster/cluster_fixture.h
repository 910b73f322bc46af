// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "node/local_cluster.h"
#include "tests/node/expected_cases.h"

namespace moebius {

/// The demo model on M expert services and N attention ranks.
inline LocalClusterOptions DemoCluster(int32_t num_experts, int32_t num_attention) {
  LocalClusterOptions options;
  options.model_path = DemoFolder();
  options.num_experts = num_experts;
  options.num_attention = num_attention;
  return options;
}

/// Asks; `on_tokens` hears how many tokens have come. A failure is a test failure.
inline CaseAnswer AskCluster(LocalCluster& cluster, const GenerateRequest& request,
                             const std::function<void(int64_t)>& on_tokens = nullptr) {
  CaseAnswer answer;
  const absl::Status status = cluster.Generate(request, [&](const GenerateEvent& event) {
    answer.token_ids.insert(answer.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
    if (on_tokens) on_tokens(event.completion_tokens);
    if (event.finished) {
      answer.logits_hash = event.logits_hash;
      answer.tokens_hash = event.tokens_hash;
      answer.exact = event.exactness.exact();
      answer.exactness = event.exactness;
    }
    return true;
  });
  EXPECT_TRUE(status.ok()) << status;
  return answer;
}

inline void ExpectSameBits(const CaseAnswer& answer, const ExpectedCase& expected) {
  EXPECT_EQ(answer.token_ids, expected.token_ids) << expected.name;
  EXPECT_EQ(answer.logits_hash, expected.logits_hash) << expected.name;
  EXPECT_TRUE(answer.exact) << expected.name;
}

}  // namespace moebius
