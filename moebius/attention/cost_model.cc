// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/cost_model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "moebius/attention/cost_terms.h"
#include "moebius/attention/head_map.h"
#include "moebius/attention/span.h"
#include "moebius/base/check.h"

namespace moebius {
namespace {

// `compute` seconds in rounds whose transfers take `bytes` together. The first round of a canonical
// sum comes before anything can be folded; a ring's first shard is the own one.
void AddRounds(const CostTerms& terms, double compute, double bytes, double num_ranks,
               MethodCost& cost) {
  if (terms.is_canonical()) {
    const double rounds = terms.num_rounds();
    const double transfer = terms.Transfer(bytes / rounds);
    cost.exposed_seconds += transfer + (rounds - 1) * std::max(0.0, transfer - compute / rounds);
  } else if (num_ranks > 1) {
    const double transfer = terms.Transfer(bytes / (num_ranks - 1));
    cost.exposed_seconds += (num_ranks - 1) * std::max(0.0, transfer - compute / num_ranks);
  }
  cost.bytes += bytes;
}

MethodCost LocalCost(const CostTerms& terms) {
  MethodCost cost;
  cost.compute_seconds = terms.SecondsOf(
      terms.flops + terms.Expand(terms.keys, static_cast<double>(terms.heads.query_heads)));
  cost.memory_bytes = terms.keys * terms.key_bytes;
  return cost;
}

double RowCompute(const CostTerms& terms) {
  return terms.SecondsOf(terms.flops / terms.n * terms.row_imbalance +
                         terms.Expand(terms.keys, static_cast<double>(terms.heads.query_heads)));
}

MethodCost AllGatherCost(const CostTerms& terms) {
  MethodCost cost;
  cost.compute_seconds = RowCompute(terms);
  cost.bytes = terms.foreign_keys * terms.key_bytes;
  cost.exposed_seconds =
      terms.rates.latency * std::log2(terms.n) + cost.bytes / terms.rates.bandwidth;
  cost.memory_bytes = terms.keys * terms.key_bytes;
  return cost;
}

MethodCost PassKvCost(const CostTerms& terms) {
  MethodCost cost;
  cost.compute_seconds = RowCompute(terms);
  AddRounds(terms, cost.compute_seconds, terms.foreign_keys * terms.key_bytes, terms.n, cost);
  const double own = terms.keys / terms.n;
  const double live =
      terms.is_canonical()
          ? std::min(terms.keys - own, 4 * (terms.n - 1) * static_cast<double>(terms.options.span))
          : 2 * own;
  cost.memory_bytes = (own + live) * terms.key_bytes;
  return cost;
}

MethodCost PassQCost(const CostTerms& terms) {
  MethodCost cost;
  const auto query_heads = static_cast<double>(terms.heads.query_heads);
  cost.compute_seconds = terms.SecondsOf(terms.flops / terms.n * terms.key_imbalance +
                                         terms.Expand(terms.keys / terms.n, query_heads));
  const double queries = terms.foreign_queries * terms.query_bytes;
  const double transfer = terms.Transfer(queries / (terms.n - 1));
  cost.exposed_seconds = (terms.n - 1) * std::max(0.0, transfer - cost.compute_seconds / terms.n);
  const auto value_dim = static_cast<double>(terms.heads.value_dim);
  const double returned =
      terms.is_canonical()
          ? terms.tokens / terms.n * terms.foreign_states * query_heads * (4 * value_dim + 8)
          : terms.share() * terms.tokens * query_heads *
                (value_dim * static_cast<double>(terms.options.return_bytes) + 4);
  cost.exposed_seconds += terms.Transfer(returned);
  cost.bytes = queries + returned;
  cost.memory_bytes =
      terms.keys / terms.n * terms.key_bytes + 2 * terms.tokens / terms.n * terms.query_bytes;
  return cost;
}

// Groups of U ranks that share heads; the groups share the keys of all.
MethodCost HeadCost(const CostTerms& terms, int32_t num_parts) {
  MethodCost cost;
  cost.ulysses_ranks = num_parts;
  cost.ring_ranks = terms.options.num_ranks / num_parts;
  const double u = num_parts;
  const double r = cost.ring_ranks;
  const int64_t query_heads = terms.heads.query_heads;
  int64_t most_query_heads = 0, most_kv_heads = 0;
  for (int32_t part = 0; part < num_parts; ++part) {
    const HeadRange queries = QueryHeadsOf(part, num_parts, query_heads);
    most_query_heads = std::max<int64_t>(most_query_heads, queries.size());
    const int64_t kv_heads = KvHeadsOf(queries, query_heads, terms.num_kv_heads).size();
    most_kv_heads = std::max(most_kv_heads, kv_heads);
  }
  const auto sum_kv = static_cast<double>(SumOfKvHeads(num_parts, query_heads, terms.num_kv_heads));
  const double head_share =
      static_cast<double>(most_query_heads) / static_cast<double>(query_heads);
  // Rows of a group are computed by all its ranks, so spans balance the groups.
  const double imbalance = r > 1 ? terms.GroupImbalance(num_parts) : 1;
  cost.compute_seconds =
      terms.SecondsOf(terms.flops / r * head_share * imbalance +
                      terms.Expand(terms.keys, static_cast<double>(most_query_heads)));
  const bool is_counted = terms.is_canonical() && terms.counts_reach();
  const double key_rows = r > 1 ? terms.tokens : terms.keys;
  double heads_bytes = (u - 1) / (u * terms.n) *
                       (terms.tokens * terms.row_bytes + key_rows * terms.head_bytes * sum_kv);
  double rounds_bytes = (r - 1) / r * terms.keys * terms.head_bytes * sum_kv / u;
  if (is_counted) {
    // Keys come in rounds that leave out what no row sees.
    heads_bytes = (u - 1) / (u * terms.n) * terms.tokens * terms.row_bytes;
    rounds_bytes = terms.ForeignKeyHeads(num_parts, sum_kv) * terms.head_bytes;
  }
  cost.bytes = heads_bytes;
  cost.exposed_seconds = 2 * terms.rates.latency + heads_bytes / terms.rates.bandwidth;
  if (r > 1 || is_counted) AddRounds(terms, cost.compute_seconds, rounds_bytes, r, cost);
  const double kv_row = terms.head_bytes * static_cast<double>(most_kv_heads);
  const double two_rounds = 4 * terms.n * static_cast<double>(terms.options.span);
  const double live = r == 1                 ? terms.keys
                      : terms.is_canonical() ? std::min(terms.keys, two_rounds)
                                             : 2 * terms.keys / r;
  cost.memory_bytes = terms.keys / terms.n * terms.key_bytes + live * kv_row +
                      terms.tokens / r * head_share * terms.row_bytes;
  return cost;
}

MethodCost TwoDimensionalCost(const CostTerms& terms) {
  const int32_t n = terms.options.num_ranks;
  if (terms.options.ulysses_ranks > 0) return HeadCost(terms, terms.options.ulysses_ranks);
  MethodCost best = HeadCost(terms, 1);  // a prime N has no other
  bool has_two_dimensions = false;
  for (int32_t u = 2; u < n; ++u) {
    if (n % u != 0) continue;
    const MethodCost cost = HeadCost(terms, u);
    const auto seconds = [](const MethodCost& of) {
      return of.compute_seconds + of.exposed_seconds;
    };
    if (has_two_dimensions && seconds(cost) >= seconds(best)) continue;
    best = cost;
    has_two_dimensions = true;
  }
  return best;
}

MethodCost CostOf(AttentionMethod method, const CostTerms& terms) {
  if (terms.options.num_ranks == 1) return LocalCost(terms);
  switch (method) {
    case AttentionMethod::kLocal:
      return LocalCost(terms);
    case AttentionMethod::kAllGather:
      return AllGatherCost(terms);
    case AttentionMethod::kRingPassKv:
      return PassKvCost(terms);
    case AttentionMethod::kRingPassQ:
      return PassQCost(terms);
    case AttentionMethod::kUlysses:
      return HeadCost(terms, terms.options.num_ranks);
    case AttentionMethod::k2d:
      return TwoDimensionalCost(terms);
  }
  MOEBIUS_CHECK(false);
}

}  // namespace

absl::Status ValidateCostInputs(const AttentionHeads& heads, const AttentionWork& work,
                                const RankRates& rates, const CostOptions& options) {
  const auto refuse = [](const auto&... words) {
    return absl::InvalidArgumentError(absl::StrCat(words...));
  };
  constexpr int64_t kMax = int64_t{1} << 24;
  if (heads.query_heads < 1 || heads.query_heads > 65536) {
    return refuse(heads.query_heads, " query heads, there are 1 to 65536");
  }
  if (heads.kv_heads < 1 || heads.query_heads % heads.kv_heads != 0) {
    return refuse(heads.query_heads, " query heads over ", heads.kv_heads,
                  " KV heads: every KV head serves as many query heads");
  }
  if (heads.window < 0 || heads.window > (int64_t{1} << 32)) {
    return refuse("a window of ", heads.window, " keys; 0 is none");
  }
  if (!heads.is_causal && (heads.window > 0 || work.cached_tokens > 0)) {
    return refuse(
        "attention that is not causal has no windows and no cached tokens: a prompt is "
        "computed whole");
  }
  if (heads.head_dim < 1 || heads.head_dim > kMax || heads.value_dim < 1 ||
      heads.value_dim > kMax) {
    return refuse("head sizes ", heads.head_dim, " and ", heads.value_dim, " of keys and values");
  }
  if (heads.element_bytes < 1 || heads.element_bytes > 8 || options.return_bytes < 1 ||
      options.return_bytes > 8) {
    return refuse("an element has 1 to 8 bytes");
  }
  if (work.new_tokens < 0 || work.cached_tokens < 0 || work.new_tokens > (int64_t{1} << 32) ||
      work.cached_tokens > (int64_t{1} << 32)) {
    return refuse(work.new_tokens, " new and ", work.cached_tokens, " cached tokens");
  }
  if (!(rates.flops > 0) || !(rates.bandwidth > 0) || !(rates.latency >= 0) ||
      !std::isfinite(rates.flops) || !std::isfinite(rates.bandwidth) ||
      !std::isfinite(rates.latency)) {
    return refuse("rates are positive numbers and the latency is not negative");
  }
  if (options.num_ranks < 1 || options.num_ranks > 1024) {
    return refuse(options.num_ranks, " ranks, there are 1 to 1024");
  }
  if (options.ulysses_ranks < 0 ||
      (options.ulysses_ranks > 0 && options.num_ranks % options.ulysses_ranks != 0)) {
    return refuse("groups of ", options.ulysses_ranks, " ranks do not divide ", options.num_ranks);
  }
  if (options.sum == AttentionSum::kCanonical && options.layout != AttentionLayout::kZigzag) {
    return refuse("the layout ", AttentionLayoutName(options.layout),
                  " is of the per-degree sum; the canonical sum follows the span rule");
  }
  if (options.key_block < 32) return refuse("blocks of ", options.key_block, " keys, at least 32");
  return ValidateSpanGeometry(options.span, 32);
}

MethodCost PredictCost(AttentionMethod method, const AttentionHeads& heads,
                       const AttentionWork& work, const RankRates& rates,
                       const CostOptions& options) {
  MethodCost cost = CostOf(method, CostTerms(heads, work, rates, options));
  cost.seconds = cost.compute_seconds + cost.exposed_seconds;
  const bool is_alone = method == AttentionMethod::kLocal || options.num_ranks == 1;
  cost.ranks = is_alone ? 1 : options.num_ranks;
  if (!is_alone && method != AttentionMethod::kUlysses && method != AttentionMethod::k2d) {
    cost.ring_ranks = options.num_ranks;
  }
  return cost;
}

double HiddenFromTokens(const AttentionHeads& heads, const RankRates& rates, int32_t num_ranks) {
  const CostTerms terms(heads, {}, rates,
                        {.num_ranks = num_ranks, .sum = AttentionSum::kPerDegree});
  const double flops_of_pair =
      2 * static_cast<double>(heads.query_heads * (heads.head_dim + heads.value_dim));
  return num_ranks * rates.flops * terms.key_bytes / (flops_of_pair * rates.bandwidth);
}

}  // namespace moebius
