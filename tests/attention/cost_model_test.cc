// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/cost_model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/attention/head_map.h"
#include "moebius/attention/shard_ranges.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

// Llama 3 405B, one of eight tensor-parallel slices.
constexpr AttentionHeads kLlamaSlice{.query_heads = 16, .kv_heads = 1};
constexpr int kLlamaLayers = 126;
constexpr RankRates kH100{.flops = 510e12, .bandwidth = 26e9};
constexpr CostOptions kFourRanks{
    .num_ranks = 4, .sum = AttentionSum::kPerDegree, .return_bytes = 2};

AttentionWork Of128K(int64_t new_tokens) { return {new_tokens, 128000 - new_tokens}; }

// Yang et al. 2024, table 5: TTFT in ms of pass-KV and pass-Q at P + T = 128,000, N = 4.
struct Published {
  int64_t new_tokens;
  double pass_kv, pass_q;
};
constexpr Published kPublished[] = {
    {1280, 1023, 899}, {4160, 1299, 1280}, {12800, 2081, 2205}, {128000, 11462, 12361}};

TEST(CostModelTest, ChoosesBetweenPassKvAndPassQAsMeasurementsDo) {
  for (const Published& row : kPublished) {
    const auto cost = [&](AttentionMethod method) {
      return PredictCost(method, kLlamaSlice, Of128K(row.new_tokens), kH100, kFourRanks).seconds;
    };
    const bool takes_q = cost(AttentionMethod::kRingPassQ) < cost(AttentionMethod::kRingPassKv);
    const double chosen = takes_q ? row.pass_q : row.pass_kv;
    EXPECT_LE(chosen / std::min(row.pass_kv, row.pass_q), 1.02) << row.new_tokens;
  }
  for (const int64_t tokens : {1, 16, 128, 640, 1280, 2560, 3200}) {
    EXPECT_EQ(ChooseAttention(kLlamaSlice, Of128K(tokens), kH100, kFourRanks).method,
              AttentionMethod::kRingPassQ)
        << tokens;
  }
  for (const int64_t tokens : {12800, 25600, 64000, 128000}) {
    EXPECT_EQ(ChooseAttention(kLlamaSlice, Of128K(tokens), kH100, kFourRanks).method,
              AttentionMethod::kRingPassKv)
        << tokens;
  }
}

// What the two methods differ by, over all layers, is near what the measurements differ by: all
// else in a first token's time is the same for both.
TEST(CostModelTest, PredictsTheDifferenceOfThePublishedTimes) {
  for (const Published& row : {kPublished[0], kPublished[2]}) {
    const auto layers = [&](AttentionMethod method) {
      return 1e3 * kLlamaLayers *
             PredictCost(method, kLlamaSlice, Of128K(row.new_tokens), kH100, kFourRanks).seconds;
    };
    const double predicted =
        layers(AttentionMethod::kRingPassKv) - layers(AttentionMethod::kRingPassQ);
    const double measured = row.pass_kv - row.pass_q;
    EXPECT_GT(predicted / measured, 0.5) << predicted;
    EXPECT_LT(predicted / measured, 2.0) << predicted;
  }
}

// Llama 3 405B in training: from one rank at 8K to 16 at 131K only the exposed gathers of keys (one
// forward, one backward, and their gradients' scatter) take from the 41 % of peak.
TEST(CostModelTest, ExplainsTheUtilisationOfLongContextTraining) {
  constexpr double kPeak = 989e12;
  constexpr double kShortUtilisation = 0.41;
  constexpr AttentionWork kLong{.new_tokens = 131072};
  constexpr RankRates kRates{.flops = 480e12, .bandwidth = 35e9};
  constexpr CostOptions kOptions{.num_ranks = 16, .sum = AttentionSum::kPerDegree};
  const MethodCost gather =
      PredictCost(AttentionMethod::kAllGather, kLlamaSlice, kLong, kRates, kOptions);
  // 6 FLOP per parameter and token, and attention forward and twice as much backward.
  const double tokens = 131072.0 / 16;
  const double flops =
      6 * 405e9 / kLlamaLayers / 8 * tokens + 3 * AttentionFlops(kLlamaSlice, kLong) / 16;
  const double seconds = flops / (kShortUtilisation * kPeak) + 3 * gather.exposed_seconds;
  const double utilisation = flops / seconds / kPeak;
  EXPECT_GT(utilisation, 0.37);
  EXPECT_LT(utilisation, 0.395);
}

TEST(CostModelTest, CountsTheBytesOfTheFormulas) {
  constexpr AttentionHeads kHeads{
      .query_heads = 32, .kv_heads = 8, .head_dim = 128, .value_dim = 128};
  constexpr AttentionWork kWork{.new_tokens = 4096, .cached_tokens = 12288};
  const auto bytes = [&](AttentionMethod method) {
    return PredictCost(method, kHeads, kWork, kH100, kFourRanks).bytes;
  };
  const double t = 4096, s = 16384, d = 128, e = 2, n = 4, hq = 32, hkv = 8;
  const double kv = (n - 1) / n * 2 * s * hkv * d * e;
  EXPECT_DOUBLE_EQ(bytes(AttentionMethod::kLocal), 0);
  EXPECT_DOUBLE_EQ(bytes(AttentionMethod::kAllGather), kv);
  EXPECT_DOUBLE_EQ(bytes(AttentionMethod::kRingPassKv), kv);
  EXPECT_DOUBLE_EQ(bytes(AttentionMethod::kRingPassQ),
                   (n - 1) / n * t * hq * d * e + (n - 1) / n * t * hq * (d * 2 + 4));
  EXPECT_DOUBLE_EQ(bytes(AttentionMethod::kUlysses),
                   (n - 1) / (n * n) * d * e * (2 * t * hq + 2 * s * hkv));
  CostOptions two = kFourRanks;
  two.ulysses_ranks = 2;
  EXPECT_DOUBLE_EQ(PredictCost(AttentionMethod::k2d, kHeads, kWork, kH100, two).bytes,
                   0.5 * (t / n) * d * e * (2 * hq + 2 * hkv) + 0.5 * 2 * s * (hkv / 2) * d * e);
}

TEST(CostModelTest, UlyssesSendsKeysToEveryRankThatNeedsThem) {
  constexpr AttentionHeads kFewKeys{.query_heads = 16, .kv_heads = 2};
  constexpr AttentionWork kWork{.new_tokens = 1024, .cached_tokens = 7168};
  const CostOptions options{.num_ranks = 8, .sum = AttentionSum::kPerDegree};
  EXPECT_DOUBLE_EQ(PredictCost(AttentionMethod::kUlysses, kFewKeys, kWork, kH100, options).bytes,
                   7.0 / 64 * 128 * 2 * (2 * 1024 * 16 + 2 * 8192 * 8));
  // Uneven heads: the exact sum. Six heads on four ranks have 1, 2, 1 and 2 of them.
  constexpr AttentionHeads kUneven{.query_heads = 6, .kv_heads = 6};
  EXPECT_EQ(SumOfKvHeads(4, 6, 6), 6);
  const MethodCost cost = PredictCost(AttentionMethod::kUlysses, kUneven, kWork, kH100, kFourRanks);
  EXPECT_DOUBLE_EQ(cost.bytes, 3.0 / 16 * 128 * 2 * (2 * 1024 * 6 + 2 * 8192 * 6));
  // And the rank with two of six heads is slower than a quarter of the work.
  EXPECT_DOUBLE_EQ(cost.compute_seconds, AttentionFlops(kUneven, kWork) / 3 / kH100.flops);
}

TEST(CostModelTest, PassKvIsHiddenFromTheTokensOfTheFormula) {
  const double from = HiddenFromTokens(kLlamaSlice, kH100, 4);
  EXPECT_DOUBLE_EQ(from, 4 * 510e12 * 1 * 2 / (2 * 16 * 26e9));
  const auto exposed = [&](double tokens) {
    // So many cached keys that the new ones do not count.
    const AttentionWork work{static_cast<int64_t>(tokens), int64_t{1} << 31};
    return PredictCost(AttentionMethod::kRingPassKv, kLlamaSlice, work, kH100, kFourRanks)
        .exposed_seconds;
  };
  EXPECT_GT(exposed(from * 0.99), 0);
  EXPECT_EQ(exposed(from * 1.01), 0);
}

TEST(CostModelTest, ALatentIsSentWholeAndOnce) {
  constexpr AttentionHeads kMla{
      .query_heads = 128, .kv_heads = 128, .head_dim = 192, .value_dim = 128, .latent_dim = 576};
  constexpr AttentionWork kWork{.new_tokens = 8192, .cached_tokens = 0};
  const double latents = 0.75 * 8192 * 576 * 2;
  EXPECT_DOUBLE_EQ(PredictCost(AttentionMethod::kRingPassKv, kMla, kWork, kH100, kFourRanks).bytes,
                   latents);
  // Ulysses becomes an all-gather of latents beside the queries and outputs.
  EXPECT_DOUBLE_EQ(PredictCost(AttentionMethod::kUlysses, kMla, kWork, kH100, kFourRanks).bytes,
                   latents + 3.0 / 16 * 8192 * 128 * (192 + 128) * 2);
}

TEST(CostModelTest, ShortPromptsStayOnOneRank) {
  const CostOptions options{.num_ranks = 4, .span = 128};
  constexpr RankRates kCpu{.flops = 1e12, .bandwidth = 5e9, .latency = 100e-6};
  const AttentionChoice choice = ChooseAttention(kLlamaSlice, {.new_tokens = 64}, kCpu, options);
  EXPECT_EQ(choice.method, AttentionMethod::kLocal);
  EXPECT_EQ(choice.cost(choice.method).ranks, 1);
  EXPECT_THAT(choice.reason, HasSubstr("too little work to share"));
  const AttentionChoice longer =
      ChooseAttention(kLlamaSlice, {.new_tokens = 100000}, kCpu, options);
  EXPECT_NE(longer.method, AttentionMethod::kLocal);
  EXPECT_EQ(longer.cost(longer.method).ranks, 4);
  EXPECT_THAT(longer.reason, HasSubstr("on 4 ranks"));
}

TEST(CostModelTest, OneRankNeedsNoMessages) {
  for (const AttentionMethod method : kAttentionMethods) {
    const MethodCost cost =
        PredictCost(method, kLlamaSlice, {.new_tokens = 100}, kH100, {.num_ranks = 1});
    EXPECT_EQ(cost.bytes, 0);
    EXPECT_EQ(cost.exposed_seconds, 0);
    EXPECT_EQ(cost.ranks, 1);
  }
}

TEST(CostModelTest, CanonicalPassQReturnsAStateOfEverySpan) {
  constexpr AttentionWork kDecode{.new_tokens = 1, .cached_tokens = 65535};
  CostOptions options = kFourRanks;
  options.sum = AttentionSum::kCanonical;
  options.span = 1024;
  const MethodCost cost =
      PredictCost(AttentionMethod::kRingPassQ, kLlamaSlice, kDecode, kH100, options);
  EXPECT_DOUBLE_EQ(cost.bytes, 0.75 * 16 * 128 * 2 + 1.0 / 4 * 0.75 * 64 * 16 * (4 * 128 + 8));
}

TEST(CostModelTest, ZigzagShardsHaveEqualWork) {
  const auto imbalance = [](int64_t tokens, int32_t num_ranks) {
    const CostOptions options{.num_ranks = num_ranks, .sum = AttentionSum::kPerDegree};
    const AttentionWork work{.new_tokens = tokens};
    const double seconds =
        PredictCost(AttentionMethod::kRingPassKv, kLlamaSlice, work, kH100, options)
            .compute_seconds;
    return seconds * kH100.flops * num_ranks / AttentionFlops(kLlamaSlice, work);
  };
  EXPECT_NEAR(imbalance(1 << 20, 8), 1.0, 1e-4);
  EXPECT_LE(imbalance(1001, 8), 1.014);
  EXPECT_NEAR(imbalance(1, 4), 4, 1e-9);  // one token is of one rank
}

TEST(ShardRangesTest, EveryTokenIsOfOneRank) {
  for (const AttentionLayout layout : kAttentionLayouts) {
    for (const int32_t num_ranks : {1, 2, 3, 4, 5, 8}) {
      for (const int64_t tokens : {0, 1, 2, 3, 7, 2 * num_ranks - 1, 100, 1001}) {
        std::vector<int> owners(static_cast<size_t>(tokens), 0);
        for (int32_t rank = 0; rank < num_ranks; ++rank) {
          ForEachShardRange(layout, tokens, {rank, num_ranks}, 32, [&](PositionRange range) {
            for (int64_t p = range.begin; p < range.end; ++p) ++owners[static_cast<size_t>(p)];
          });
        }
        EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), tokens) << num_ranks;
      }
    }
  }
}

// Seconds of compute to those of an even share.
double ImbalanceOf(AttentionMethod method, AttentionLayout layout, const AttentionWork& work,
                   int32_t num_ranks) {
  const CostOptions options{.num_ranks = num_ranks,
                            .sum = AttentionSum::kPerDegree,
                            .layout = layout,
                            .ulysses_ranks = method == AttentionMethod::k2d ? 2 : 0};
  return PredictCost(method, kLlamaSlice, work, kH100, options).compute_seconds * kH100.flops *
         num_ranks / AttentionFlops(kLlamaSlice, work);
}

TEST(CostModelTest, CountsTheBalanceOfEachLayout) {
  const AttentionWork whole{.new_tokens = 1 << 17};
  for (const int32_t num_ranks : {2, 4, 8, 16}) {
    for (const AttentionMethod method :
         {AttentionMethod::kRingPassKv, AttentionMethod::kRingPassQ, AttentionMethod::kAllGather}) {
      EXPECT_NEAR(ImbalanceOf(method, AttentionLayout::kContiguous, whole, num_ranks),
                  2 - 1.0 / num_ranks, 1e-4);
      EXPECT_NEAR(ImbalanceOf(method, AttentionLayout::kZigzag, whole, num_ranks), 1, 1e-4);
      EXPECT_NEAR(ImbalanceOf(method, AttentionLayout::kStriped, whole, num_ranks), 1, 1e-4);
    }
    // Heads of all rows; groups of two.
    EXPECT_NEAR(ImbalanceOf(AttentionMethod::k2d, AttentionLayout::kContiguous, whole, num_ranks),
                num_ranks == 2 ? 1 : 2 - 2.0 / num_ranks, 1e-4);
  }
  // A prefix dominates: within 6 % from seven times the new tokens on.
  EXPECT_LE(ImbalanceOf(AttentionMethod::kRingPassKv, AttentionLayout::kContiguous,
                        {.new_tokens = 16384, .cached_tokens = 7 * 16384}, 4),
            1.06);
  // Fewer blocks than two for each rank cannot be dealt out evenly.
  EXPECT_NEAR(ImbalanceOf(AttentionMethod::kRingPassKv, AttentionLayout::kStriped,
                          {.new_tokens = 8 * 128}, 8),
              2 - 1.0 / 8, 1e-3);
}

// What a rank sends does not depend on the layout where no window cuts it.
TEST(CostModelTest, BytesAreThoseOfEveryLayout) {
  const AttentionWork work{.new_tokens = 12800, .cached_tokens = 115200};
  for (const AttentionMethod method : kAttentionMethods) {
    const auto bytes = [&](AttentionLayout layout) {
      return PredictCost(method, kLlamaSlice, work, kH100,
                         {.num_ranks = 4, .sum = AttentionSum::kPerDegree, .layout = layout})
          .bytes;
    };
    EXPECT_EQ(bytes(AttentionLayout::kContiguous), bytes(AttentionLayout::kZigzag));
    EXPECT_EQ(bytes(AttentionLayout::kStriped), bytes(AttentionLayout::kZigzag));
  }
}

// A ring that waits for its slowest rank loses to heads, of which every rank has as many.
TEST(CostModelTest, TheLayoutCanDecideTheChoice) {
  AttentionHeads heads = kLlamaSlice;
  heads.query_heads = heads.kv_heads = 16;
  const AttentionWork work{.new_tokens = 1 << 17};
  CostOptions options{.num_ranks = 4, .sum = AttentionSum::kPerDegree};
  EXPECT_EQ(ChooseAttention(heads, work, kH100, options).method, AttentionMethod::kRingPassKv);
  options.layout = AttentionLayout::kContiguous;
  EXPECT_EQ(ChooseAttention(heads, work, kH100, options).method, AttentionMethod::kUlysses);
}

TEST(CostModelTest, RefusesALayoutOfTheCanonicalSum) {
  const absl::Status status = ValidateCostInputs(
      kLlamaSlice, {.new_tokens = 1}, kH100, {.num_ranks = 4, .layout = AttentionLayout::kStriped});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("striped"), absl::string_view::npos) << status;
}

TEST(CostModelTest, AWindowBoundsKeysAndWork) {
  AttentionHeads heads = kLlamaSlice;
  heads.window = 4;
  EXPECT_DOUBLE_EQ(AttentionPairs(heads, {.new_tokens = 6}), 1 + 2 + 3 + 4 + 4 + 4);
  EXPECT_DOUBLE_EQ(AttentionPairs(heads, {.new_tokens = 3, .cached_tokens = 100}), 12);
  const MethodCost cost = PredictCost(AttentionMethod::kRingPassKv, heads,
                                      {.new_tokens = 3, .cached_tokens = 100}, kH100, kFourRanks);
  // Zigzag: rank 0 has row 102 and is sent keys 99 (3/4 of the time), 100 and 101; rank 2 has rows
  // 100 and 101 and is sent 97 … 99 (3/4 of each); the others have no row.
  EXPECT_DOUBLE_EQ(cost.bytes, (0.75 + 2 + 0.75 * 3) / 4 * 2 * 128 * 2);
}

// Twice the pairs of a long causal prompt, the same for every rank under every layout.
TEST(CostModelTest, NotCausalCountsEveryPairOfAPrompt) {
  AttentionHeads heads{.query_heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 16};
  heads.is_causal = false;
  EXPECT_DOUBLE_EQ(AttentionPairs(heads, {.new_tokens = 6}), 36);
  EXPECT_DOUBLE_EQ(AttentionFlops(heads, {.new_tokens = 6}), 2.0 * 4 * 32 * 36);
  const RankRates rates{.flops = 1e9, .bandwidth = 1e9};
  const AttentionWork work{.new_tokens = 4096};
  for (const AttentionLayout layout : kAttentionLayouts) {
    const CostOptions options{
        .num_ranks = 4, .sum = AttentionSum::kPerDegree, .layout = layout, .span = 1024};
    for (const AttentionMethod method : {AttentionMethod::kRingPassKv, AttentionMethod::kRingPassQ,
                                         AttentionMethod::kAllGather, AttentionMethod::kUlysses}) {
      EXPECT_NEAR(PredictCost(method, heads, work, rates, options).compute_seconds,
                  AttentionFlops(heads, work) / 4 / 1e9, 1e-9)
          << AttentionMethodName(method) << ", " << AttentionLayoutName(layout);
    }
  }
}

// Five spans of 32, the last one of four keys, over three ranks: 0, 1, 2, 2, 1.
TEST(CostModelTest, NotCausalSendsEverySpanToEveryRank) {
  AttentionHeads heads{.query_heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 16};
  heads.is_causal = false;
  const RankRates rates{.flops = 1e9, .bandwidth = 1e9};
  const CostOptions options{.num_ranks = 3, .span = 32};
  const AttentionWork work{.new_tokens = 132};
  const auto cost = [&](AttentionMethod method) {
    return PredictCost(method, heads, work, rates, options);
  };
  constexpr double kOwn[] = {32, 36, 64};  // rows and keys of each rank
  constexpr double kSpans[] = {1, 2, 2};
  double keys = 0, states = 0;
  for (int rank = 0; rank < 3; ++rank) {
    keys += 132 - kOwn[rank];
    states += kOwn[rank] * (5 - kSpans[rank]);
  }
  EXPECT_DOUBLE_EQ(cost(AttentionMethod::kRingPassKv).bytes, keys / 3 * 2 * 32 * 2);
  EXPECT_DOUBLE_EQ(cost(AttentionMethod::kAllGather).bytes, keys / 3 * 2 * 32 * 2);
  EXPECT_DOUBLE_EQ(cost(AttentionMethod::kRingPassQ).bytes,
                   2.0 * 132 / 3 * 4 * 16 * 2 + states / 3 * 4 * (4 * 16 + 8));
  EXPECT_DOUBLE_EQ(cost(AttentionMethod::kRingPassKv).compute_seconds,
                   2.0 * 4 * 32 * 64 * 132 / 1e9);  // of the rank with two whole spans
  // A prompt of one span is of one rank, and nothing is sent.
  EXPECT_EQ(
      PredictCost(AttentionMethod::kRingPassKv, heads, {.new_tokens = 20}, rates, options).bytes,
      0);
}

TEST(CostModelTest, NotCausalHasNoWindowsAndNoCachedTokens) {
  AttentionHeads heads{.query_heads = 4, .kv_heads = 2};
  heads.is_causal = false;
  const RankRates rates{.flops = 1e9, .bandwidth = 1e9};
  EXPECT_TRUE(ValidateCostInputs(heads, {.new_tokens = 5}, rates, {}).ok());
  EXPECT_EQ(ValidateCostInputs(heads, {.new_tokens = 5, .cached_tokens = 1}, rates, {}).code(),
            absl::StatusCode::kInvalidArgument);
  heads.window = 3;
  EXPECT_EQ(ValidateCostInputs(heads, {.new_tokens = 5}, rates, {}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CostModelTest, AWindowSendsASpanOnlyToRowsThatSeeIt) {
  AttentionHeads heads = kLlamaSlice;
  // Two ranks own spans 0 3 and 1 2 of 32 keys; rows 32 and 96 are the first of a rank that see
  // the last keys of the other's span.
  const CostOptions options{.num_ranks = 2, .span = 32};
  const auto bytes = [&](AttentionMethod method, int64_t window) {
    heads.window = window;
    return PredictCost(method, heads, {.new_tokens = 128}, kH100, options).bytes;
  };
  constexpr double kKeyBytes = 2 * 128 * 2;
  EXPECT_DOUBLE_EQ(bytes(AttentionMethod::kRingPassKv, 1), 0);
  EXPECT_DOUBLE_EQ(bytes(AttentionMethod::kRingPassKv, 2), (32 + 32) / 2 * kKeyBytes);
  EXPECT_DOUBLE_EQ(bytes(AttentionMethod::kAllGather, 2), (32 + 32) / 2 * kKeyBytes);
  // Those two rows alone are sent, one of each rank, and a state of each comes back.
  EXPECT_DOUBLE_EQ(bytes(AttentionMethod::kRingPassQ, 2), 16 * 128 * 2 + 16 * (4 * 128 + 8));
  // By heads every rank computes all rows, and so needs all keys.
  EXPECT_DOUBLE_EQ(bytes(AttentionMethod::kUlysses, 2), bytes(AttentionMethod::kUlysses, 0));
}

TEST(CostModelTest, EveryCostIsFiniteForAnyShape) {
  for (const int32_t num_ranks : {1, 2, 3, 4, 5, 8, 16}) {
    for (const AttentionSum sum : {AttentionSum::kCanonical, AttentionSum::kPerDegree}) {
      for (const int64_t tokens : {0, 1, 2, 3, 7, 31, 128, 1001}) {
        for (const AttentionHeads& heads :
             {kLlamaSlice, AttentionHeads{.query_heads = 28, .kv_heads = 7},
              AttentionHeads{.query_heads = 6, .kv_heads = 6},
              AttentionHeads{.query_heads = 6, .kv_heads = 6, .window = 65}}) {
          const CostOptions options{.num_ranks = num_ranks, .sum = sum, .span = 64};
          const AttentionChoice choice =
              ChooseAttention(heads, {tokens, tokens * 3}, kH100, options);
          for (const MethodCost& cost : choice.costs) {
            EXPECT_TRUE(std::isfinite(cost.seconds) && cost.seconds >= 0);
            EXPECT_GE(cost.exposed_seconds, 0);
            EXPECT_GE(cost.bytes, 0);
            EXPECT_GE(cost.seconds, choice.cost(choice.method).seconds * (1 - 1e-6));
          }
        }
      }
    }
  }
}

TEST(CostModelTest, RefusesWhatHasNoCost) {
  const auto check = [](const AttentionHeads& heads, const AttentionWork& work,
                        const RankRates& rates, const CostOptions& options) {
    return std::string(ValidateCostInputs(heads, work, rates, options).message());
  };
  EXPECT_EQ(check(kLlamaSlice, Of128K(1), kH100, kFourRanks), "");
  EXPECT_THAT(check({.query_heads = 6, .kv_heads = 4}, {}, kH100, kFourRanks),
              HasSubstr("6 query heads over 4 KV heads"));
  EXPECT_THAT(check(kLlamaSlice, {.new_tokens = -1}, kH100, kFourRanks), HasSubstr("-1 new"));
  EXPECT_THAT(check({.window = -1}, {}, kH100, kFourRanks), HasSubstr("a window of -1 keys"));
  EXPECT_THAT(check(kLlamaSlice, {}, {.flops = 0, .bandwidth = 1}, kFourRanks),
              HasSubstr("positive"));
  EXPECT_THAT(check(kLlamaSlice, {}, kH100, {.num_ranks = 0}), HasSubstr("0 ranks"));
  EXPECT_THAT(check(kLlamaSlice, {}, kH100, {.num_ranks = 4, .ulysses_ranks = 3}),
              HasSubstr("do not divide"));
}

TEST(CostModelTest, MethodsHaveNames) {
  for (const AttentionMethod method : kAttentionMethods) {
    AttentionMethod parsed = AttentionMethod::kLocal;
    EXPECT_TRUE(ParseAttentionMethod(AttentionMethodName(method), &parsed));
    EXPECT_EQ(parsed, method);
  }
  AttentionMethod parsed = AttentionMethod::k2d;
  EXPECT_FALSE(ParseAttentionMethod("star", &parsed));
  EXPECT_EQ(parsed, AttentionMethod::k2d);
}

TEST(HeadMapTest, EveryQueryHeadIsOfOneRankAndFindsItsKeys) {
  for (const auto& [query_heads, kv_heads] : std::vector<std::pair<int64_t, int64_t>>{
           {28, 7}, {6, 6}, {16, 2}, {16, 16}, {8, 1}, {1, 1}}) {
    for (const int32_t parts : {1, 2, 3, 4, 5, 8, 16}) {
      int32_t next = 0;
      int64_t sum = 0;
      for (int32_t u = 0; u < parts; ++u) {
        const HeadRange queries = QueryHeadsOf(u, parts, query_heads);
        EXPECT_EQ(queries.begin, next);
        next = queries.end;
        const HeadRange keys = KvHeadsOf(queries, query_heads, kv_heads);
        EXPECT_EQ(keys.empty(), queries.empty());
        const int64_t group = query_heads / kv_heads;
        for (int64_t head = queries.begin; head < queries.end; ++head) {
          EXPECT_GE(head / group, keys.begin);
          EXPECT_LT(head / group, keys.end);
        }
        sum += keys.size();
      }
      EXPECT_EQ(next, query_heads);
      EXPECT_EQ(SumOfKvHeads(parts, query_heads, kv_heads), sum);
    }
  }
  EXPECT_EQ(SumOfKvHeads(8, 16, 2), 8);
  EXPECT_EQ(SumOfKvHeads(2, 28, 7), 8);  // the middle KV head is needed by both
}

}  // namespace
}  // namespace moebius
