// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/cost_terms.h"

#include <vector>

#include "moebius/attention/key_reach.h"
#include "moebius/attention/shard.h"
#include "moebius/attention/shard_ranges.h"

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

double Product(int64_t a, int64_t b) { return static_cast<double>(a) * static_cast<double>(b); }

// How the canonical sum cuts a session, as far as costs go.
SpanGeometry GeometryOf(const AttentionHeads& heads, const CostOptions& options) {
  return {options.span,
          32,
          AttentionSum::kCanonical,
          options.num_ranks,
          AttentionLayout::kZigzag,
          heads.is_causal ? PromptMask::kCausal : PromptMask::kWhole};
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

// Keys before a shard's ranges that the window of their rows reaches and that the rank does not
// own, mean over the ranks; cached keys are shared evenly.
double MeanHalo(const AttentionWork& work, int64_t window, const CostOptions& options) {
  const int64_t cached = work.cached_tokens;
  const double share = (options.num_ranks - 1.0) / options.num_ranks;
  double sum = 0;
  for (int32_t rank = 0; rank < options.num_ranks; ++rank) {
    int64_t seen_end = 0;  // keys before it are counted
    const auto add = [&](PositionRange range) {
      const int64_t begin = std::max(seen_end, cached + range.begin + 1 - window);
      seen_end = cached + range.end;
      const int64_t of_cache = std::max<int64_t>(0, cached - std::max<int64_t>(0, begin));
      const int64_t of_others =
          std::max<int64_t>(0, cached + range.begin - std::max(cached, begin));
      sum += share * static_cast<double>(of_cache) + static_cast<double>(of_others);
    };
    ForEachShardRange(options.layout, work.new_tokens, {rank, options.num_ranks}, options.key_block,
                      add);
  }
  return sum / options.num_ranks;
}

}  // namespace

double AttentionPairs(const AttentionHeads& heads, const AttentionWork& work) {
  if (!heads.is_causal) return Product(work.new_tokens, work.keys());
  return VisibleKeys(work.cached_tokens, work.keys(), MostKeys(heads, work));
}

double AttentionFlops(const AttentionHeads& heads, const AttentionWork& work) {
  return 2 * static_cast<double>(heads.query_heads * (heads.head_dim + heads.value_dim)) *
         AttentionPairs(heads, work);
}

CostTerms::CostTerms(const AttentionHeads& heads, const AttentionWork& work, const RankRates& rates,
                     const CostOptions& options)
    : heads(heads),
      rates(rates),
      options(options),
      n(options.num_ranks),
      tokens(static_cast<double>(work.new_tokens)),
      rows{work.cached_tokens, work.keys()} {
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
  foreign_keys = share() * keys;
  foreign_queries = share() * tokens;
  if (is_canonical()) {
    BalanceSpans(work);
  } else {
    BalanceShards(work);
  }
}

double CostTerms::ForeignKeyHeads(int32_t num_parts, double sum_kv) const {
  const KeyReach reach =
      ReachOfKeys(rows, GeometryOf(heads, options), {heads.window}, {options.num_ranks, num_parts});
  return (static_cast<double>(reach.seen_positions) * sum_kv -
          static_cast<double>(reach.own_positions) * sum_kv / num_parts) /
         n;
}

double CostTerms::GroupImbalance(int32_t size) const {
  if (is_canonical()) return row_imbalance;
  std::vector<double> of_groups(row_loads.size() / static_cast<size_t>(size));
  for (size_t rank = 0; rank < row_loads.size(); ++rank) {
    of_groups[rank / static_cast<size_t>(size)] += row_loads[rank];
  }
  return Imbalance(of_groups);
}

void CostTerms::BalanceShards(const AttentionWork& work) {
  const int64_t most = MostKeys(heads, work);
  const int64_t num_new = work.new_tokens;
  // Of the pairs with a cached key each rank computes as many where the keys are.
  const double of_cache =
      heads.is_causal
          ? (AttentionPairs(heads, work) - VisibleKeys(0, num_new, std::min(most, num_new))) / n
          : 0;
  std::vector<double> of_keys;
  for (int32_t rank = 0; rank < options.num_ranks; ++rank) {
    double of_rows = 0;
    of_keys.push_back(of_cache);
    const auto add = [&](PositionRange range) {
      if (!heads.is_causal) {
        of_rows += Product(range.size(), num_new);
        of_keys.back() += Product(range.size(), num_new);
        return;
      }
      of_rows +=
          VisibleKeys(work.cached_tokens + range.begin, work.cached_tokens + range.end, most);
      // The last key is seen by one row, the one before it by two.
      of_keys.back() +=
          VisibleKeys(num_new - range.end, num_new - range.begin, std::min(most, num_new));
    };
    ForEachShardRange(options.layout, num_new, {rank, options.num_ranks}, options.key_block, add);
    row_loads.push_back(of_rows);
  }
  row_imbalance = Imbalance(row_loads);
  key_imbalance = Imbalance(of_keys);
  if (heads.window > 0) foreign_keys = MeanHalo(work, heads.window, options);
}

void CostTerms::BalanceSpans(const AttentionWork& work) {
  const SpanGeometry geometry = GeometryOf(heads, options);
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
    if (!heads.is_causal) {
      const int64_t size = std::min(end, range.end) - range.begin;
      of_rows[owner] += Product(size, end);
      of_keys[owner] += Product(size, end);
      seen += tokens;
      ++num_seen_spans;
      continue;
    }
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
  foreign_states = share() * spans_of_row;
  if (!counts_reach()) return;
  const KeyReach reach = ReachOfKeys(rows, geometry, {heads.window}, {options.num_ranks, 1});
  foreign_keys = static_cast<double>(reach.seen_positions - reach.own_positions) / n;
  foreign_states = tokens > 0 ? static_cast<double>(reach.foreign_states) / tokens : 0;
  foreign_queries = static_cast<double>(reach.foreign_queries) / n;
}

}  // namespace moebius
