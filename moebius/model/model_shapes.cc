// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/model_shapes.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "moebius/base/error.h"

namespace moebius {
namespace {

struct NamedShape {
  const char* name;
  RandomCheckpointOptions (*make)();
};

// Source: config.json of OLMoE-1B-7B-0924.
RandomCheckpointOptions Olmoe() {
  RandomCheckpointOptions shape;
  shape.family = Family::kOlmoe;
  shape.num_layers = 16;
  shape.hidden_size = 2048;
  shape.vocab_size = 50304;
  shape.max_positions = 4096;
  shape.num_heads = 16;
  shape.num_kv_heads = 16;
  shape.head_dim = 128;
  shape.num_experts = 64;
  shape.top_k = 8;
  shape.moe_intermediate_size = 1024;
  shape.rms_norm_eps = 1e-5;
  return shape;
}

// Source: config.json of Qwen3-30B-A3B.
RandomCheckpointOptions Qwen3() {
  RandomCheckpointOptions shape;
  shape.family = Family::kQwen3Moe;
  shape.num_layers = 48;
  shape.hidden_size = 2048;
  shape.vocab_size = 151936;
  shape.max_positions = 40960;
  shape.num_heads = 32;
  shape.num_kv_heads = 4;
  shape.head_dim = 128;
  shape.num_experts = 128;
  shape.top_k = 8;
  shape.moe_intermediate_size = 768;
  shape.dense_intermediate_size = 6144;
  shape.num_dense_layers = 0;
  shape.rope_theta = 1e6;
  return shape;
}

// Source: config.json of DeepSeek-V3; DeepSeek-AI, "DeepSeek-V3 technical report", 2024,
// section 4.2.
RandomCheckpointOptions DeepseekV3() {
  RandomCheckpointOptions shape;
  shape.family = Family::kDeepseekV3;
  shape.num_layers = 61;
  shape.hidden_size = 7168;
  shape.vocab_size = 129280;
  shape.max_positions = 4096;  // without the stretch to 163,840
  shape.num_heads = 128;
  shape.head_dim = 128;
  shape.q_lora_rank = 1536;
  shape.kv_lora_rank = 512;
  shape.rope_dim = 64;
  shape.num_experts = 256;
  shape.top_k = 8;
  shape.num_groups = 8;
  shape.num_kept_groups = 4;
  shape.num_shared_experts = 1;
  shape.moe_intermediate_size = 2048;
  shape.num_dense_layers = 3;
  shape.dense_intermediate_size = 18432;
  return shape;
}

// Source: models/demo/config.json.
RandomCheckpointOptions Demo() {
  RandomCheckpointOptions shape;
  shape.family = Family::kDeepseekV3;
  shape.num_layers = 6;
  shape.hidden_size = 192;
  shape.vocab_size = 259;
  shape.max_positions = 2048;  // without the stretch to 16,384
  shape.num_heads = 8;
  shape.head_dim = 32;
  shape.q_lora_rank = 96;
  shape.kv_lora_rank = 64;
  shape.rope_dim = 16;
  shape.num_experts = 32;
  shape.top_k = 4;
  shape.num_groups = 4;
  shape.num_kept_groups = 2;
  shape.num_shared_experts = 1;
  shape.moe_intermediate_size = 96;
  shape.num_dense_layers = 1;
  shape.dense_intermediate_size = 576;
  return shape;
}

constexpr NamedShape kShapes[] = {
    {"olmoe-1b-7b", Olmoe}, {"qwen3-30b-a3b", Qwen3}, {"deepseek-v3", DeepseekV3}, {"demo", Demo}};

// The next multiple of `unit` from `value` · `factor` on; 0, a default, stays one.
int64_t ScaleUp(int64_t value, double factor, int64_t unit) {
  return static_cast<int64_t>(
             std::ceil(static_cast<double>(value) * factor / static_cast<double>(unit))) *
         unit;
}

}  // namespace

std::vector<std::string> ModelShapeNames() {
  std::vector<std::string> names;
  for (const NamedShape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

absl::StatusOr<RandomCheckpointOptions> FindModelShape(absl::string_view name) {
  for (const NamedShape& shape : kShapes) {
    if (name != shape.name) continue;
    RandomCheckpointOptions options = shape.make();
    options.span = 0;
    return options;
  }
  return WithHint(
      absl::InvalidArgumentError(absl::StrCat("there is no model shape \"", name, "\"")),
      absl::StrCat("known are ", absl::StrJoin(ModelShapeNames(), ", ")));
}

RandomCheckpointOptions ScaleShape(const RandomCheckpointOptions& shape, int64_t factor) {
  constexpr int64_t kUnit = 32;
  const double root = std::sqrt(static_cast<double>(factor));
  RandomCheckpointOptions scaled = shape;
  for (int64_t* width : {&scaled.hidden_size, &scaled.q_lora_rank, &scaled.kv_lora_rank,
                         &scaled.moe_intermediate_size, &scaled.dense_intermediate_size}) {
    *width = ScaleUp(*width, root, kUnit);
  }
  if (shape.num_kv_heads > 0) {
    scaled.num_kv_heads = ScaleUp(shape.num_kv_heads, root, 1);
    scaled.num_heads = scaled.num_kv_heads * (shape.num_heads / shape.num_kv_heads);
  } else {
    scaled.num_heads = ScaleUp(shape.num_heads, root, 1);
  }
  return scaled;
}

}  // namespace moebius
