// SPDX-License-Identifier: Apache-2.0
// Attention of one layer: prefill in chunks and decode, in the demo's shape and in that of a
// grouped-query model. Rates count useful work only (causal, unpadded).
#include <algorithm>
#include <memory>
#include <string>

#include "benchmark/benchmark.h"

#include "attention_service/attention_pipeline.h"
#include "attention_service/attention_weights.h"
#include "moebius/base/check.h"
#include "moebius/base/random.h"
#include "moebius/kernels/kernels.h"

namespace moebius {
namespace {

enum class Shape { kDemo, kGrouped };

AttentionFacts FactsOf(Shape shape, AttentionSum sum) {
  AttentionFacts facts{.num_layers = 1, .sum = sum};
  AttentionConfig& config = facts.config;
  if (shape == Shape::kDemo) {
    facts.hidden_size = 192;
    facts.span = 128;
    config = {.num_query_heads = 8,
              .num_kv_heads = 8,
              .qk_head_dim = 48,
              .v_head_dim = 32,
              .softmax_scale = 0.2f,
              .rope = {.dim = 16, .pairing = RopePairing::kInterleaved},
              .mla = MlaConfig{
                  .q_lora_rank = 96, .kv_lora_rank = 64, .qk_nope_dim = 32, .qk_rope_dim = 16}};
  } else {
    facts.hidden_size = 256;  // small, so that attention itself is measured
    config = {.num_query_heads = 16,
              .num_kv_heads = 4,
              .qk_head_dim = 128,
              .v_head_dim = 128,
              .softmax_scale = 0.088f,
              .rope = {.dim = 128}};
  }
  return facts;
}

RowBatch<Bf16> MakeMatrix(Random& random, int64_t num_rows, int64_t width) {
  RowBatch<Bf16> rows(num_rows, width);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (Bf16& element : rows.rows().span(r)) element = ToBf16(random.Normal() * 0.08f);
  }
  return rows;
}

AttentionLayerWeights MakeLayer(const AttentionFacts& facts) {
  Random random(1);
  const AttentionConfig& config = facts.config;
  const int64_t q = int64_t{config.num_query_heads} * config.qk_head_dim;
  AttentionLayerWeights weights;
  if (config.mla.has_value()) {
    const MlaConfig& mla = *config.mla;
    weights.q_a = MakeMatrix(random, mla.q_lora_rank, facts.hidden_size);
    weights.q_a_norm = MakeMatrix(random, 1, mla.q_lora_rank);
    weights.q_b = MakeMatrix(random, q, mla.q_lora_rank);
    weights.kv_a = MakeMatrix(random, mla.kv_lora_rank + mla.qk_rope_dim, facts.hidden_size);
    weights.kv_a_norm = MakeMatrix(random, 1, mla.kv_lora_rank);
    weights.kv_b =
        MakeMatrix(random, config.num_query_heads * int64_t{mla.qk_nope_dim + config.v_head_dim},
                   mla.kv_lora_rank);
  } else {
    const int64_t k = int64_t{config.num_kv_heads} * config.qk_head_dim;
    weights.q = MakeMatrix(random, q, facts.hidden_size);
    weights.k = MakeMatrix(random, k, facts.hidden_size);
    weights.v = MakeMatrix(random, k, facts.hidden_size);
  }
  weights.o =
      MakeMatrix(random, facts.hidden_size, int64_t{config.num_query_heads} * config.v_head_dim);
  return weights;
}

// A pipeline with one layer, and rows to feed it.
struct Setup {
  explicit Setup(Shape shape, AttentionSum sum = AttentionSum::kCanonical)
      : facts(FactsOf(shape, sum)), executor(std::max(1, DefaultNumThreads())) {
    auto made = AttentionPipeline::Make(
        facts, [&](int64_t) { return MakeLayer(facts); }, BestKernels(), executor,
        int64_t{1} << 30);
    MOEBIUS_CHECK(made.ok());
    pipeline = *std::move(made);
    Random random(2);
    rows = MakeMatrix(random, 512, facts.hidden_size);
    out.Reset(512, facts.hidden_size);
  }
  void Step(int64_t begin, int64_t end, int64_t prompt_length) {
    const StepPlan plan{.sessions = {{.session = SessionId(1),
                                      .num_rows = end - begin,
                                      .position_begin = begin,
                                      .prompt_length = prompt_length}},
                        .num_rows = end - begin};
    MOEBIUS_CHECK(pipeline->BeginStep(plan).ok());
    MOEBIUS_CHECK(
        pipeline->RunLayer(0, rows.rows().Slice(0, end - begin), out.rows().Slice(0, end - begin))
            .ok());
    MOEBIUS_CHECK(pipeline->CommitStep().ok());
  }
  void Prefill(int64_t length, int64_t chunk) {
    for (int64_t begin = 0; begin < length; begin += chunk) {
      Step(begin, std::min(length, begin + chunk), length);
    }
  }

  AttentionFacts facts;
  Executor executor;
  std::unique_ptr<AttentionPipeline> pipeline;
  RowBatch<Bf16> rows, out;
};

void BM_Prefill(benchmark::State& state, Shape shape) {
  Setup setup(shape);
  const int64_t length = state.range(0);
  const int64_t chunk = state.range(1);
  for (auto _ : state) {
    setup.Prefill(length, chunk);
    setup.pipeline->EndSession(SessionId(1));
  }
  const AttentionConfig& config = setup.facts.config;
  const double pairs = 0.5 * static_cast<double>(length) * static_cast<double>(length + 1);
  state.counters["useful_flops"] = benchmark::Counter(
      2.0 * config.num_query_heads * (config.qk_head_dim + config.v_head_dim) * pairs,
      benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
  state.SetItemsProcessed(state.iterations() * length);
  state.SetLabel(std::string(TierName(BestKernels().tier)));
}

void BM_Decode(benchmark::State& state, Shape shape, AttentionSum sum) {
  Setup setup(shape, sum);
  const int64_t context = state.range(0);
  setup.Prefill(context, 512);
  // The same position again and again: the context stays what it is.
  setup.executor.Run([&] {
    for (auto _ : state) setup.Step(context, context + 1, context);
  });
  const AttentionConfig& config = setup.facts.config;
  const int64_t bytes_per_token =
      config.mla.has_value()
          ? (config.mla->kv_lora_rank + config.mla->qk_rope_dim) * 2
          : config.num_kv_heads * int64_t{config.qk_head_dim + config.v_head_dim} * 2;
  state.SetBytesProcessed(state.iterations() * context * bytes_per_token);
  state.SetLabel(std::string(TierName(BestKernels().tier)));
}

BENCHMARK_CAPTURE(BM_Prefill, demo, Shape::kDemo)
    ->Args({4300, 512})
    ->Args({4300, 64})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(BM_Prefill, grouped, Shape::kGrouped)
    ->Args({4096, 512})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(BM_Decode, demo, Shape::kDemo, AttentionSum::kCanonical)
    ->Arg(128)
    ->Arg(1024)
    ->Arg(4096)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();
// All heads share the latent: one task, unless it is cut.
BENCHMARK_CAPTURE(BM_Decode, demo_per_degree, Shape::kDemo, AttentionSum::kPerDegree)
    ->Arg(128)
    ->Arg(4096)
    ->Arg(32768)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(BM_Decode, grouped, Shape::kGrouped, AttentionSum::kCanonical)
    ->Arg(1024)
    ->Arg(32768)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

}  // namespace
}  // namespace moebius

BENCHMARK_MAIN();
