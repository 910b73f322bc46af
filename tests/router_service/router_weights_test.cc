// SPDX-License-Identifier: Apache-2.0
#include "router_service/router_weights.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

// Two layers with a sigmoid gate and a correction bias; expert 2 of layer 1 has `bias`.
absl::Status LoadWithBias(float bias) {
  MiniCheckpoint mini;
  mini.config = *Json::Parse(R"({
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 32,
    "moe_intermediate_size": 16, "intermediate_size": 64, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "first_k_dense_replace": 0, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "vocab_size": 97, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "norm_topk_prob": true, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 3
  })",
                             "config");
  mini.edit_tensors = [bias](std::vector<MiniTensor>& tensors) {
    for (MiniTensor& tensor : tensors) {
      if (!absl::StrContains(tensor.name, "layers.1.mlp.gate.e_score_correction_bias")) continue;
      tensor.bytes = EncodeElements({0.5f, -0.25f, bias, 0}, "F32");
    }
  };
  const TemporaryFolder folder;
  mini.Write(folder.path());
  const absl::StatusOr<std::unique_ptr<const Checkpoint>> checkpoint =
      Checkpoint::Open(folder.path());
  if (!checkpoint.ok()) return checkpoint.status();
  const absl::StatusOr<RouterWeights> weights = RouterWeights::Load(**checkpoint, BestKernels());
  if (!weights.ok()) return weights.status();
  EXPECT_EQ(weights->gates[1].bias[2], bias);
  return absl::OkStatus();
}

TEST(RouterWeightsTest, RefusesACorrectionBiasThatWouldLeaveTooFewCandidates) {
  EXPECT_EQ(LoadWithBias(7.5f), absl::OkStatus());
  for (const float bias :
       {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    const absl::Status status = LoadWithBias(bias);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("layer 1: the correction bias of expert 2 is not finite"));
  }
}

}  // namespace
}  // namespace moebius
