// SPDX-License-Identifier: Apache-2.0
#include "attention_service/kernel_rate.h"

#include <algorithm>

#include "attention_service/kv_cache.h"
#include "attention_service/kv_layout.h"
#include "moebius/base/clock.h"
#include "moebius/base/random.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

// Rows of the measured chunk and keys before it: enough for full tiles, few enough to be short.
constexpr int64_t kRows = 256;
constexpr int64_t kKeys = 768;
// Rows of a step of a prompt.
constexpr int64_t kStepRows = 512;
// A prompt that is timed whole, and keys that timed rows come behind.
constexpr SessionId kPrompt{1};
constexpr SessionId kKeysBefore{2};
// Narrow, so that projections take little of the time.
constexpr int64_t kHiddenSize = 32;

RowBatch<Bf16> MakeMatrix(Random& random, int64_t num_rows, int64_t width) {
  RowBatch<Bf16> rows(num_rows, width);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (Bf16& element : rows.rows().span(r)) element = ToBf16(random.Normal() * 0.1f);
  }
  return rows;
}

}  // namespace

AttentionLayerWeights MakeProbeLayer(const AttentionFacts& facts) {
  Random random(1);
  const AttentionConfig& config = facts.config;
  const int64_t heads = config.num_query_heads;
  const int64_t q = heads * config.qk_head_dim;
  AttentionLayerWeights weights;
  if (config.mla.has_value()) {
    const MlaConfig& mla = *config.mla;
    if (mla.q_lora_rank > 0) {
      weights.q_a = MakeMatrix(random, mla.q_lora_rank, kHiddenSize);
      weights.q_a_norm = MakeMatrix(random, 1, mla.q_lora_rank);
      weights.q_b = MakeMatrix(random, q, mla.q_lora_rank);
    } else {
      weights.q = MakeMatrix(random, q, kHiddenSize);
    }
    weights.kv_a = MakeMatrix(random, mla.kv_lora_rank + mla.qk_rope_dim, kHiddenSize);
    weights.kv_a_norm = MakeMatrix(random, 1, mla.kv_lora_rank);
    weights.kv_b =
        MakeMatrix(random, heads * (mla.qk_nope_dim + config.v_head_dim), mla.kv_lora_rank);
  } else {
    weights.q = MakeMatrix(random, q, kHiddenSize);
    weights.k = MakeMatrix(random, int64_t{config.num_kv_heads} * config.qk_head_dim, kHiddenSize);
    weights.v = MakeMatrix(random, int64_t{config.num_kv_heads} * config.v_head_dim, kHiddenSize);
  }
  weights.o = MakeMatrix(random, kHiddenSize, heads * config.v_head_dim);
  return weights;
}

AttentionFacts ProbeFactsOf(const AttentionFacts& facts, AttentionSum sum) {
  AttentionFacts one_layer = facts;
  one_layer.num_layers = 1;
  one_layer.hidden_size = kHiddenSize;
  one_layer.sum = sum;
  one_layer.config.qkv_bias = false;
  one_layer.config.output_bias = false;
  one_layer.config.qk_norm = QkNorm::kNone;
  one_layer.config.is_causal = true;
  return one_layer;
}

AttentionFacts FactsOfHeads(const AttentionHeads& heads, int64_t span) {
  AttentionFacts facts;
  facts.hidden_size = kHiddenSize;
  facts.num_layers = 1;
  facts.span = span;
  facts.key_block = std::min<int64_t>(128, span);
  facts.config.num_query_heads = static_cast<int32_t>(heads.query_heads);
  facts.config.num_kv_heads = static_cast<int32_t>(heads.kv_heads);
  facts.config.qk_head_dim = static_cast<int32_t>(heads.head_dim);
  facts.config.v_head_dim = static_cast<int32_t>(heads.value_dim);
  facts.config.softmax_scale = 0.1f;
  facts.config.rope.dim = static_cast<int32_t>(heads.head_dim / 2 * 2);
  return facts;
}

absl::StatusOr<std::unique_ptr<AttentionProbe>> AttentionProbe::Make(const AttentionFacts& facts,
                                                                     const Kernels& kernels,
                                                                     Executor& executor,
                                                                     int64_t max_tokens) {
  // Both sums have the same kernel.
  const AttentionFacts one_layer = ProbeFactsOf(facts, AttentionSum::kCanonical);
  const KvLayout layout(one_layer, kernels.pair_order);
  const int64_t num_blocks = max_tokens / one_layer.key_block + 3;
  auto probe = std::unique_ptr<AttentionProbe>(new AttentionProbe());
  MOEBIUS_ASSIGN_OR_RETURN(
      probe->pipeline_, AttentionPipeline::Make(
                            one_layer, [&](int64_t) { return MakeProbeLayer(one_layer); }, kernels,
                            executor, num_blocks * KvCache::BlockBytes(layout, 1)));
  Random random(2);
  probe->rows_ = MakeMatrix(random, kStepRows, kHiddenSize);
  probe->out_.Reset(kStepRows, kHiddenSize);
  return probe;
}

// Seconds of the layer, of one step with these positions.
absl::StatusOr<double> AttentionProbe::Step(SessionId session, int64_t begin, int64_t end,
                                            int64_t prompt_length) {
  const int64_t num_rows = end - begin;
  const StepPlan plan{.sessions = {{.session = session,
                                    .num_rows = num_rows,
                                    .position_begin = begin,
                                    .prompt_length = prompt_length}},
                      .num_rows = num_rows};
  MOEBIUS_RETURN_IF_ERROR(pipeline_->BeginStep(plan));
  const absl::Duration start = Clock::Monotonic().Now();
  MOEBIUS_RETURN_IF_ERROR(
      pipeline_->RunLayer(0, rows_.rows().Slice(0, num_rows), out_.rows().Slice(0, num_rows)));
  const double seconds = absl::ToDoubleSeconds(Clock::Monotonic().Now() - start);
  MOEBIUS_RETURN_IF_ERROR(pipeline_->CommitStep());
  return seconds;
}

absl::StatusOr<double> AttentionProbe::TimePrefill(int64_t num_tokens) {
  double seconds = 0;
  for (int64_t begin = 0; begin < num_tokens; begin += kStepRows) {
    MOEBIUS_ASSIGN_OR_RETURN(
        const double step,
        Step(kPrompt, begin, std::min(num_tokens, begin + kStepRows), num_tokens));
    seconds += step;
  }
  pipeline_->EndSession(kPrompt);
  return seconds;
}

// Keys for those who come after; a session that is there already serves as far as it goes.
absl::Status AttentionProbe::Fill(int64_t num_tokens) {
  while (num_keys_ < num_tokens) {
    const int64_t end = std::min(num_tokens, num_keys_ + kStepRows);
    MOEBIUS_RETURN_IF_ERROR(Step(kKeysBefore, num_keys_, end, num_tokens).status());
    num_keys_ = end;
  }
  return absl::OkStatus();
}

absl::StatusOr<double> AttentionProbe::Repeat(int64_t begin, int64_t end, int64_t prompt_length,
                                              absl::Duration duration) {
  MOEBIUS_RETURN_IF_ERROR(Fill(begin));
  double seconds = 0;
  int64_t count = 0;
  while (count == 0 || seconds < absl::ToDoubleSeconds(duration)) {
    MOEBIUS_ASSIGN_OR_RETURN(const double step, Step(kKeysBefore, begin, end, prompt_length));
    // A clock that does not move between two readings measures nothing.
    seconds += std::max(step, 1e-9);
    ++count;
  }
  return seconds / static_cast<double>(count);
}

absl::StatusOr<double> AttentionProbe::TimeChunk(int64_t num_keys, int64_t num_rows,
                                                 absl::Duration duration) {
  return Repeat(num_keys, num_keys + num_rows, num_keys + num_rows, duration);
}

absl::StatusOr<double> AttentionProbe::TimeDecode(int64_t num_keys, absl::Duration duration) {
  return Repeat(num_keys, num_keys + 1, num_keys, duration);
}

absl::StatusOr<double> MeasureKernelRate(const AttentionFacts& facts, const Kernels& kernels,
                                         Executor& executor) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<AttentionProbe> probe,
                           AttentionProbe::Make(facts, kernels, executor, kKeys + kRows));
  MOEBIUS_ASSIGN_OR_RETURN(const double seconds,
                           probe->TimeChunk(kKeys, kRows, absl::Milliseconds(50)));
  return AttentionFlops({.query_heads = facts.config.num_query_heads,
                         .head_dim = facts.config.qk_head_dim,
                         .value_dim = facts.config.v_head_dim},
                        {.new_tokens = kRows, .cached_tokens = kKeys}) /
         seconds;
}

}  // namespace moebius
