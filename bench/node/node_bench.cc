// SPDX-License-Identifier: Apache-2.0
// The demo model in one process: decode alone and in batches, prefill, and what the row pipeline
// costs outside its ports and kernels. `tokens_per_second` of decode/1 has the target 400 on two
// cores; the other counters say where a step's time goes, in microseconds.
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"

#include "moebius/base/check.h"
#include "node/embedded.h"

namespace moebius {
namespace {

constexpr int64_t kAnswerTokens = 128;

EmbeddedNode& Demo() {
  static EmbeddedNode* const node = [] {
    EmbeddedOptions options;
    options.model_path = std::string(MOEBIUS_SOURCE_DIR) + "/models/demo";
    options.kv_budget_bytes = int64_t{256} << 20;
    absl::StatusOr<std::unique_ptr<EmbeddedNode>> opened = EmbeddedNode::Open(options);
    MOEBIUS_CHECK(opened.ok());
    return opened->release();
  }();
  return *node;
}

GenerateRequest Request(int64_t prompt_tokens, int64_t max_tokens, int64_t first_byte) {
  GenerateRequest request;
  for (int64_t position = 0; position < prompt_tokens; ++position) {
    request.token_ids.push_back((first_byte + position * 7) % 96 + 32);
  }
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

// Runs `batch` requests to their ends and returns their last events.
std::vector<GenerateEvent> RunBatch(int64_t batch, int64_t prompt_tokens, int64_t max_tokens) {
  std::vector<std::shared_ptr<GenerateStream>> streams;
  for (int64_t index = 0; index < batch; ++index) {
    streams.push_back(*Demo().Submit(Request(prompt_tokens, max_tokens, index)));
  }
  std::vector<GenerateEvent> last;
  for (const auto& stream : streams) {
    GenerateEvent event;
    while (std::optional<GenerateEvent> next = stream->Next()) event = *std::move(next);
    MOEBIUS_CHECK(stream->status().ok());
    last.push_back(std::move(event));
  }
  return last;
}

void ReportFigures(benchmark::State& state, const StepFigures& figures, int64_t steps) {
  const auto per_step = [&](double seconds) { return seconds * 1e6 / static_cast<double>(steps); };
  state.counters["attention_us"] = per_step(figures.attention_seconds);
  state.counters["experts_us"] = per_step(figures.expert_seconds);
  state.counters["gate_us"] = per_step(figures.gate_seconds);
  state.counters["plan_us"] = per_step(figures.plan_seconds);
  state.counters["combine_us"] = per_step(figures.combine_seconds);
  state.counters["norm_us"] = per_step(figures.norm_seconds);
  state.counters["head_us"] = per_step(figures.head_seconds);
}

void BM_Decode(benchmark::State& state) {
  const int64_t batch = state.range(0);
  double seconds = 0;
  int64_t tokens = 0;
  int64_t steps = 0;
  StepFigures figures;
  for (auto _ : state) {
    const std::vector<GenerateEvent> answers = RunBatch(batch, 32, kAnswerTokens);
    for (const GenerateEvent& answer : answers) tokens += answer.completion_tokens - 1;
    seconds += answers[0].timing.decode_seconds;
    steps += answers[0].timing.decode_steps + answers[0].timing.prefill_steps;
    figures.Add(answers[0].timing.figures);
  }
  state.counters["tokens_per_second"] = static_cast<double>(tokens) / seconds;
  ReportFigures(state, figures, steps);
}
BENCHMARK(BM_Decode)->Name("decode")->Arg(1)->Arg(4)->Arg(16)->Arg(32)->UseRealTime();

void BM_Prefill(benchmark::State& state) {
  double seconds = 0;
  int64_t tokens = 0;
  int64_t steps = 0;
  StepFigures figures;
  for (auto _ : state) {
    const GenerateEvent answer = RunBatch(1, state.range(0), 1)[0];
    seconds += answer.timing.prefill_seconds;
    tokens += answer.prompt_tokens;
    steps += answer.timing.prefill_steps;
    figures.Add(answer.timing.figures);
  }
  state.counters["tokens_per_second"] = static_cast<double>(tokens) / seconds;
  ReportFigures(state, figures, steps);
}
BENCHMARK(BM_Prefill)->Name("prefill")->Arg(512)->Arg(2048)->UseRealTime();

}  // namespace
}  // namespace moebius

BENCHMARK_MAIN();
