// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/config_parser.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Json GoldenJson(const std::string& name) {
  return *Json::Parse(
      ReadFileBytes(absl::StrCat(MOEBIUS_SOURCE_DIR, "/tests/golden/data/", name, "/config.json")),
      "golden");
}

absl::StatusOr<ModelConfig> ParseJson(const Json& json) {
  return ParseModelConfig(json.ToCanonicalText());
}

/// What changing one field of a golden configuration gives: "accepted", or the message.
std::string WithField(const std::string& golden, const std::string& field,
                      const std::string& value) {
  Json json = GoldenJson(golden);
  json.Set(field, *Json::Parse(value, "value"));
  const absl::StatusOr<ModelConfig> config = ParseJson(json);
  return config.ok() ? "accepted" : std::string(config.status().message());
}

std::string WithoutField(const std::string& golden, const std::string& field) {
  std::map<std::string, Json> members = GoldenJson(golden).members();
  EXPECT_EQ(members.erase(field), 1u) << field;
  const absl::StatusOr<ModelConfig> config = ParseJson(Json::Object(members));
  return config.ok() ? CanonicalConfigText(*config) : std::string(config.status().message());
}

struct FieldCase {
  const char* golden;
  const char* field;
};

TEST(ConfigParserTest, ARequiredFieldThatIsAbsentOrNullIsNamed) {
  const FieldCase cases[] = {
      {"deepseek_v3", "model_type"},
      {"deepseek_v3", "vocab_size"},
      {"deepseek_v3", "hidden_size"},
      {"deepseek_v3", "num_hidden_layers"},
      {"deepseek_v3", "num_attention_heads"},
      {"deepseek_v3", "max_position_embeddings"},
      {"deepseek_v3", "kv_lora_rank"},
      {"deepseek_v3", "qk_nope_head_dim"},
      {"deepseek_v3", "qk_rope_head_dim"},
      {"deepseek_v3", "v_head_dim"},
      {"deepseek_v3", "n_routed_experts"},
      {"deepseek_v3", "num_experts_per_tok"},
      {"deepseek_v3", "moe_intermediate_size"},
      {"deepseek_v3", "intermediate_size"},
      {"qwen3_moe", "num_experts"},
      {"qwen3_moe", "moe_intermediate_size"},
      {"qwen3_moe", "intermediate_size"},
      {"olmoe", "num_experts"},
      {"olmoe", "intermediate_size"},
      {"mixtral", "num_local_experts"},
      {"glm4_moe", "n_routed_experts"},
  };
  for (const FieldCase& c : cases) {
    EXPECT_EQ(WithField(c.golden, c.field, "null"),
              absl::StrCat("config.json: ", c.field, " is null"));
    EXPECT_EQ(WithoutField(c.golden, c.field),
              absl::StrCat("config.json: ", c.field, " is absent"));
  }
}

TEST(ConfigParserTest, NullMeansAbsentForEveryOptionalField) {
  const FieldCase cases[] = {
      {"deepseek_v3", "architectures"},
      {"deepseek_v3", "attention_bias"},
      {"deepseek_v3", "bos_token_id"},
      {"deepseek_v3", "eos_token_id"},
      {"glm4_moe", "first_k_dense_replace"},
      {"deepseek_v3", "hidden_act"},
      {"deepseek_v3", "moe_layer_freq"},
      {"deepseek_v3", "n_shared_experts"},
      {"deepseek_v3", "norm_topk_prob"},
      {"deepseek_v3", "num_key_value_heads"},
      {"deepseek_v3", "q_lora_rank"},
      {"deepseek_v3", "rms_norm_eps"},
      {"deepseek_v3", "rope_interleave"},
      {"deepseek_v3", "rope_scaling"},
      {"deepseek_v3", "rope_theta"},
      {"deepseek_v3", "routed_scaling_factor"},
      {"deepseek_v3", "scoring_func"},
      {"deepseek_v3", "tie_word_embeddings"},
      {"deepseek_v3", "topk_method"},
      {"deepseek_v3", "torch_dtype"},
      {"qwen3_moe", "decoder_sparse_step"},
      {"qwen3_moe", "mlp_only_layers"},
      {"qwen3_moe", "num_key_value_heads"},
      {"qwen3_moe", "sliding_window"},
      {"qwen3_moe", "use_sliding_window"},
      {"qwen3_moe_tied", "norm_topk_prob"},
      {"olmoe", "clip_qkv"},
      {"olmoe", "norm_topk_prob"},
      {"mixtral", "head_dim"},
      {"mixtral", "rope_theta"},
      {"glm4_moe", "attention_bias"},
      {"glm4_moe", "use_qk_norm"},
      {"glm4_moe", "partial_rotary_factor"},
  };
  for (const FieldCase& c : cases) {
    Json json = GoldenJson(c.golden);
    json.Set(c.field, Json());
    const absl::StatusOr<ModelConfig> with_null = ParseJson(json);
    ASSERT_TRUE(with_null.ok()) << c.field << ": " << with_null.status();
    EXPECT_EQ(CanonicalConfigText(*with_null), WithoutField(c.golden, c.field)) << c.field;
  }
}

struct Refused {
  const char* golden;
  const char* field;
  const char* value;
  const char* message;
};

TEST(ConfigParserTest, AbsurdValuesAreRefusedWithTheFieldsName) {
  const Refused cases[] = {
      {"deepseek_v3", "hidden_size", "0", "hidden_size must be between 1 and 65536, it is 0"},
      {"deepseek_v3", "hidden_size", "-64", "hidden_size must be between"},
      {"deepseek_v3", "hidden_size", "64.5", "hidden_size must be an integer, it is 64.5"},
      {"deepseek_v3", "hidden_size", "\"64\"", "hidden_size must be an integer, it is \"64\""},
      {"deepseek_v3", "hidden_size", "1000000000000", "hidden_size must be between"},
      {"deepseek_v3", "hidden_size", "18446744073709551615", "hidden_size must be between"},
      {"deepseek_v3", "hidden_size", "[64]", "hidden_size must be an integer"},
      {"deepseek_v3", "vocab_size", "0", "vocab_size"},
      {"deepseek_v3", "vocab_size", "2147483648", "vocab_size"},
      {"deepseek_v3", "num_hidden_layers", "0", "num_hidden_layers"},
      {"deepseek_v3", "num_hidden_layers", "100000", "num_hidden_layers"},
      {"deepseek_v3", "max_position_embeddings", "99999999999", "max_position_embeddings"},
      {"deepseek_v3", "rms_norm_eps", "-1e-6", "rms_norm_eps"},
      {"deepseek_v3", "rms_norm_eps", "0", "rms_norm_eps"},
      {"deepseek_v3", "rms_norm_eps", "1e30", "rms_norm_eps"},
      {"deepseek_v3", "rms_norm_eps", "\"1e-6\"", "rms_norm_eps must be a number"},
      {"deepseek_v3", "rope_theta", "0", "rope_theta"},
      {"deepseek_v3", "rope_theta", "-10000.0", "rope_theta"},
      {"deepseek_v3", "n_routed_experts", "0", "n_routed_experts"},
      {"deepseek_v3", "n_routed_experts", "100000", "n_routed_experts"},
      {"deepseek_v3", "num_experts_per_tok", "0", "num_experts_per_tok"},
      {"deepseek_v3", "num_experts_per_tok", "9",
       "num_experts_per_tok is 9, the 2 kept groups have only 8 experts"},
      {"mixtral", "num_experts_per_tok", "9", "num_experts_per_tok is 9, there are only 8"},
      {"deepseek_v3", "n_group", "3", "n_group is 3, which does not divide the 16 experts"},
      {"deepseek_v3", "topk_group", "5", "topk_group is 5, there are only 4 groups"},
      {"deepseek_v3", "n_group", "16", "n_group leaves groups of one expert"},
      {"deepseek_v3", "first_k_dense_replace", "3",
       "first_k_dense_replace is 3, which leaves no sparse layer of 3"},
      {"deepseek_v3", "first_k_dense_replace", "-1", "first_k_dense_replace"},
      {"deepseek_v3", "qk_rope_head_dim", "7", "rotates 7 elements"},
      {"deepseek_v3", "qk_head_dim", "25", "qk_head_dim is 25, not"},
      {"deepseek_v3", "head_dim", "9", "head_dim is 9, neither"},
      {"deepseek_v3", "eos_token_id", "320", "eos_token_id must be between 0 and 319"},
      {"deepseek_v3", "eos_token_id", "-1", "eos_token_id"},
      {"deepseek_v3", "eos_token_id", "[1, 320]", "eos_token_id must hold integers between 0"},
      {"deepseek_v3", "bos_token_id", "5000", "bos_token_id"},
      {"deepseek_v3", "routed_scaling_factor", "-1", "routed_scaling_factor"},
      {"deepseek_v3", "norm_topk_prob", "1", "norm_topk_prob must be true or false"},
      {"deepseek_v3", "architectures", "\"X\"", "architectures must be a list of strings"},
      {"qwen3_moe", "num_key_value_heads", "3",
       "num_key_value_heads is 3, which does not divide num_attention_heads = 8"},
      {"qwen3_moe", "head_dim", "23", "head_dim rotates 23 elements"},
      {"qwen3_moe", "head_dim", "0", "head_dim must be between 2 and 1024"},
      {"qwen3_moe", "mlp_only_layers", "[0, 1, 2]", "leave no sparse layer"},
      {"qwen3_moe", "mlp_only_layers", "[7]", "mlp_only_layers must hold integers between 0 and 2"},
      {"qwen3_moe", "decoder_sparse_step", "0", "decoder_sparse_step"},
      {"glm4_moe", "partial_rotary_factor", "0.45", "partial_rotary_factor rotates 7 elements"},
      {"glm4_moe", "partial_rotary_factor", "1.5", "partial_rotary_factor must be between"},
      {"olmoe", "num_attention_heads", "12", "head_dim is absent, and hidden_size = 64"},
  };
  for (const Refused& c : cases) {
    EXPECT_THAT(WithField(c.golden, c.field, c.value), HasSubstr(absl::StrCat("config.json: ")))
        << c.field << " " << c.value;
    EXPECT_THAT(WithField(c.golden, c.field, c.value), HasSubstr(c.message))
        << c.field << " " << c.value;
  }
}

TEST(ConfigParserTest, WhatIsNotSupportedIsRefusedByName) {
  const Refused cases[] = {
      {"deepseek_v3", "model_type", "\"deepseek_v2\"",
       "model_type is \"deepseek_v2\", this build runs deepseek_v3, kimi_k2, glm4_moe, qwen3_moe, "
       "olmoe, mixtral"},
      {"deepseek_v3", "model_type", "\"kimi_k25\"", "model_type is \"kimi_k25\""},
      {"deepseek_v3", "architectures", "[\"LlamaForCausalLM\"]",
       "architectures is LlamaForCausalLM"},
      {"deepseek_v3", "quantization_config", "{\"quant_method\": \"awq\"}",
       "quantization_config has quant_method \"awq\", only \"fp8\" is supported"},
      {"deepseek_v3", "quantization_config", "{\"bits\": 8}",
       "quantization_config has quant_method unknown"},
      {"deepseek_v3", "quantization_config", "{\"quant_method\": \"fp8\"}",
       "quantization_config.weight_block_size is absent"},
      {"deepseek_v3", "quantization_config",
       "{\"quant_method\": \"fp8\", \"weight_block_size\": null}",
       "quantization_config.weight_block_size is absent"},
      {"deepseek_v3", "quantization_config",
       "{\"quant_method\": \"fp8\", \"weight_block_size\": [128]}",
       "quantization_config.weight_block_size must be two sizes between 1 and 1048576"},
      {"deepseek_v3", "quantization_config",
       "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 0]}",
       "must be two sizes between 1 and 1048576, it is [128,0]"},
      {"deepseek_v3", "quantization_config",
       "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], \"fmt\": \"e5m2\"}",
       "quantization_config.fmt is \"e5m2\""},
      {"deepseek_v3", "quantization_config",
       "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], "
       "\"activation_scheme\": \"static\"}",
       "quantization_config.activation_scheme is \"static\""},
      {"deepseek_v3", "quantization_config",
       "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], \"zero_point\": true}",
       "quantization_config.zero_point is not a field that this build knows"},
      {"deepseek_v3", "hidden_act", "\"gelu\"", "hidden_act is \"gelu\""},
      {"deepseek_v3", "scoring_func", "\"softmax\"", "scoring_func is \"softmax\""},
      {"deepseek_v3", "scoring_func", "\"tanh\"", "scoring_func is \"tanh\""},
      {"qwen3_moe", "scoring_func", "\"sigmoid\"", "scoring_func is \"sigmoid\""},
      {"deepseek_v3", "topk_method", "\"group_limited_greedy\"", "topk_method is"},
      {"deepseek_v3", "moe_layer_freq", "2", "moe_layer_freq is 2"},
      {"deepseek_v3", "attention_bias", "true", "attention_bias is true"},
      {"deepseek_v3", "num_key_value_heads", "2", "num_key_value_heads is 2"},
      {"deepseek_v3", "rope_scaling", "{\"type\": \"linear\", \"factor\": 2.0}",
       "rope_scaling.type is \"linear\""},
      {"deepseek_v3", "rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 2.0}",
       "rope_scaling.rope_type is \"llama3\""},
      {"deepseek_v3", "rope_scaling", "{\"type\": \"yarn\", \"factor\": 2.0, \"truncate\": false}",
       "rope_scaling.truncate is false"},
      {"deepseek_v3", "rope_scaling", "{\"type\": \"yarn\", \"factor\": 2.0, \"surprise\": 1}",
       "rope_scaling.surprise is not a field"},
      {"deepseek_v3", "rope_scaling", "{\"type\": \"yarn\"}", "rope_scaling.factor is absent"},
      {"deepseek_v3", "rope_scaling", "{\"type\": \"yarn\", \"factor\": 0.5}",
       "rope_scaling.factor must be between 1"},
      {"deepseek_v3", "rope_scaling", "{\"type\": \"yarn\", \"rope_type\": \"default\"}",
       "rope_type is \"default\" but type is \"yarn\""},
      {"deepseek_v3", "rope_scaling",
       "{\"type\": \"yarn\", \"factor\": 2, \"original_max_position_embeddings\": 100000}",
       "original_max_position_embeddings must be between 1 and 512"},
      {"deepseek_v3", "rope_parameters", "{\"rope_theta\": 5000.0}",
       "rope_theta is 10000 but rope_parameters.rope_theta is 5000"},
      {"deepseek_v3", "partial_rotary_factor", "0.5", "this family rotates whole heads"},
      {"olmoe", "sliding_window", "256", "sliding_window is 256, this family has no windows"},
      {"glm4_moe", "layer_types", "[\"sliding_attention\"]", "layer_types has 1 entries for"},
      {"mixtral", "sliding_window", "0", "sliding_window is 0, a query sees at least its own key"},
      {"mixtral", "sliding_window", "-1", "sliding_window must be between 0"},
      {"mixtral", "norm_topk_prob", "false", "norm_topk_prob is false"},
      {"olmoe", "clip_qkv", "8.0", "clip_qkv is set"},
      {"olmoe", "attention_bias", "true", "attention_bias is true"},
      {"qwen3_moe", "attention_bias", "true", "attention_bias is true"},
      {"qwen3_moe", "layer_types", "[\"full_attention\", \"chunked_attention\"]",
       "layer_types has \"chunked_attention\", only full_attention and sliding_attention"},
      {"qwen3_moe", "final_logit_softcapping", "30.0", "final_logit_softcapping is 30"},
      {"qwen3_moe", "index_topk", "2048", "index_topk is 2048"},
      {"mixtral", "is_causal", "\"no\"", "is_causal"},
      {"olmoe", "use_bidirectional_attention", "\"all\"",
       "use_bidirectional_attention must be true or false, it is \"all\""},
  };
  for (const Refused& c : cases) {
    EXPECT_THAT(WithField(c.golden, c.field, c.value), HasSubstr(c.message))
        << c.field << " " << c.value;
  }
}

TEST(ConfigParserTest, AWindowThatIsNotActiveIsAccepted) {
  EXPECT_EQ(WithField("qwen3_moe", "sliding_window", "64"), "accepted");  // use_… is false there
  EXPECT_EQ(WithField("mixtral", "sliding_window", "512"), "accepted");   // as long as the context
}

TEST(ConfigParserTest, ACausalMaskThatIsSaidIsAccepted) {
  for (const char* const value : {"true", "null"}) {
    EXPECT_EQ(WithField("qwen3_moe", "is_causal", value), "accepted") << value;
  }
  EXPECT_EQ(WithField("qwen3_moe", "use_bidirectional_attention", "false"), "accepted");
}

// A golden configuration with these fields, each `name:JSON`.
absl::StatusOr<ModelConfig> ParseWithFields(const std::string& golden,
                                            const std::vector<std::string>& fields) {
  Json json = GoldenJson(golden);
  for (const std::string& field : fields) {
    const size_t colon = field.find(':');
    json.Set(field.substr(0, colon), *Json::Parse(field.substr(colon + 1), "test"));
  }
  return ParseJson(json);
}

// Whether attention is causal with these fields, or the refusal.
std::string MaskWith(const std::string& golden, const std::vector<std::string>& fields) {
  const absl::StatusOr<ModelConfig> config = ParseWithFields(golden, fields);
  if (!config.ok()) return std::string(config.status().message());
  return config->attention.is_causal ? "causal" : "whole";
}

TEST(ConfigParserTest, AttentionThatIsNotCausalIsTakenFromEitherField) {
  for (const char* golden : {"qwen3_moe", "deepseek_v3", "glm4_moe", "olmoe", "mixtral"}) {
    EXPECT_EQ(MaskWith(golden, {}), "causal");
    EXPECT_EQ(MaskWith(golden, {"is_causal:false"}), "whole");
    EXPECT_EQ(MaskWith(golden, {"use_bidirectional_attention:true"}), "whole");
    EXPECT_EQ(MaskWith(golden, {"is_causal:false", "use_bidirectional_attention:true"}), "whole");
    EXPECT_EQ(MaskWith(golden, {"is_causal:true", "use_bidirectional_attention:false"}), "causal");
    EXPECT_EQ(MaskWith(golden, {"is_causal:null", "use_bidirectional_attention:null"}), "causal");
  }
}

TEST(ConfigParserTest, FieldsThatContradictOneAnotherOnTheMaskAreRefused) {
  EXPECT_THAT(MaskWith("qwen3_moe", {"is_causal:true", "use_bidirectional_attention:true"}),
              HasSubstr("use_bidirectional_attention is true, and is_causal too"));
  EXPECT_THAT(MaskWith("qwen3_moe", {"is_causal:false", "use_bidirectional_attention:false"}),
              HasSubstr("use_bidirectional_attention is false, and is_causal too"));
}

TEST(ConfigParserTest, AWindowOfAttentionThatIsNotCausalIsRefusedByName) {
  EXPECT_THAT(MaskWith("mixtral", {"sliding_window:16", "is_causal:false"}),
              HasSubstr("is_causal is false and sliding_window is on"));
  EXPECT_THAT(MaskWith("mixtral", {"sliding_window:16", "use_bidirectional_attention:true"}),
              HasSubstr("use_bidirectional_attention is true and sliding_window is on"));
  EXPECT_EQ(MaskWith("qwen3_moe", {"sliding_window:16", "is_causal:false"}), "whole");  // it is off
}

// Ranks that see otherwise are of another model; causal ones are what they were.
TEST(ConfigParserTest, OnlyAMaskThatIsNotCausalIsInTheCanonicalText) {
  Json json = GoldenJson("qwen3_moe");
  const std::string causal = CanonicalConfigText(*ParseJson(json));
  EXPECT_THAT(causal, Not(HasSubstr("causal")));
  json.Set("is_causal", Json::Boolean(true));
  EXPECT_EQ(CanonicalConfigText(*ParseJson(json)), causal);
  json.Set("is_causal", Json::Boolean(false));
  EXPECT_THAT(CanonicalConfigText(*ParseJson(json)), HasSubstr("\"causal\":false"));
}

// Windows by layer, or the refusal.
std::string WindowsWith(const std::string& golden, const std::vector<std::string>& fields) {
  const absl::StatusOr<ModelConfig> config = ParseWithFields(golden, fields);
  if (!config.ok()) return std::string(config.status().message());
  return absl::StrJoin(config->attention.windows, " ");
}

TEST(ConfigParserTest, WindowsAreTakenAsTheFamilySaysThem) {
  const std::string on = "use_sliding_window:true";
  EXPECT_EQ(WindowsWith("mixtral", {}), "");
  EXPECT_EQ(WindowsWith("mixtral", {"sliding_window:16"}), "16 16");
  EXPECT_EQ(WindowsWith("mixtral", {"sliding_window:16",
                                    "layer_types:[\"sliding_attention\", \"sliding_attention\"]"}),
            "16 16");
  EXPECT_EQ(WindowsWith("qwen3_moe", {"sliding_window:16"}), "");
  EXPECT_EQ(WindowsWith("qwen3_moe", {"sliding_window:16", "use_sliding_window:null"}), "");
  EXPECT_EQ(WindowsWith("qwen3_moe", {"sliding_window:16", on}), "16 16 16");
  EXPECT_EQ(WindowsWith("qwen3_moe", {"sliding_window:16", on, "max_window_layers:2"}), "0 0 16");
  EXPECT_EQ(WindowsWith("qwen3_moe", {"sliding_window:16", on, "max_window_layers:28"}), "");
  EXPECT_EQ(WindowsWith("qwen3_moe", {"sliding_window:16", on, "max_window_layers:2",
                                      "layer_types:[\"sliding_attention\", \"full_attention\", "
                                      "\"sliding_attention\"]"}),
            "16 0 16");
}

TEST(ConfigParserTest, AWindowThatCannotBeHonouredIsRefused) {
  EXPECT_THAT(WindowsWith("mixtral", {"sliding_window:16", "use_sliding_window:false"}),
              HasSubstr("use_sliding_window is false, this family has no switch"));
  EXPECT_THAT(
      WindowsWith("mixtral",
                  {"sliding_window:16", "layer_types:[\"full_attention\", \"sliding_attention\"]"}),
      HasSubstr("layer_types has full_attention, this family has its sliding_window in every"));
  EXPECT_THAT(
      WindowsWith("mixtral", {"layer_types:[\"sliding_attention\", \"sliding_attention\"]"}),
      HasSubstr("layer_types has sliding_attention, sliding_window is absent"));
  EXPECT_THAT(WindowsWith("olmoe", {"layer_types:[\"sliding_attention\", \"full_attention\"]"}),
              HasSubstr("layer_types has sliding_attention, this family has no windows"));
}

TEST(ConfigParserTest, AWindowChangesTheCanonicalTextAndNoneLeavesItAsItWas) {
  const auto text = [](const char* window) {
    Json json = GoldenJson("mixtral");
    json.Set("sliding_window", *Json::Parse(window, "test"));
    const absl::StatusOr<ModelConfig> config = ParseJson(json);
    EXPECT_TRUE(config.ok()) << config.status();
    return CanonicalConfigText(*config);
  };
  EXPECT_EQ(text("null"), text("100000"));
  EXPECT_NE(text("null"), text("16"));
  EXPECT_NE(text("17"), text("16"));
}

TEST(ConfigParserTest, RefusesTextThatIsNoConfiguration) {
  for (const char* text : {"", "[]", "null", "\"deepseek_v3\"", "{", "{\"model_type\": 3}",
                           "{\"model_type\": \"olmoe\", \"model_type\": \"olmoe\"}"}) {
    EXPECT_FALSE(ParseModelConfig(text).ok()) << text;
  }
}

// The published numbers of the two largest models of the family, in the form of their files.
constexpr char kKimiK2[] = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "attention_bias": false,
  "aux_loss_alpha": 0.001, "bos_token_id": 163584, "eos_token_id": 163585, "ep_size": 1,
  "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 7168,
  "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 131072,
  "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384,
  "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 64,
  "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64,
  "num_nextn_predict_layers": 0, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0,
                   "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
                   "type": "yarn"},
  "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid",
  "seq_aux": true, "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc",
  "v_head_dim": 128, "vocab_size": 163840})";

TEST(ConfigParserTest, ReadsKimiK2) {
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(kKimiK2);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, Family::kKimiK2);
  EXPECT_EQ(config->gate.num_experts, 384);
  EXPECT_EQ(config->gate.num_groups, 1);
  EXPECT_FLOAT_EQ(config->gate.routed_scaling_factor, 2.827f);
  EXPECT_EQ(config->attention.qk_head_dim, 192);
  EXPECT_EQ(config->attention.rope.pairing, RopePairing::kInterleaved);
  EXPECT_EQ(config->NumDenseSlices(), 9);
  // (0.1 ln 32 + 1)² / sqrt(192)
  EXPECT_NEAR(config->attention.softmax_scale, 0.13086081, 1e-7);
  EXPECT_EQ(config->attention.rope_amplitude, 1.0f);
  const absl::StatusOr<NumericsConfig> numerics = ResolveNumerics(*config, {}, {});
  ASSERT_TRUE(numerics.ok());
  EXPECT_EQ(numerics->span, 4096);
  EXPECT_EQ(numerics->num_combine_groups, 4);
}

TEST(ConfigParserTest, Glm4MoeRotatesHalfAHeadWhereTheConfigDoesNotSay) {
  std::map<std::string, Json> members = GoldenJson("glm4_moe").members();
  ASSERT_EQ(members.erase("partial_rotary_factor"), 1u);
  const absl::StatusOr<ModelConfig> config = ParseJson(Json::Object(members));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->attention.rope.dim, config->attention.qk_head_dim / 2);
}

TEST(ConfigParserTest, AnIntegerWithAnExponentIsNotCalledTheIntegerThatItMustBe) {
  std::string text = GoldenJson("olmoe").ToCanonicalText();
  const std::string field = "\"vocab_size\":";
  text.insert(text.find(field) + field.size(), "3.2e2, \"other\":");
  EXPECT_EQ(ParseModelConfig(text).status().message(),
            "config.json: vocab_size must be an integer, it is 320, a number with a fraction or "
            "exponent");
}

TEST(ConfigParserTest, YarnFollowsTheWidelyUsedRules) {
  const auto amplitude = [](const std::string& scaling) {
    Json json = GoldenJson("qwen3_moe");
    json.Set("rope_scaling", *Json::Parse(scaling, "x"));
    const absl::StatusOr<ModelConfig> config = ParseJson(json);
    EXPECT_TRUE(config.ok()) << config.status();
    return config->attention.rope_amplitude;
  };
  // 0.1 ln 4 + 1
  EXPECT_FLOAT_EQ(amplitude(R"({"type": "yarn", "factor": 4.0})"), 1.1386294f);
  EXPECT_FLOAT_EQ(amplitude(R"({"type": "yarn", "factor": 4.0, "attention_factor": 1.25})"), 1.25f);
  // Only one of the two magnitudes: the paper's value.
  EXPECT_FLOAT_EQ(amplitude(R"({"type": "yarn", "factor": 4.0, "mscale": 0.5})"), 1.1386294f);
  EXPECT_FLOAT_EQ(
      amplitude(R"({"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5})"),
      1.1386294f / 1.0693147f);
  EXPECT_FLOAT_EQ(amplitude(R"({"type": "yarn", "factor": 1.0})"), 1.0f);
}

TEST(GenerationConfigTest, EndIdsMayBeOneSeveralOrNone) {
  EXPECT_THAT(ParseGenerationConfig(R"({"eos_token_id": 3})")->eos_token_ids, ElementsAre(3));
  EXPECT_THAT(ParseGenerationConfig(R"({"eos_token_id": [5, 3, 5]})")->eos_token_ids,
              ElementsAre(3, 5));
  for (const char* text : {"{}", R"({"eos_token_id": null})", R"({"eos_token_id": []})"}) {
    EXPECT_TRUE(ParseGenerationConfig(text)->eos_token_ids.empty());
  }
  const auto defaults = ParseGenerationConfig(
      R"({"do_sample": true, "temperature": 0.6, "top_k": null, "top_p": 0.95, "other": {}})");
  ASSERT_TRUE(defaults.ok());
  EXPECT_EQ(defaults->do_sample, true);
  EXPECT_EQ(defaults->temperature, 0.6);
  EXPECT_EQ(defaults->top_k, std::nullopt);
  EXPECT_EQ(defaults->top_p, 0.95);
}

TEST(GenerationConfigTest, ReadsPenaltyAndMinPAndNamesWhatIsNotApplied) {
  const auto defaults = ParseGenerationConfig(
      R"({"repetition_penalty": 1.05, "min_p": 0.1, "num_beams": 1, "typical_p": 1.0,
          "no_repeat_ngram_size": 3, "suppress_tokens": [], "min_length": null,
          "bad_words_ids": [[5]], "num_beam_groups": 1, "max_length": 20})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->repetition_penalty, 1.05);
  EXPECT_EQ(defaults->min_p, 0.1);
  EXPECT_THAT(defaults->not_applied, ElementsAre("no_repeat_ngram_size 3", "bad_words_ids [[5]]"));
  EXPECT_TRUE(ParseGenerationConfig("{}")->not_applied.empty());
}

TEST(GenerationConfigTest, RefusesAbsurdValuesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"temperature": -1})", "temperature"},
      {R"({"top_p": 1.5})", "top_p"},
      {R"({"top_p": 0})", "top_p"},
      {R"({"top_k": -3})", "top_k"},
      {R"({"min_p": 2})", "min_p"},
      {R"({"repetition_penalty": 0})", "repetition_penalty"},
      {R"({"eos_token_id": "x"})", "eos_token_id"},
      {R"({"eos_token_id": [-1]})", "eos_token_id"},
      {R"({"do_sample": "yes"})", "do_sample"},
  };
  for (const auto& [text, field] : cases) {
    EXPECT_THAT(std::string(ParseGenerationConfig(text).status().message()),
                HasSubstr(absl::StrCat("generation_config.json: ", field)));
  }
}

TEST(FolderSettingsTest, ReadsKnownFieldsAndRefusesOthers) {
  const auto settings = ParseFolderSettings(
      R"({"span": 128, "tokenizer": "bytes", "group_fill": "zero", "attention_sum": null,
          "attention_layout": "striped"})");
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->span, 128);
  EXPECT_EQ(settings->tokenizer, "bytes");
  EXPECT_EQ(settings->group_fill, GroupFill::kZero);
  EXPECT_EQ(settings->attention_layout, "striped");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"spam": 128})", "moebius.json: spam is not a field"},
      {R"({"span": 0})", "span must be between"},
      {R"({"span": "128"})", "span must be an integer"},
      {R"({"group_fill": "one"})", "group_fill must be neg-inf or zero, it is \"one\""},
      {R"({"tokenizer": "bpe"})", "tokenizer is \"bpe\""},
      {R"([])", "must be an object"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(std::string(ParseFolderSettings(text).status().message()), HasSubstr(message));
  }
}

TEST(NumericsTest, FlagsBeatTheFolderWhichBeatsTheDefaults) {
  const ModelConfig config = *ParseJson(GoldenJson("deepseek_v3"));
  FolderSettings settings;
  EXPECT_EQ(ResolveNumerics(config, settings, {})->span, 1024);
  EXPECT_EQ(ResolveNumerics(config, settings, {})->num_combine_groups, 4);
  EXPECT_EQ(ResolveNumerics(config, settings, {})->slice_width, 48);
  settings.span = 64;
  EXPECT_EQ(ResolveNumerics(config, settings, {})->span, 64);
  EXPECT_EQ(ResolveNumerics(config, settings, {})->key_block, 64);
  NumericsOverrides overrides;
  overrides.span = 256;
  EXPECT_EQ(ResolveNumerics(config, settings, overrides)->span, 256);
  EXPECT_EQ(ResolveNumerics(config, settings, overrides)->key_block, 128);
  for (const int32_t span : {0, -1, 31, 48, 129, 192, 1 << 30}) {
    overrides.span = span;
    EXPECT_THAT(std::string(ResolveNumerics(config, settings, overrides).status().message()),
                HasSubstr("--span must be"))
        << span;
  }
  overrides = {};
  overrides.attention_sum = "per-degree";
  EXPECT_EQ(ResolveNumerics(config, settings, overrides)->attention_sum, "per-degree");
  overrides.attention_sum = "per-rank";
  const absl::Status sum = ResolveNumerics(config, settings, overrides).status();
  EXPECT_EQ(sum.message(), "--attention-sum is \"per-rank\", it must be canonical or per-degree");
  EXPECT_TRUE(IsUsageError(sum));
}

TEST(NumericsTest, ALayoutIsOfThePerDegreeSum) {
  const ModelConfig config = *ParseJson(GoldenJson("deepseek_v3"));
  FolderSettings settings;
  NumericsOverrides overrides;
  EXPECT_EQ(ResolveNumerics(config, settings, overrides)->attention_layout, "zigzag");
  overrides.attention_layout = "zigzag";  // the default may be said
  EXPECT_TRUE(ResolveNumerics(config, settings, overrides).ok());
  overrides.attention_layout = "striped";
  const absl::Status flag = ResolveNumerics(config, settings, overrides).status();
  EXPECT_EQ(
      flag.message(),
      "--attention-layout is striped and the attention sum canonical, whose shards follow the "
      "span rule");
  EXPECT_THAT(HintOf(flag), HasSubstr("--attention-sum per-degree"));
  EXPECT_TRUE(IsUsageError(flag));
  overrides.attention_sum = "per-degree";
  EXPECT_EQ(ResolveNumerics(config, settings, overrides)->attention_layout, "striped");
  overrides.attention_layout = "spiral";
  EXPECT_EQ(ResolveNumerics(config, settings, overrides).status().message(),
            "--attention-layout is \"spiral\", it must be zigzag, contiguous or striped");

  settings.attention_sum = "per-degree";
  settings.attention_layout = "contiguous";
  EXPECT_EQ(ResolveNumerics(config, settings, {})->attention_layout, "contiguous");
  settings.attention_sum = std::nullopt;
  const absl::Status folder = ResolveNumerics(config, settings, {}).status();
  EXPECT_THAT(std::string(folder.message()),
              HasSubstr("moebius.json: attention_layout is contiguous"));
  EXPECT_FALSE(IsUsageError(folder));
}

TEST(NumericsTest, ASpanThatCannotBeIsTheFaultOfWhoGaveIt) {
  const ModelConfig config = *ParseJson(GoldenJson("deepseek_v3"));
  FolderSettings settings;
  settings.span = 33;
  const absl::Status folder = ResolveNumerics(config, settings, {}).status();
  EXPECT_EQ(folder.message(), "moebius.json: span must be a multiple of 32, it is 33");
  EXPECT_FALSE(IsUsageError(folder));
  NumericsOverrides overrides;
  overrides.span = 33;
  const absl::Status flag = ResolveNumerics(config, {}, overrides).status();
  EXPECT_EQ(flag.message(), "--span must be a multiple of 32, it is 33");
  EXPECT_TRUE(IsUsageError(flag));
}

TEST(NumericsTest, EveryConstantChangesTheCanonicalText) {
  const NumericsConfig base;
  const std::string text = CanonicalNumericsText(base, 1);
  EXPECT_NE(CanonicalNumericsText(base, 2), text);
  std::vector<NumericsConfig> others(8, base);
  others[0].span = 128;
  others[1].key_block = 64;
  others[2].num_combine_groups = 8;
  others[3].slice_width = 7;
  others[4].group_fill = GroupFill::kZero;
  others[5].attention_sum = "per-degree";
  others[6].dtype = "fp8";
  others[7].numeric_class = "gpu";
  for (const NumericsConfig& other : others) EXPECT_NE(CanonicalNumericsText(other, 1), text);
  // The default layout is not part of the text, so that hashes stay what they were.
  EXPECT_THAT(CanonicalNumericsText(others[5], 1), Not(HasSubstr("layout")));
  // What only one sum has is not part of the other's text.
  EXPECT_THAT(text, Not(HasSubstr("segment")));
  EXPECT_THAT(CanonicalNumericsText(others[5], 1), HasSubstr("\"segment_blocks\":16"));
  NumericsConfig striped = others[5];
  striped.attention_layout = "striped";
  NumericsConfig contiguous = others[5];
  contiguous.attention_layout = "contiguous";
  EXPECT_NE(CanonicalNumericsText(striped, 1), CanonicalNumericsText(others[5], 1));
  EXPECT_NE(CanonicalNumericsText(striped, 1), CanonicalNumericsText(contiguous, 1));
}

}  // namespace
}  // namespace moebius
