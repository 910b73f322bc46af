// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/random_checkpoint.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/error.h"
#include "moebius/base/hash.h"
#include "moebius/base/random.h"
#include "moebius/base/status.h"
#include "moebius/model/config_parser.h"
#include "moebius/model/families/family.h"
#include "moebius/model/json.h"
#include "moebius/model/safetensors_writer.h"
#include "moebius/tensor/bf16.h"

namespace moebius {
namespace {

constexpr uint64_t kElementsAtOnce = 1u << 16;
constexpr uint64_t kShardBytes = 5'000'000'000;
// What a file system needs beside the weights: headers, configuration, its own tables.
constexpr uint64_t kSpareBytes = 64u << 20;

int64_t Or(int64_t value, int64_t otherwise) { return value > 0 ? value : otherwise; }

bool IsDeepseekLike(Family family) {
  return family == Family::kDeepseekV3 || family == Family::kKimiK2;
}

bool HasSharedExperts(Family family) {
  return IsDeepseekLike(family) || family == Family::kGlm4Moe;
}

absl::string_view DTypeText(DType dtype) {
  return dtype == DType::kF32 ? "float32" : dtype == DType::kF16 ? "float16" : "bfloat16";
}

void AddAttentionFields(const RandomCheckpointOptions& options, Json& config) {
  const int64_t heads = Or(options.num_heads, 4);
  const int64_t head_dim = Or(options.head_dim, 16);
  config.Set("num_attention_heads", Json::Integer(heads));
  if (IsDeepseekLike(options.family)) {
    config.Set("num_key_value_heads", Json::Integer(heads));
    config.Set("q_lora_rank", Json::Integer(Or(options.q_lora_rank, 2 * head_dim)));
    config.Set("kv_lora_rank", Json::Integer(Or(options.kv_lora_rank, 2 * head_dim)));
    config.Set("qk_nope_head_dim", Json::Integer(head_dim));
    const int64_t half = std::max<int64_t>(2, head_dim / 4 * 2);
    config.Set("qk_rope_head_dim", Json::Integer(Or(options.rope_dim, half)));
    config.Set("v_head_dim", Json::Integer(head_dim));
    return;
  }
  const bool one_to_one = options.family == Family::kOlmoe;
  config.Set("num_key_value_heads",
             Json::Integer(Or(options.num_kv_heads, one_to_one || heads % 2 != 0 ? heads : 2)));
  config.Set("head_dim", Json::Integer(head_dim));
  if (options.family == Family::kGlm4Moe) {
    config.Set("attention_bias", Json::Boolean(true));
    config.Set("partial_rotary_factor", Json::Number(0.5));
    config.Set("use_qk_norm", Json::Boolean(true));
  }
}

void AddExpertFields(const RandomCheckpointOptions& options, Json& config) {
  const Family family = options.family;
  const int64_t layers = Or(options.num_layers, 2);
  const int64_t width = Or(options.moe_intermediate_size, 32);
  const int64_t dense_width = Or(options.dense_intermediate_size, width * 5 / 2);
  const Json experts = Json::Integer(Or(options.num_experts, 8));
  config.Set("num_experts_per_tok", Json::Integer(Or(options.top_k, 2)));
  int64_t dense_layers = options.num_dense_layers;
  if (dense_layers < 0) dense_layers = layers > 1 ? 1 : 0;
  if (HasSharedExperts(family)) {
    config.Set("n_routed_experts", experts);
    config.Set("n_group", Json::Integer(Or(options.num_groups, 1)));
    config.Set("topk_group", Json::Integer(Or(options.num_kept_groups, 1)));
    const int64_t shared = options.num_shared_experts;
    config.Set("n_shared_experts", Json::Integer(shared < 0 ? 1 : shared));
    config.Set("first_k_dense_replace", Json::Integer(dense_layers));
    config.Set("routed_scaling_factor", Json::Number(IsDeepseekLike(family) ? 2.5 : 1.5));
    config.Set("norm_topk_prob", Json::Boolean(true));
    if (IsDeepseekLike(family)) {
      config.Set("scoring_func", Json::String("sigmoid"));
      config.Set("topk_method", Json::String("noaux_tc"));
    }
  } else if (family == Family::kQwen3Moe) {
    config.Set("num_experts", experts);
    config.Set("norm_topk_prob", Json::Boolean(true));
    config.Set("decoder_sparse_step", Json::Integer(1));
    std::vector<Json> dense;
    // As many as were asked for, from the second layer on; none by default.
    for (int64_t layer = 1; layer <= options.num_dense_layers && layer < layers; ++layer) {
      dense.push_back(Json::Integer(layer));
    }
    config.Set("mlp_only_layers", Json::Array(std::move(dense)));
  } else {
    config.Set(family == Family::kMixtral ? "num_local_experts" : "num_experts", experts);
    if (family == Family::kOlmoe) config.Set("norm_topk_prob", Json::Boolean(false));
    config.Set("intermediate_size", Json::Integer(width));
    return;
  }
  config.Set("moe_intermediate_size", Json::Integer(width));
  config.Set("intermediate_size", Json::Integer(dense_width));
}

Json TokenIdFields(int64_t vocab_size) {
  Json ids = Json::Object({});
  // Above the bytes where there is room.
  const int64_t first = vocab_size > 258 ? 256 : 0;
  ids.Set("bos_token_id", Json::Integer(std::min(first, vocab_size - 1)));
  ids.Set("eos_token_id", Json::Integer(std::min(first + 1, vocab_size - 1)));
  return ids;
}

/// Roughly normal with deviation 1: four uniforms of 16 bits. Values k/65536 - 2 are exact in fp32.
float NormalFromBits(uint64_t bits) {
  const uint64_t sum =
      (bits & 0xFFFF) + ((bits >> 16) & 0xFFFF) + ((bits >> 32) & 0xFFFF) + (bits >> 48);
  return (static_cast<float>(sum) / 65536.0f - 2.0f) * 1.7320508f;
}

/// fp32 to IEEE half for normal half values; what is smaller than 2^-14 becomes 2^-14, so that
/// nothing is zero.
uint16_t ToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const int32_t exponent = static_cast<int32_t>((bits >> 23) & 0xFF) - 112;
  if (exponent < 1) return static_cast<uint16_t>(sign | 0x0400);
  return static_cast<uint16_t>(sign | (exponent << 10) | ((bits >> 13) & 0x3FF));
}

void StoreElement(float value, DType dtype, uint8_t* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, &value, 4);
    return;
  }
  const uint16_t half = dtype == DType::kF16 ? ToHalf(value) : ToBf16(value).bits;
  std::memcpy(out, &half, 2);
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !written) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

// Of the file system that `folder` is or will be in; nothing where it does not say.
std::optional<uint64_t> FreeBytes(const std::string& folder) {
  struct statvfs facts = {};
  std::string place = folder;
  if (statvfs(place.c_str(), &facts) != 0) {
    const size_t slash = place.find_last_of('/');
    place = slash == std::string::npos ? "." : place.substr(0, std::max<size_t>(1, slash));
    if (statvfs(place.c_str(), &facts) != 0) return std::nullopt;
  }
  return uint64_t{facts.f_bavail} * facts.f_frsize;
}

absl::Status CheckRoom(const std::string& folder, uint64_t weight_bytes) {
  const std::optional<uint64_t> free = FreeBytes(folder);
  if (!free.has_value() || *free >= weight_bytes + kSpareBytes) return absl::OkStatus();
  return WithHint(
      absl::ResourceExhaustedError(absl::StrCat(folder, ": the weights take ", weight_bytes,
                                                " bytes, the file system has ", *free, " left")),
      "make fewer layers, or give a folder on another file system");
}

absl::Status MakeFolder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(absl::StrCat(folder, ": ", std::strerror(errno)));
  }
  struct stat facts = {};
  if (stat(absl::StrCat(folder, "/config.json").c_str(), &facts) == 0) {
    return absl::AlreadyExistsError(absl::StrCat(folder, ": has a config.json already"));
  }
  return absl::OkStatus();
}

DType StoredType(const Parameter& parameter, DType dtype) {
  return parameter.key.part == Part::kCorrectionBias ? DType::kF32 : dtype;
}

uint64_t ParameterBytes(const Parameter& parameter, DType dtype) {
  uint64_t elements = 1;
  for (const int64_t size : parameter.shape) elements *= static_cast<uint64_t>(size);
  return elements * DTypeBytes(StoredType(parameter, dtype));
}

/// Writes one shard and adds its tensors to the weight map.
class ShardWriter {
 public:
  ShardWriter(const std::string& folder, const RandomCheckpointOptions& options, uint64_t total,
              const WriteProgress& on_progress)
      : folder_(folder), options_(options), total_(total), on_progress_(on_progress) {}

  absl::Status Write(const std::string& name, absl::Span<const Parameter> parameters) {
    std::vector<TensorInfo> tensors;
    for (const Parameter& parameter : parameters) {
      TensorInfo tensor;
      tensor.name = parameter.name;
      tensor.dtype = StoredType(parameter, options_.dtype);
      tensor.shape = parameter.shape;
      tensors.push_back(std::move(tensor));
      weight_map_.Set(parameter.name, Json::String(name));
    }
    MOEBIUS_ASSIGN_OR_RETURN(auto writer,
                             SafetensorsWriter::Create(absl::StrCat(folder_, "/", name), tensors));
    for (const Parameter& parameter : parameters) {
      MOEBIUS_RETURN_IF_ERROR(WriteParameter(parameter, *writer));
    }
    return writer->Finish();
  }

  std::string IndexText() const {
    Json metadata = Json::Object({});
    metadata.Set("total_size", Json::LargeInteger(total_));
    Json index = Json::Object({});
    index.Set("metadata", std::move(metadata));
    index.Set("weight_map", weight_map_);
    return index.ToPrettyText() + "\n";
  }

 private:
  absl::Status WriteParameter(const Parameter& parameter, SafetensorsWriter& writer) {
    const DType dtype = StoredType(parameter, options_.dtype);
    const uint64_t count = ParameterBytes(parameter, options_.dtype) / DTypeBytes(dtype);
    std::vector<uint8_t> bytes;
    for (uint64_t begin = 0; begin < count; begin += kElementsAtOnce) {
      const uint64_t piece = std::min(kElementsAtOnce, count - begin);
      bytes.resize(piece * DTypeBytes(dtype));
      FillRandomElements(parameter, dtype, options_.seed, begin, piece, absl::MakeSpan(bytes));
      MOEBIUS_RETURN_IF_ERROR(writer.Append(bytes.data(), bytes.size()));
      done_ += bytes.size();
      if (on_progress_) on_progress_(done_, total_);
    }
    return absl::OkStatus();
  }

  const std::string& folder_;
  const RandomCheckpointOptions& options_;
  const uint64_t total_;
  const WriteProgress& on_progress_;
  uint64_t done_ = 0;
  Json weight_map_ = Json::Object({});
};

uint64_t TotalBytes(const std::vector<Parameter>& parameters, DType dtype) {
  uint64_t total = 0;
  for (const Parameter& parameter : parameters) total += ParameterBytes(parameter, dtype);
  return total;
}

absl::Status WriteWeights(const std::string& folder, const RandomCheckpointOptions& options,
                          const std::vector<Parameter>& parameters,
                          const WriteProgress& on_progress) {
  const uint64_t total = TotalBytes(parameters, options.dtype);
  ShardWriter shards(folder, options, total, on_progress);
  const int64_t wanted = Or(options.num_shards, static_cast<int64_t>(total / kShardBytes + 1));
  if (wanted <= 1) return shards.Write("model.safetensors", parameters);
  // Contiguous runs of about equal size; every shard gets at least one tensor.
  const size_t num_shards = std::min(static_cast<size_t>(wanted), parameters.size());
  size_t begin = 0;
  uint64_t written = 0;
  for (size_t shard = 0; shard < num_shards; ++shard) {
    const uint64_t target = total * (shard + 1) / num_shards;
    const size_t last_allowed = parameters.size() - (num_shards - shard - 1);
    size_t end = begin;
    while (end < last_allowed && (end == begin || written < target)) {
      written += ParameterBytes(parameters[end++], options.dtype);
    }
    if (shard + 1 == num_shards) end = parameters.size();
    MOEBIUS_RETURN_IF_ERROR(
        shards.Write(absl::StrFormat("model-%05d-of-%05d.safetensors", shard + 1, num_shards),
                     absl::MakeConstSpan(parameters).subspan(begin, end - begin)));
    begin = end;
  }
  return WriteText(absl::StrCat(folder, "/model.safetensors.index.json"), shards.IndexText());
}

}  // namespace

std::string RandomConfigText(const RandomCheckpointOptions& options) {
  Json config = Json::Object({});
  for (const FamilyEntry& entry : FamilyTable()) {
    if (entry.family != options.family) continue;
    config.Set("model_type", Json::String(entry.model_type));
    config.Set("architectures", Json::Array({Json::String(entry.architectures[0])}));
  }
  const int64_t vocab_size = Or(options.vocab_size, 320);
  config.Set("vocab_size", Json::Integer(vocab_size));
  config.Set("hidden_size", Json::Integer(Or(options.hidden_size, 64)));
  config.Set("num_hidden_layers", Json::Integer(Or(options.num_layers, 2)));
  config.Set("max_position_embeddings", Json::Integer(Or(options.max_positions, 512)));
  config.Set("hidden_act", Json::String("silu"));
  config.Set("rms_norm_eps", Json::Number(options.rms_norm_eps));
  config.Set("rope_theta", Json::Number(options.rope_theta));
  config.Set("tie_word_embeddings", Json::Boolean(options.tied_head));
  config.Set("torch_dtype", Json::String(DTypeText(options.dtype)));
  const Json token_id_fields = TokenIdFields(vocab_size);
  for (const auto& [key, value] : token_id_fields.members()) config.Set(key, value);
  AddAttentionFields(options, config);
  AddExpertFields(options, config);
  return config.ToPrettyText() + "\n";
}

void FillRandomElements(const Parameter& parameter, DType dtype, uint64_t seed, uint64_t begin,
                        uint64_t count, absl::Span<uint8_t> out) {
  const uint64_t stream = RandomBits(seed, Hash64(parameter.name.data(), parameter.name.size()));
  const bool is_norm = absl::EndsWith(parameter.name, "norm.weight");
  const bool is_matrix = parameter.shape.size() == 2;
  // A product of rows of size 1 keeps size 1; biases and jitter of norms are a tenth.
  const float scale = is_matrix ? 1.0f / std::sqrt(static_cast<float>(parameter.shape[1])) : 0.1f;
  const float center = is_norm ? 1.0f : 0.0f;
  const size_t element_bytes = DTypeBytes(dtype);
  for (uint64_t i = 0; i < count; ++i) {
    float value = NormalFromBits(RandomBits(stream, begin + i)) * scale + center;
    if (value == 0.0f) value = scale / 65536.0f;
    StoreElement(value, dtype, out.data() + i * element_bytes);
  }
}

absl::Status CheckRandomCheckpoint(const RandomCheckpointOptions& options) {
  return ParseModelConfig(RandomConfigText(options)).status();
}

absl::StatusOr<uint64_t> RandomCheckpointBytes(const RandomCheckpointOptions& options) {
  MOEBIUS_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(RandomConfigText(options)));
  return TotalBytes(ExpectedParameters(config), options.dtype);
}

absl::Status WriteRandomCheckpoint(const std::string& folder,
                                   const RandomCheckpointOptions& options,
                                   const WriteProgress& on_progress) {
  const std::string config_text = RandomConfigText(options);
  MOEBIUS_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(config_text));
  const std::vector<Parameter> parameters = ExpectedParameters(config);
  MOEBIUS_RETURN_IF_ERROR(CheckRoom(folder, TotalBytes(parameters, options.dtype)));
  MOEBIUS_RETURN_IF_ERROR(MakeFolder(folder));
  MOEBIUS_RETURN_IF_ERROR(WriteWeights(folder, options, parameters, on_progress));
  MOEBIUS_RETURN_IF_ERROR(WriteText(absl::StrCat(folder, "/generation_config.json"),
                                    TokenIdFields(config.vocab_size).ToPrettyText() + "\n"));
  if (options.byte_tokenizer && config.vocab_size >= 256) {
    Json settings = Json::Object({});
    if (options.span > 0) settings.Set("span", Json::Integer(options.span));
    settings.Set("tokenizer", Json::String("bytes"));
    MOEBIUS_RETURN_IF_ERROR(
        WriteText(absl::StrCat(folder, "/moebius.json"), settings.ToPrettyText() + "\n"));
  }
  // Last: a folder with a config.json is complete.
  return WriteText(absl::StrCat(folder, "/config.json"), config_text);
}

}  // namespace moebius
