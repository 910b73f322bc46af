// SPDX-License-Identifier: Apache-2.0
#include "attention_service/rank_group_probe.h"

#include <algorithm>
#include <thread>

#include "attention_service/kernel_rate.h"
#include "attention_service/kv_cache.h"
#include "attention_service/kv_layout.h"
#include "moebius/base/clock.h"
#include "moebius/base/random.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr SessionId kPrompt{1};

}  // namespace

absl::StatusOr<std::unique_ptr<RankGroupProbe>> RankGroupProbe::Make(const AttentionFacts& facts,
                                                                     const Kernels& kernels,
                                                                     Executor& executor,
                                                                     int32_t num_ranks,
                                                                     int64_t max_tokens) {
  const AttentionFacts one_layer = ProbeFactsOf(facts, facts.sum);
  const int64_t block_bytes = KvCache::BlockBytes(KvLayout(one_layer, kernels.pair_order), 1);
  // A rank's share is whole spans, and under the per-degree sum two blocks more.
  const int64_t shared = max_tokens / (num_ranks * one_layer.span) + 1;
  const int64_t num_blocks = shared * (one_layer.span / one_layer.key_block) + 3;
  auto probe = std::unique_ptr<RankGroupProbe>(new RankGroupProbe(
      GeometryOf(one_layer, num_ranks), num_ranks, one_layer.config.num_query_heads));
  Random random(2);
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    Sharding sharding{.shard = {rank, num_ranks}};
    if (num_ranks > 1) sharding.exchange = &probe->exchange_.rank(rank);
    Rank& of = probe->ranks_.emplace_back();
    MOEBIUS_ASSIGN_OR_RETURN(
        of.pipeline, AttentionPipeline::Make(
                         one_layer, [&](int64_t) { return MakeProbeLayer(one_layer); }, kernels,
                         executor, num_blocks * block_bytes, sharding));
    of.in.Reset(max_tokens, one_layer.hidden_size);
    of.out.Reset(max_tokens, one_layer.hidden_size);
    for (int64_t row = 0; row < max_tokens; ++row) {
      for (Bf16& element : of.in.rows().span(row)) element = ToBf16(random.Normal() * 0.1f);
    }
  }
  return probe;
}

absl::Status RankGroupProbe::RunStep(const StepPlan& plan) {
  const auto num_ranks = static_cast<int32_t>(ranks_.size());
  const auto run = [&](int32_t rank) {
    Rank& of = ranks_[static_cast<size_t>(rank)];
    FillOwnedRows(plan, geometry_, {rank, num_ranks}, of.owned);
    of.status = of.pipeline->BeginStep(plan);
    if (!of.status.ok()) return;  // who asks it hears that
    of.status = of.pipeline->RunLayer(0, Bf16Rows(of.in.rows()).Slice(0, of.owned.num_rows),
                                      of.out.rows().Slice(0, of.owned.num_rows));
  };
  std::vector<std::thread> threads;
  for (int32_t rank = 1; rank < num_ranks; ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
  for (Rank& rank : ranks_) MOEBIUS_RETURN_IF_ERROR(rank.status);
  for (Rank& rank : ranks_) MOEBIUS_RETURN_IF_ERROR(rank.pipeline->CommitStep());
  return absl::OkStatus();
}

absl::StatusOr<double> RankGroupProbe::TimePrefill(int64_t num_tokens, int64_t step_rows) {
  const absl::Duration start = Clock::Monotonic().Now();
  for (int64_t begin = 0; begin < num_tokens; begin += step_rows) {
    const int64_t num_rows = std::min(step_rows, num_tokens - begin);
    MOEBIUS_RETURN_IF_ERROR(RunStep({.step = ++step_,
                                     .sessions = {{.session = kPrompt,
                                                   .num_rows = num_rows,
                                                   .position_begin = begin,
                                                   .prompt_length = num_tokens}},
                                     .num_rows = num_rows}));
  }
  const double seconds = absl::ToDoubleSeconds(Clock::Monotonic().Now() - start);
  for (Rank& rank : ranks_) rank.pipeline->EndSession(kPrompt);
  return seconds;
}

}  // namespace moebius
