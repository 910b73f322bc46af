// SPDX-License-Identifier: Apache-2.0
#include "router_service/lead_options.h"

namespace moebius {
namespace {

// What generation_config.json suggests, else greedy. The penalty is of logits, whoever picks from
// them; what cuts the candidates is for sampling.
SamplingParams DefaultSampling(const GenerationDefaults& generation) {
  SamplingParams sampling;
  sampling.repetition_penalty = generation.repetition_penalty.value_or(1);
  if (generation.do_sample == false) return sampling;
  sampling.temperature = generation.temperature.value_or(generation.do_sample == true ? 1.0 : 0.0);
  sampling.top_p = generation.top_p.value_or(sampling.top_p);
  sampling.min_p = generation.min_p.value_or(sampling.min_p);
  sampling.top_k = generation.top_k.value_or(sampling.top_k);
  return sampling;
}

}  // namespace

LeadOptions BuildLeadOptions(const Checkpoint& checkpoint, int64_t row_budget, int64_t chunk_rows) {
  const ModelConfig& config = checkpoint.config();
  LeadOptions options;
  options.schedule.row_budget = row_budget;
  options.schedule.chunk_rows = chunk_rows > 0 ? chunk_rows : row_budget;
  options.schedule.whole_prompts = !config.attention.is_causal;
  options.vocab_size = config.vocab_size;
  options.max_positions = config.max_positions;
  options.eos_token_ids = config.eos_token_ids;
  const NumericsConfig& numerics = checkpoint.numerics();
  options.per_degree.num_ranks = numerics.attention_sum == "per-degree" ? 1 : 0;
  options.per_degree.layout = *ParseAttentionLayout(numerics.attention_layout);
  options.sampling = DefaultSampling(checkpoint.generation_defaults());
  return options;
}

}  // namespace moebius
