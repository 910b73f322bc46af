// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/config_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/model/families/family.h"
#include "moebius/model/field_reader.h"
#include "moebius/model/file.h"
#include "moebius/model/json.h"
#include "moebius/model/quantization.h"

namespace moebius {
namespace {

constexpr int64_t kMaxVocabulary = 1 << 22;
constexpr int64_t kMaxPositions = 1 << 24;  // positions are exact in fp32
constexpr int64_t kMaxTokenId = INT32_MAX;
constexpr size_t kMaxConfigBytes = 4u << 20;

std::string SupportedTypes() {
  std::string names;
  for (const FamilyEntry& entry : FamilyTable()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", entry.model_type);
  }
  return names;
}

const FamilyEntry* FindFamily(absl::string_view model_type) {
  for (const FamilyEntry& entry : FamilyTable()) {
    if (entry.model_type == model_type) return &entry;
  }
  return nullptr;
}

std::string ParseArchitecture(FieldReader& reader, const FamilyEntry& entry) {
  const std::vector<std::string> names = reader.OptionalStrings("architectures");
  if (names.empty()) return std::string(entry.architectures[0]);
  if (names.size() > 1 || std::find(entry.architectures.begin(), entry.architectures.end(),
                                    absl::string_view(names[0])) == entry.architectures.end()) {
    reader.RefuseUnsupported("architectures",
                             absl::StrCat("is ", PrintableName(names[0]), ", model_type ",
                                          entry.model_type, " is run as ", entry.architectures[0]));
  }
  return std::string(names[0]);
}

/// Fields that change what a model computes, whatever its family, and that nothing here computes.
void RefuseActiveFeatures(FieldReader& reader) {
  const std::string activation = reader.OptionalString("hidden_act").value_or("silu");
  if (activation != "silu") {
    reader.RefuseUnsupported("hidden_act", absl::StrCat("is \"", PrintableName(activation),
                                                        "\", only \"silu\" is supported"));
  }
  // Masks, and factors on logits, residuals and scores, that other families have.
  for (const absl::string_view name :
       {"attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "logits_scaling",
        "embedding_multiplier", "residual_multiplier", "attention_multiplier",
        "attention_chunk_size", "index_topk", "mlp_bias", "attention_sink"}) {
    const Json* value = nullptr;
    if (reader.Has(name)) value = reader.Field(name);
    const bool is_off =
        value == nullptr || (value->kind() == Json::Kind::kBoolean && !value->boolean());
    if (!is_off) {
      reader.RefuseUnsupported(name,
                               absl::StrCat("is ", ShortText(*value), ", which is not supported"));
    }
  }
}

/// Whether rows of a prompt see up to themselves or all of it. After the windows.
void ParsePromptMask(FieldReader& reader, ModelConfig& config) {
  const std::optional<bool> causal = reader.OptionalBoolean("is_causal");
  const std::optional<bool> bidirectional = reader.OptionalBoolean("use_bidirectional_attention");
  if (causal.has_value() && bidirectional.has_value() && *causal == *bidirectional) {
    reader.Refuse("use_bidirectional_attention",
                  absl::StrCat("is ", *causal ? "true" : "false", ", and is_causal too"));
  }
  const bool is_bidirectional = bidirectional.value_or(false);
  config.attention.is_causal = causal.value_or(true) && !is_bidirectional;
  if (!config.attention.is_causal && !config.attention.windows.empty()) {
    reader.RefuseUnsupported(is_bidirectional ? "use_bidirectional_attention" : "is_causal",
                             absl::StrCat("is ", is_bidirectional ? "true" : "false",
                                          " and sliding_window is on, which are not supported "
                                          "together"));
  }
}

void ParseTokenIds(FieldReader& reader, ModelConfig& config, absl::string_view source) {
  config.eos_token_ids = reader.OptionalIntegers("eos_token_id", 0, config.vocab_size - 1);
  if (!config.eos_token_ids.empty()) config.eos_source = std::string(source);
  config.bos_token_id = reader.OptionalInteger("bos_token_id", 0, config.vocab_size - 1);
}

// Members of generation_config.json that change answers, and the value that asks for nothing.
struct NeutralSetting {
  const char* name;
  double neutral;
};
constexpr NeutralSetting kNeutralSettings[] = {
    {"typical_p", 1},     {"epsilon_cutoff", 0},       {"eta_cutoff", 0},
    {"num_beams", 1},     {"diversity_penalty", 0},    {"encoder_repetition_penalty", 1},
    {"penalty_alpha", 0}, {"no_repeat_ngram_size", 0}, {"encoder_no_repeat_ngram_size", 0},
    {"min_length", 0},    {"min_new_tokens", 0},       {"guidance_scale", 1}};
constexpr const char* kListSettings[] = {"bad_words_ids",       "force_words_ids",
                                         "forced_bos_token_id", "forced_eos_token_id",
                                         "suppress_tokens",     "begin_suppress_tokens",
                                         "sequence_bias",       "exponential_decay_length_penalty"};

bool IsNeutral(const Json& value, double neutral) {
  switch (value.kind()) {
    case Json::Kind::kNull:
      return true;
    case Json::Kind::kInteger:
      return static_cast<double>(value.integer()) == neutral;
    case Json::Kind::kNumber:
      return value.number() == neutral;
    default:
      return false;
  }
}

bool AsksForNothing(const Json& value) {
  const bool is_empty_list = value.kind() == Json::Kind::kArray && value.elements().empty();
  return value.kind() == Json::Kind::kNull || is_empty_list;
}

std::vector<std::string> SettingsNotApplied(const Json& json) {
  std::vector<std::string> settings;
  const auto add = [&](const char* name, const Json& value) {
    settings.push_back(absl::StrCat(name, " ", ShortText(value)));
  };
  for (const auto& [name, neutral] : kNeutralSettings) {
    const Json* value = json.Find(name);
    if (value != nullptr && !IsNeutral(*value, neutral)) add(name, *value);
  }
  for (const char* name : kListSettings) {
    const Json* value = json.Find(name);
    if (value != nullptr && !AsksForNothing(*value)) add(name, *value);
  }
  return settings;
}

}  // namespace

absl::string_view FamilyName(Family family) {
  for (const FamilyEntry& entry : FamilyTable()) {
    if (entry.family == family) return entry.model_type;
  }
  return "?";
}

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text, absl::string_view source) {
  MOEBIUS_ASSIGN_OR_RETURN(const Json json, Json::Parse(text, source, kMaxConfigBytes));
  FieldReader reader(json, absl::StrCat(source, ": "));
  const std::string model_type = reader.RequiredString("model_type");
  if (!reader.ok()) return reader.status();
  const FamilyEntry* entry = FindFamily(model_type);
  if (entry == nullptr) {
    reader.RefuseUnsupported("model_type", absl::StrCat("is \"", PrintableName(model_type),
                                                        "\", this build runs ", SupportedTypes()));
    return reader.status();
  }
  ModelConfig config;
  config.family = entry->family;
  config.architecture = ParseArchitecture(reader, *entry);
  config.vocab_size = reader.RequiredInteger("vocab_size", 1, kMaxVocabulary);
  config.hidden_size = reader.RequiredInteger("hidden_size", 1, kMaxHiddenSize);
  config.num_layers = reader.RequiredInteger("num_hidden_layers", 1, kMaxLayers);
  config.max_positions = reader.RequiredInteger("max_position_embeddings", 1, kMaxPositions);
  config.tied_head = reader.OptionalBoolean("tie_word_embeddings", false);
  config.quantization = ParseQuantization(reader);
  RefuseActiveFeatures(reader);
  ParseWindows(reader, entry->windows, config);
  ParsePromptMask(reader, config);
  ParseTokenIds(reader, config, source);
  // A refused size would only lead the family's rules astray.
  if (!reader.ok()) return reader.status();
  entry->parse(reader, config);
  if (!reader.ok()) return reader.status();
  return config;
}

absl::StatusOr<GenerationDefaults> ParseGenerationConfig(absl::string_view text,
                                                         absl::string_view source) {
  MOEBIUS_ASSIGN_OR_RETURN(const Json json, Json::Parse(text, source, kMaxConfigBytes));
  FieldReader reader(json, absl::StrCat(source, ": "));
  GenerationDefaults defaults;
  defaults.present = true;
  defaults.do_sample = reader.OptionalBoolean("do_sample");
  defaults.temperature = reader.OptionalNumber("temperature", 0, 100);
  defaults.top_k = reader.OptionalInteger("top_k", 0, INT32_MAX);
  defaults.top_p = reader.OptionalNumber("top_p", 1e-6, 1);
  defaults.min_p = reader.OptionalNumber("min_p", 0, 1);
  defaults.repetition_penalty = reader.OptionalNumber("repetition_penalty", 0.01, 100);
  defaults.not_applied = SettingsNotApplied(json);
  defaults.bos_token_id = reader.OptionalInteger("bos_token_id", 0, kMaxTokenId);
  defaults.eos_token_ids = reader.OptionalIntegers("eos_token_id", 0, kMaxTokenId);
  if (!reader.ok()) return reader.status();
  return defaults;
}

absl::StatusOr<FolderSettings> ParseFolderSettings(absl::string_view text,
                                                   absl::string_view source) {
  MOEBIUS_ASSIGN_OR_RETURN(const Json json, Json::Parse(text, source, kMaxConfigBytes));
  FieldReader reader(json, absl::StrCat(source, ": "));
  reader.RefuseOthers({"span", "group_fill", "attention_sum", "attention_layout", "tokenizer",
                       "tie_missing_head", "allow_zero_matrices"});
  FolderSettings settings;
  settings.present = true;
  if (const auto span = reader.OptionalInteger("span", 1, kMaxPositions)) {
    settings.span = static_cast<int32_t>(*span);
  }
  if (const auto fill = reader.OptionalString("group_fill")) {
    const absl::StatusOr<GroupFill> parsed = ParseGroupFill(*fill);
    if (parsed.ok()) {
      settings.group_fill = *parsed;
    } else {
      reader.Refuse("group_fill", parsed.status().message());
    }
  }
  settings.attention_sum = reader.OptionalString("attention_sum");
  settings.attention_layout = reader.OptionalString("attention_layout");
  settings.tie_missing_head = reader.OptionalBoolean("tie_missing_head", false);
  settings.allow_zero_matrices = reader.OptionalBoolean("allow_zero_matrices", false);
  settings.tokenizer = reader.OptionalString("tokenizer");
  if (settings.tokenizer.has_value() && *settings.tokenizer != "bytes") {
    reader.RefuseUnsupported("tokenizer", absl::StrCat("is \"", PrintableName(*settings.tokenizer),
                                                       "\", only \"bytes\" is supported"));
  }
  if (!reader.ok()) return reader.status();
  return settings;
}

}  // namespace moebius
