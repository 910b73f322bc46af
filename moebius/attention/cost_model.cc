// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/cost_model.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"

#include "moebius/attention/head_map.h"
#include "moebius/attention/span.h"
#include "moebius/attention/zigzag.h"
#include "moebius/base/check.h"

namespace moebius {
namespace {

// Σ over positions p in [begin, end) of the keys that p sees, which are at most `most`.
double VisibleKeys(int64_t begin, int64_t end, int64_t most) {
  if (end <= begin) return 0;
  // p + 1 keys up to p = most - 1, `most` beyond.
  const int64_t bend = std::clamp(most, begin, end);
  const double rising = (static_cast<double>(begin) + static_cast<double>(bend) + 1) / 2 *
                        static_cast<double>(bend - begin);
  return rising + static_cast<double>(end - bend) * static_cast<double>(most);
}

int64_t MostKeys(const AttentionHeads& heads, const AttentionWork& work) {
  return heads.window > 0 ? std::min(heads.window, work.keys()) : work.keys();
}

// The largest load to the mean.
double Imbalance(const std::vector<double>& loads) {
  double sum = 0;
  double largest = 0;
  for (const double load : loads) {
    sum += load;
    largest = std::max(largest, load);
  }
  return sum > 0 ? largest * static_cast<double>(loads.size()) / sum : 1;
}

// Everything that the methods' formulas share.
struct Terms {
  Terms(const AttentionHeads& heads, const AttentionWork& work, const RankRates& rates,
        const CostOptions& options)
      : heads(heads),
        rates(rates),
        options(options),
        n(options.num_ranks),
        tokens(static_cast<double>(work.new_tokens)) {
    // With a window the first query's oldest key is the oldest of all.
    const int64_t seen =
        heads.window > 0 ? std::min(work.keys(), work.new_tokens + heads.window - 1) : work.keys();
    keys = static_cast<double>(seen);
    const auto e = static_cast<double>(heads.element_bytes);
    head_bytes = static_cast<double>(heads.latent_dim > 0 ? heads.latent_dim
                                                          : heads.head_dim + heads.value_dim) *
                 e;
    num_kv_heads = heads.latent_dim > 0 ? 1 : heads.kv_heads;
    key_bytes = head_bytes * static_cast<double>(num_kv_heads);
    query_bytes = static_cast<double>(heads.query_heads * heads.head_dim) * e;
    row_bytes = static_cast<double>(heads.query_heads * (heads.head_dim + heads.value_dim)) * e;
    flops = AttentionFlops(heads, work);
    if (is_canonical()) {
      BalanceSpans(work);
    } else {
      BalanceZigzag(work);
    }
  }

  double SecondsOf(double flops_of_rank) const { return flops_of_rank / rates.flops; }
  double Transfer(double bytes) const { return rates.latency + bytes / rates.bandwidth; }
  double Expand(double num_keys, double num_heads) const {
    return num_keys * num_heads * static_cast<double>(heads.expand_flops);
  }
  bool is_canonical() const { return options.sum == AttentionSum::kCanonical; }
  double share() const { return (n - 1) / n; }
  // Rounds of 2N spans of all keys.
  double num_rounds() const { return std::max(1.0, std::ceil(num_spans / (2 * n))); }

  AttentionHeads heads;
  RankRates rates;
  CostOptions options;
  double n;
  double tokens;
  double keys;        // that any query sees
  double head_bytes;  // of a token's key and value of one KV head
  int64_t num_kv_heads;
  double key_bytes;    // of a token, all KV heads
  double query_bytes;  // of a row
  double row_bytes;    // of a row's queries and outputs
  double flops;
  double num_spans = 1;
  double spans_of_row = 0;   // canonical: mean number of spans that a row sees
  double row_imbalance = 1;  // slowest rank to mean, rows computed by their spans' owners
  double key_imbalance = 1;  // states computed by the keys' owners

 private:
  void BalanceSpans(const AttentionWork& work);
  void BalanceZigzag(const AttentionWork& work);
};

void Terms::BalanceZigzag(const AttentionWork& work) {
  const int64_t most = MostKeys(heads, work);
  std::vector<double> of_rows;
  for (int32_t rank = 0; rank < options.num_ranks; ++rank) {
    of_rows.push_back(0);
    for (const PositionRange& range : ZigzagRangesOf(work.new_tokens, {rank, options.num_ranks})) {
      of_rows.back() +=
          VisibleKeys(work.cached_tokens + range.begin, work.cached_tokens + range.end, most);
    }
  }
  row_imbalance = Imbalance(of_rows);
}

void Terms::BalanceSpans(const AttentionWork& work) {
  const SpanGeometry geometry(options.span, 32);
  const int64_t most = MostKeys(heads, work);
  const int64_t first_row = work.cached_tokens;
  const int64_t end = work.keys();
  const auto count = static_cast<size_t>(options.num_ranks);
  std::vector<double> of_rows(count), of_keys(count);
  double seen = 0;
  int64_t num_seen_spans = 0;
  for (int64_t span = 0; span < geometry.NumSpans(end); ++span) {
    const PositionRange range = geometry.SpanPositions(span);
    const auto owner = static_cast<size_t>(OwnerOfSpan(span, options.num_ranks));
    const int64_t row = std::max(first_row, range.begin);
    of_rows[owner] += VisibleKeys(row, std::min(end, range.end), most);
    // Queries that see a key of the span; the last key is out of a window's sight after `most`
    // more.
    const int64_t last_row = std::min(end, range.end - 1 + most);
    if (last_row <= row) continue;
    ++num_seen_spans;
    seen += static_cast<double>(last_row - row);
    const int64_t diagonal_end = std::min(last_row, range.end);
    of_keys[owner] += VisibleKeys(row - range.begin, diagonal_end - range.begin, most) +
                      static_cast<double>(last_row - std::max(row, diagonal_end)) *
                          static_cast<double>(geometry.span());
  }
  num_spans = static_cast<double>(std::max<int64_t>(1, num_seen_spans));
  spans_of_row = tokens > 0 ? seen / tokens : 0;
  row_imbalance = Imbalance(of_rows);
  key_imbalance = Imbalance(of_keys);
}

// `compute` seconds in rounds whose transfers take `bytes` together. The first round of a canonical
// sum comes before anything can be folded; a ring's first shard is the own one.
void AddRounds(const Terms& terms, double compute, double bytes, double num_ranks,
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

MethodCost LocalCost(const Terms& terms) {
  MethodCost cost;
  cost.compute_seconds = terms.SecondsOf(
      terms.flops + terms.Expand(terms.keys, static_cast<double>(terms.heads.query_heads)));
  cost.memory_bytes = terms.keys * terms.key_bytes;
  return cost;
}

double RowCompute(const Terms& terms) {
  return terms.SecondsOf(terms.flops / terms.n * terms.row_imbalance +
                         terms.Expand(terms.keys, static_cast<double>(terms.heads.query_heads)));
}

MethodCost AllGatherCost(const Terms& terms) {
  MethodCost cost;
  cost.compute_seconds = RowCompute(terms);
  cost.bytes = terms.share() * terms.keys * terms.key_bytes;
  cost.exposed_seconds =
      terms.rates.latency * std::log2(terms.n) + cost.bytes / terms.rates.bandwidth;
  cost.memory_bytes = terms.keys * terms.key_bytes;
  return cost;
}

MethodCost PassKvCost(const Terms& terms) {
  MethodCost cost;
  cost.compute_seconds = RowCompute(terms);
  AddRounds(terms, cost.compute_seconds, terms.share() * terms.keys * terms.key_bytes, terms.n,
            cost);
  const double own = terms.keys / terms.n;
  const double live =
      terms.is_canonical()
          ? std::min(terms.keys - own, 4 * (terms.n - 1) * static_cast<double>(terms.options.span))
          : 2 * own;
  cost.memory_bytes = (own + live) * terms.key_bytes;
  return cost;
}

MethodCost PassQCost(const Terms& terms) {
  MethodCost cost;
  const auto query_heads = static_cast<double>(terms.heads.query_heads);
  cost.compute_seconds = terms.SecondsOf(terms.flops / terms.n * terms.key_imbalance +
                                         terms.Expand(terms.keys / terms.n, query_heads));
  const double queries = terms.share() * terms.tokens * terms.query_bytes;
  const double transfer = terms.Transfer(queries / (terms.n - 1));
  cost.exposed_seconds = (terms.n - 1) * std::max(0.0, transfer - cost.compute_seconds / terms.n);
  const auto value_dim = static_cast<double>(terms.heads.value_dim);
  const double returned =
      terms.is_canonical() ? terms.tokens / terms.n * terms.share() * terms.spans_of_row *
                                 query_heads * (4 * value_dim + 8)
                           : terms.share() * terms.tokens * query_heads *
                                 (value_dim * static_cast<double>(terms.options.return_bytes) + 4);
  cost.exposed_seconds += terms.Transfer(returned);
  cost.bytes = queries + returned;
  cost.memory_bytes =
      terms.keys / terms.n * terms.key_bytes + 2 * terms.tokens / terms.n * terms.query_bytes;
  return cost;
}

// Groups of U ranks that share heads; the groups share the keys of all.
MethodCost HeadCost(const Terms& terms, int32_t num_parts) {
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
  const double imbalance = r > 1 ? terms.row_imbalance : 1;
  cost.compute_seconds =
      terms.SecondsOf(terms.flops / r * head_share * imbalance +
                      terms.Expand(terms.keys, static_cast<double>(most_query_heads)));
  const double key_rows = r > 1 ? terms.tokens : terms.keys;
  const double heads_bytes =
      (u - 1) / (u * terms.n) *
      (terms.tokens * terms.row_bytes + key_rows * terms.head_bytes * sum_kv);
  cost.bytes = heads_bytes;
  cost.exposed_seconds = 2 * terms.rates.latency + heads_bytes / terms.rates.bandwidth;
  if (r > 1) {
    AddRounds(terms, cost.compute_seconds, (r - 1) / r * terms.keys * terms.head_bytes * sum_kv / u,
              r, cost);
  }
  const double kv_row = terms.head_bytes * static_cast<double>(most_kv_heads);
  const double two_rounds = 4 * terms.n * static_cast<double>(terms.options.span);
  const double live = r == 1                 ? terms.keys
                      : terms.is_canonical() ? std::min(terms.keys, two_rounds)
                                             : 2 * terms.keys / r;
  cost.memory_bytes = terms.keys / terms.n * terms.key_bytes + live * kv_row +
                      terms.tokens / r * head_share * terms.row_bytes;
  return cost;
}

MethodCost TwoDimensionalCost(const Terms& terms) {
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

MethodCost CostOf(AttentionMethod method, const Terms& terms) {
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

absl::string_view AttentionSumName(AttentionSum sum) {
  return sum == AttentionSum::kCanonical ? "canonical" : "per-degree";
}

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
  return ValidateSpanGeometry(options.span, 32);
}

double AttentionPairs(const AttentionHeads& heads, const AttentionWork& work) {
  return VisibleKeys(work.cached_tokens, work.keys(), MostKeys(heads, work));
}

double AttentionFlops(const AttentionHeads& heads, const AttentionWork& work) {
  return 2 * static_cast<double>(heads.query_heads * (heads.head_dim + heads.value_dim)) *
         AttentionPairs(heads, work);
}

MethodCost PredictCost(AttentionMethod method, const AttentionHeads& heads,
                       const AttentionWork& work, const RankRates& rates,
                       const CostOptions& options) {
  MethodCost cost = CostOf(method, Terms(heads, work, rates, options));
  cost.seconds = cost.compute_seconds + cost.exposed_seconds;
  const bool is_alone = method == AttentionMethod::kLocal || options.num_ranks == 1;
  cost.ranks = is_alone ? 1 : options.num_ranks;
  if (!is_alone && method != AttentionMethod::kUlysses && method != AttentionMethod::k2d) {
    cost.ring_ranks = options.num_ranks;
  }
  return cost;
}

double HiddenFromTokens(const AttentionHeads& heads, const RankRates& rates, int32_t num_ranks) {
  const Terms terms(heads, {}, rates, {.num_ranks = num_ranks, .sum = AttentionSum::kPerDegree});
  const double flops_of_pair =
      2 * static_cast<double>(heads.query_heads * (heads.head_dim + heads.value_dim));
  return num_ranks * rates.flops * terms.key_bytes / (flops_of_pair * rates.bandwidth);
}

}  // namespace moebius
