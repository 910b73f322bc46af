// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "moebius/attention/cost_model.h"
#include "moebius/attention/span.h"

namespace moebius {

/// Everything that the formulas of the methods share, for inputs that passed ValidateCostInputs.
/// Part of cost_model.cc.
struct CostTerms {
  CostTerms(const AttentionHeads& heads, const AttentionWork& work, const RankRates& rates,
            const CostOptions& options);

  double SecondsOf(double flops_of_rank) const { return flops_of_rank / rates.flops; }
  double Transfer(double bytes) const { return rates.latency + bytes / rates.bandwidth; }
  double Expand(double num_keys, double num_heads) const {
    return num_keys * num_heads * static_cast<double>(heads.expand_flops);
  }
  bool is_canonical() const { return options.sum == AttentionSum::kCanonical; }
  // Canonical: what travels is counted span by span, as it is not the same for all ranks.
  bool counts_reach() const { return heads.window > 0 || !heads.is_causal; }
  double share() const { return (n - 1) / n; }
  // Rounds of 2N spans of all keys.
  double num_rounds() const { return std::max(1.0, std::ceil(num_spans / (2 * n))); }

  AttentionHeads heads;
  RankRates rates;
  CostOptions options;
  double n;
  double tokens;
  PositionRange rows;
  double keys;        // that any query sees
  double head_bytes;  // of a token's key and value of one KV head
  int64_t num_kv_heads;
  double key_bytes;    // of a token, all KV heads
  double query_bytes;  // of a row
  double row_bytes;    // of a row's queries and outputs
  double flops;
  double num_spans = 1;
  double spans_of_row = 0;        // canonical: mean number of spans that a row sees
  double row_imbalance = 1;       // slowest rank to mean, rows computed by their spans' owners
  double key_imbalance = 1;       // states computed by the keys' owners
  std::vector<double> row_loads;  // per-degree, by rank: pairs of a query and a key
  double foreign_keys = 0;        // that come to a rank's rows from others, mean
  double foreign_states = 0;      // canonical: spans of others that a row sees, mean
  double foreign_queries = 0;     // rows of queries that a rank sends, mean

  // Canonical, where reach is counted: KV heads of key positions that come to a rank of groups of
  // U, mean; `sum_kv` of all ranks of a group.
  double ForeignKeyHeads(int32_t num_parts, double sum_kv) const;
  // row_imbalance of groups of `size` consecutive ranks that compute their rows together.
  // Canonical: that of the ranks.
  double GroupImbalance(int32_t size) const;

 private:
  void BalanceSpans(const AttentionWork& work);
  void BalanceShards(const AttentionWork& work);
};

}  // namespace moebius
