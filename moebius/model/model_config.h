// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moebius/base/gate_config.h"

namespace moebius {

/// The architectures that this build can run, one file each in families/.
enum class Family { kDeepseekV3, kKimiK2, kGlm4Moe, kQwen3Moe, kOlmoe, kMixtral };

/// Which elements of a head RoPE rotates together: (2i, 2i+1), or (i, i + dim/2).
enum class RopePairing { kInterleaved, kHalves };

/// Where q and k are normalised after projection.
enum class QkNorm { kNone, kPerHead, kWholeProjection };

/// YaRN's stretch of the rotary frequencies (Peng et al., "YaRN", 2023).
struct YarnConfig {
  double factor = 1.0;
  int64_t original_max_positions = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 0;          // 0 when absent
  double mscale_all_dim = 0;  // 0 when absent
  std::optional<double> attention_factor;
};

struct RopeConfig {
  int32_t dim = 0;  // elements of a head that rotate, even
  double theta = 10000.0;
  RopePairing pairing = RopePairing::kHalves;
  std::optional<YarnConfig> yarn;
};

/// Multi-head latent attention; absent for grouped-query models.
struct MlaConfig {
  int32_t q_lora_rank = 0;  // 0: q is projected directly
  int32_t kv_lora_rank = 0;
  int32_t qk_nope_dim = 0;
  int32_t qk_rope_dim = 0;
  double lora_norm_eps = 1e-6;  // the family's norms inside the low-rank paths have their own
};

struct AttentionConfig {
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_query_heads; equal to it under MLA's expanded form
  int32_t qk_head_dim = 0;   // nope + rope under MLA
  int32_t v_head_dim = 0;
  float softmax_scale = 0;  // multiplies the fp32 score; YaRN's mscale² included where it applies
  /// Multiplies the cosines and sines (YaRN's attention factor); 1 where it does not apply.
  float rope_amplitude = 1.0f;
  bool qkv_bias = false;
  bool output_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  double qk_norm_eps = 1e-6;
  RopeConfig rope;
  std::optional<MlaConfig> mla;
  /// [layers]: a query sees so many keys, its own included; 0: all. Empty: all in every layer.
  std::vector<int64_t> windows;
  /// False: rows of a prompt see all of it, generated rows what is before them; without windows.
  bool is_causal = true;

  int64_t WindowOf(int64_t layer) const {
    return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
  }
};

/// FP8 with block scales: each block of so many rows and columns of a stored matrix has one scale.
struct QuantizationConfig {
  int64_t block_rows = 0;  // 0: config.json has no quantization_config
  int64_t block_columns = 0;
  bool is_present() const { return block_rows > 0; }
};

/// The facts of a checkpoint's config.json that computation needs, after validation.
struct ModelConfig {
  Family family = Family::kDeepseekV3;
  std::string architecture;  // as in config.json
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t max_positions = 0;
  double rms_norm_eps = 1e-6;
  bool tied_head = false;

  /// [num_layers]; false marks a dense layer.
  std::vector<bool> moe_layers;
  int64_t dense_intermediate_size = 0;  // 0 when no layer is dense
  int64_t moe_intermediate_size = 0;    // I, of one routed expert
  int64_t num_shared_experts = 0;       // n: a merged FFN of n·I; 0 for none
  GateConfig gate;
  AttentionConfig attention;
  QuantizationConfig quantization;

  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;  // of generation_config.json, else config.json; ascending
  std::string eos_source;              // the file they came from

  bool IsMoeLayer(int64_t layer) const { return moe_layers[static_cast<size_t>(layer)]; }
  /// Weights of one routed expert, or of a whole slice, in bf16.
  int64_t ExpertWeightBytes() const { return 3 * hidden_size * moe_intermediate_size * 2; }
  /// Slices of a dense layer: ceil(dense_intermediate_size / moe_intermediate_size). Their ids are
  /// E, E+1, …, as are those of the shared experts in a MoE layer.
  int64_t NumDenseSlices() const {
    return (dense_intermediate_size + moe_intermediate_size - 1) / moe_intermediate_size;
  }
};

/// The constants of NUMERICS that belong to a model's folder (moebius.json) and are part of the
/// config hash. Flags override.
struct NumericsConfig {
  int32_t span = 1024;             // keys per span; a multiple of the key block
  int32_t key_block = 128;         // min(128, span); a multiple of 32
  int32_t num_combine_groups = 4;  // n_group where that is > 1, else min(4, E) contiguous ranges
  int64_t slice_width = 0;         // moe_intermediate_size
  GroupFill group_fill = GroupFill::kNegativeInfinity;
  std::string attention_sum = "canonical";  // or "per-degree"
  std::string attention_layout = "zigzag";  // per-degree: or "contiguous", "striped"
  std::string dtype = "bf16";               // "fp8" where any weight is F8_E4M3
  std::string numeric_class = "cpu";
};

}  // namespace moebius
