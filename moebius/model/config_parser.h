// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "moebius/model/model_config.h"

namespace moebius {

/// What generation_config.json suggests for sampling; absent fields were absent (or null).
struct GenerationDefaults {
  bool present = false;  // the file exists
  std::optional<bool> do_sample;
  std::optional<double> temperature;         // >= 0
  std::optional<int64_t> top_k;              // >= 0; 0 is no limit
  std::optional<double> top_p;               // (0, 1]
  std::optional<double> min_p;               // [0, 1]
  std::optional<double> repetition_penalty;  // [0.01, 100]
  /// Members that ask for something this build does not do, as "no_repeat_ngram_size 3": told to
  /// whoever runs the model, since answers would be others with it.
  std::vector<std::string> not_applied;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;  // ascending, distinct; empty when absent
};

/// Parses config.json in either form that public checkpoints carry (rope_theta and rope_scaling, or
/// rope_parameters). Pure; `source` starts every message. null means absent for optional fields.
/// UNIMPLEMENTED for what this build does not run (an unknown model_type or quant_method, a
/// sliding_window of a family without windows, …), INVALID_ARGUMENT for what is absent, of a wrong
/// type, or absurd; both with the field's name.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text,
                                             absl::string_view source = "config.json");

absl::StatusOr<GenerationDefaults> ParseGenerationConfig(
    absl::string_view text, absl::string_view source = "generation_config.json");

/// What moebius.json may say. Every field is optional; unknown fields are refused.
struct FolderSettings {
  bool present = false;
  std::optional<int32_t> span;
  std::optional<GroupFill> group_fill;
  std::optional<std::string> attention_sum;
  std::optional<std::string> attention_layout;
  std::optional<std::string> tokenizer;  // "bytes"
  bool tie_missing_head = false;         // take the embedding where lm_head.weight is missing
  bool allow_zero_matrices = false;      // load weight matrices of zeros
};

absl::StatusOr<FolderSettings> ParseFolderSettings(absl::string_view text,
                                                   absl::string_view source = "moebius.json");

/// What the configuration files of a folder say.
struct FolderConfig {
  ModelConfig model;  // eos ids: generation_config.json's where it has some, else config.json's
  GenerationDefaults generation;
  FolderSettings settings;
};

/// Reads config.json (or `config_file` instead, a path), generation_config.json and moebius.json.
/// NOT_FOUND explains whether the folder or the file is missing.
absl::StatusOr<FolderConfig> ReadFolderConfig(const std::string& folder,
                                              const std::string& config_file = "");

/// Reads a text file of at most `max_bytes`. A dangling link is explained.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes = 16u << 20);

/// "deepseek_v3", "kimi_k2", …
absl::string_view FamilyName(Family family);

/// "neg-inf" or "zero"; the message of a refusal continues a field's name.
absl::StatusOr<GroupFill> ParseGroupFill(absl::string_view text);

/// The configuration as canonical JSON: every fact that computation needs, none of the spelling of
/// the file that it came from. Equal configurations give equal text in both forms.
std::string CanonicalConfigText(const ModelConfig& config);

/// NUMERICS's constants: command-line values, else moebius.json's, else the defaults (span 1024, or
/// 4096 for MLA models of at least 64 query heads; key_block min(128, span)).
struct NumericsOverrides {
  std::optional<int32_t> span;
  std::optional<GroupFill> group_fill;
  std::optional<std::string> attention_sum;
  std::optional<std::string> attention_layout;
};
absl::StatusOr<NumericsConfig> ResolveNumerics(const ModelConfig& config,
                                               const FolderSettings& settings,
                                               const NumericsOverrides& overrides);

/// Key blocks of each rank in a segment of the per-degree sum (attention/session_spans.h).
inline constexpr int32_t kSegmentBlocks = 16;

/// Canonical JSON of the constants together with the model's hash; its XXH3 is the config hash.
std::string CanonicalNumericsText(const NumericsConfig& numerics, uint64_t model_hash);

}  // namespace moebius
