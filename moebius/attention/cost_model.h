// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "moebius/attention/attention_layout.h"
#include "moebius/attention/attention_method.h"
#include "moebius/attention/attention_sum.h"

// What the ways to share one layer's attention among ranks cost, from counts alone. Pure.
//
// Symbols: T new tokens (queries), S = T + cached tokens (keys), N ranks, R · U = N, Hq/Hkv query
// and KV heads, d/dv head sizes of keys and values, e bytes of an element, C FLOP/s and BW bytes/s
// of a rank, α seconds of a message.
//
// Sources: Yang et al., "Context parallelism for scalable million-token inference", 2024 (pass-KV,
// pass-Q); Jacobs et al., "DeepSpeed Ulysses", 2023; Fang, Zhao, "USP: a unified sequence
// parallelism approach", 2024 (2-D).

namespace moebius {

/// Heads of a model's attention layer.
struct AttentionHeads {
  int64_t query_heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 128;
  int64_t value_dim = 128;
  /// MLA: elements of a token's latent and rotary key, which all heads share. 0: keys and values.
  int64_t latent_dim = 0;
  /// MLA: FLOP that make one head's key and value of one token from the latent.
  int64_t expand_flops = 0;
  int64_t element_bytes = 2;
  int64_t window = 0;     // a query sees so many keys, its own included; 0: all
  bool is_causal = true;  // false: a prompt's queries see all of it; no window, no cached tokens
};

struct AttentionWork {
  int64_t new_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t keys() const { return new_tokens + cached_tokens; }
};

/// What a rank and its links can do.
struct RankRates {
  double flops = 0;      // of the attention kernel, 1/s
  double bandwidth = 0;  // bytes/s in each direction
  double latency = 0;    // s per message
};

struct CostOptions {
  int32_t num_ranks = 1;
  AttentionSum sum = AttentionSum::kCanonical;
  AttentionLayout layout = AttentionLayout::kZigzag;  // per-degree: of the new tokens
  int64_t span = 1024;                                // canonical: keys of a span
  int64_t key_block = 128;                            // striped: keys of a block
  int64_t return_bytes = 4;   // per-degree pass-Q: bytes of an element of a returned partial
  int32_t ulysses_ranks = 0;  // of 2-D; 0: the fastest divisor of N
};

/// The predicted cost of one layer with one method. Times are of the slowest rank, bytes what a
/// rank sends on average, memory what a rank holds at most: its KV and what is foreign, live.
struct MethodCost {
  double seconds = 0;
  double compute_seconds = 0;
  double bytes = 0;
  double exposed_seconds = 0;  // of the transfers, not hidden behind compute
  double memory_bytes = 0;
  int32_t ranks = 1;
  int32_t ulysses_ranks = 1;
  int32_t ring_ranks = 1;
};

/// INVALID_ARGUMENT with the broken rule when no cost can be predicted.
absl::Status ValidateCostInputs(const AttentionHeads& heads, const AttentionWork& work,
                                const RankRates& rates, const CostOptions& options);

/// Query-key pairs that are computed: causal, keys of the cache before all queries; not causal,
/// every query and every key.
double AttentionPairs(const AttentionHeads& heads, const AttentionWork& work);
/// FLOP of all of them, 2 · Hq · (d + dv) each; for d = dv and no window
/// 4 · Hq · d · (T · P + T(T + 1)/2), or not causal 4 · Hq · d · T².
double AttentionFlops(const AttentionHeads& heads, const AttentionWork& work);

/// Inputs that passed ValidateCostInputs.
///
/// Bytes of a rank, with w = bytes of a token's keys and values, KV(u) the KV heads that rank u of
/// U needs (head_map.h) and q = Hq · (d + dv) · e:
///   all-gather, pass-KV  (N−1)/N · S · w
///   pass-Q               (N−1)/N · T · Hq · d · e, and back
///                        per-degree (N−1)/N · T · Hq · (dv · e_o + 4)
///                        canonical  T/N · (foreign spans of a row) · Hq · (4 · dv + 8)
///   Ulysses              (N−1)/N² · (T · q + S · w · Σ_u |KV(u)| / Hkv)
///   2-D                  (U−1)/U · (T/N) · (q + w · Σ_u |KV(u)| / Hkv)
///                        + (R−1)/R · S · w · Σ_u |KV(u)| / (Hkv · U)
/// With a window or not causal, canonical, where a span travels only to ranks with rows that see a
/// key of it (key_reach.h), of groups of one rank, or of U:
///   all-gather, pass-KV  (seen − own positions) / N · w
///   pass-Q               foreign queries / N · Hq · d · e, and back
///                        foreign states / N · Hq · (4 · dv + 8)
///   Ulysses, 2-D         keys: (seen positions − own positions / U) / N · w · Σ_u |KV(u)| / Hkv
/// per-degree with a window a rank is sent the keys before its ranges that their windows reach.
/// per-degree the new tokens are cut as a prompt of their own (shard_ranges.h), and cached keys are
/// shared evenly; a rank whose rows see its own keys alone is sent none, which is not counted. The
/// slowest rank's causal work without a cache is that of a mean one times 2 −
/// 1/N under contiguous, about 1 under zigzag and, from some blocks for each rank on, striped; not
/// causal it is about 1 under all. A
/// latent counts as one KV head that every rank needs. Without keys in the cache 2-D's formula is
/// exact; cached keys of the own group are counted as if they came across the groups.
MethodCost PredictCost(AttentionMethod method, const AttentionHeads& heads,
                       const AttentionWork& work, const RankRates& rates,
                       const CostOptions& options);

/// The fewest new tokens for which pass-KV's transfers hide behind compute when the cache holds
/// most keys: N · C · w / (2 · Hq · (d + dv) · BW).
double HiddenFromTokens(const AttentionHeads& heads, const RankRates& rates, int32_t num_ranks);

/// What to do, why, and what every way would cost.
struct AttentionChoice {
  AttentionMethod method = AttentionMethod::kLocal;
  std::string reason;  // in words
  std::array<MethodCost, kNumAttentionMethods> costs;

  const MethodCost& cost(AttentionMethod of) const { return costs[static_cast<size_t>(of)]; }
};

/// The fastest method; of equal ones the first in the order of AttentionMethod, so the simpler one.
AttentionChoice ChooseAttention(const AttentionHeads& heads, const AttentionWork& work,
                                const RankRates& rates, const CostOptions& options);

}  // namespace moebius
