// SPDX-License-Identifier: Apache-2.0
#include "tests/support/mini_checkpoint.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/check.h"
#include "moebius/model/config_parser.h"
#include "moebius/model/parameters.h"
#include "moebius/model/quantization.h"
#include "moebius/model/random_checkpoint.h"
#include "moebius/tensor/bf16.h"

namespace moebius {
namespace {

constexpr char kConfig[] = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 32,
  "moe_intermediate_size": 16, "intermediate_size": 64, "num_experts": 4,
  "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 97, "max_position_embeddings": 64,
  "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_scaling": null, "norm_topk_prob": true,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 3
})";

Json ParseOrDie(const std::string& text) {
  absl::StatusOr<Json> json = Json::Parse(text, "mini checkpoint");
  MOEBIUS_CHECK(json.ok());
  return *std::move(json);
}

std::vector<MiniTensor> RandomTensors(const MiniCheckpoint& mini) {
  const std::string text = mini.parse_config ? mini.config.ToCanonicalText() : kConfig;
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
  if (!config.ok()) std::fprintf(stderr, "%s\n", config.status().ToString().c_str());
  MOEBIUS_CHECK(config.ok());
  std::vector<MiniTensor> tensors;
  const bool is_fp8 = mini.dtype == "F8_E4M3";
  for (const Parameter& parameter : ExpectedParameters(*config)) {
    MiniTensor tensor;
    tensor.name = parameter.name;
    tensor.shape = parameter.shape;
    tensor.dtype = parameter.key.part == Part::kCorrectionBias ? "F32" : mini.dtype;
    const DType dtype = tensor.dtype == "F32"                    ? DType::kF32
                        : tensor.dtype == "F16"                  ? DType::kF16
                        : is_fp8 && MayBeFp8(parameter.key.part) ? DType::kF8E4M3
                                                                 : DType::kBF16;
    tensor.dtype = std::string(DTypeName(dtype));
    uint64_t count = 1;
    for (const int64_t size : parameter.shape) count *= static_cast<uint64_t>(size);
    tensor.bytes.resize(count * DTypeBytes(dtype));
    FillRandomElements(
        parameter, dtype, mini.seed, 0, count,
        absl::MakeSpan(reinterpret_cast<uint8_t*>(tensor.bytes.data()), tensor.bytes.size()));
    tensors.push_back(std::move(tensor));
    if (dtype != DType::kF8E4M3) continue;
    MiniTensor scales;
    scales.name = ScaleName(parameter.name);
    scales.dtype = "F32";
    scales.shape = ScaleShape(config->quantization, parameter.shape);
    scales.bytes = EncodeElements(RandomScales(parameter, config->quantization, mini.seed), "F32");
    tensors.push_back(std::move(scales));
  }
  return tensors;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "moebius-XXXXXX").string();
  MOEBIUS_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

MiniCheckpoint::MiniCheckpoint()
    : config(ParseOrDie(kConfig)),
      generation(ParseOrDie(R"({"eos_token_id": 3, "bos_token_id": 1})")) {}

void MiniCheckpoint::Write(const std::string& folder) const {
  std::filesystem::create_directories(folder);
  std::vector<MiniTensor> tensors = RandomTensors(*this);
  if (edit_tensors) edit_tensors(tensors);
  Json weight_map = Json::Object({});
  uint64_t total = 0;
  for (int shard = 0; shard < num_shards; ++shard) {
    const std::string name =
        num_shards == 1 ? std::string("model.safetensors")
                        : absl::StrFormat("model-%05d-of-%05d.safetensors", shard + 1, num_shards);
    std::string header = R"({"__metadata__":{"format":"pt"})";
    std::string data;
    for (size_t i = static_cast<size_t>(shard); i < tensors.size();
         i += static_cast<size_t>(num_shards)) {
      const MiniTensor& tensor = tensors[i];
      std::string shape;
      for (const int64_t size : tensor.shape) {
        absl::StrAppend(&shape, shape.empty() ? "" : ",", size);
      }
      absl::StrAppend(&header, ",", Json::String(tensor.name).ToCanonicalText(), ":{\"dtype\":\"",
                      tensor.dtype, "\",\"shape\":[", shape, "],\"data_offsets\":[", data.size(),
                      ",", data.size() + tensor.bytes.size(), "]}");
      data += tensor.bytes;
      weight_map.Set(tensor.name, Json::String(name));
    }
    header += "}";
    if (edit_header) edit_header(header);
    header.append((8 - header.size() % 8) % 8, ' ');
    WriteFile(folder + "/" + name, SafetensorsBytes(header, data));
    total += data.size();
  }
  if (num_shards > 1) {
    Json metadata = Json::Object({});
    metadata.Set("total_size", Json::LargeInteger(total));
    Json index = Json::Object({});
    index.Set("metadata", std::move(metadata));
    index.Set("weight_map", std::move(weight_map));
    if (edit_index) edit_index(index);
    WriteFile(folder + "/model.safetensors.index.json", index.ToPrettyText());
  }
  WriteFile(folder + "/config.json", config.ToPrettyText());
  if (generation.kind() != Json::Kind::kNull) {
    WriteFile(folder + "/generation_config.json", generation.ToPrettyText());
  }
  if (settings.kind() != Json::Kind::kNull) {
    WriteFile(folder + "/moebius.json", settings.ToPrettyText());
  }
}

std::string EncodeElements(const std::vector<float>& values, const std::string& dtype) {
  std::string bytes;
  for (const float value : values) {
    if (dtype == "F32") {
      bytes.append(reinterpret_cast<const char*>(&value), 4);
      continue;
    }
    uint16_t half = ToBf16(value).bits;
    if (dtype == "F16") {
      // The half whose exact value is wanted; tests use values that have one.
      for (uint32_t candidate = 0; candidate < 0x10000; ++candidate) {
        if (HalfToFloat(static_cast<uint16_t>(candidate)) == value) {
          half = static_cast<uint16_t>(candidate);
          break;
        }
      }
    }
    bytes.append(reinterpret_cast<const char*>(&half), 2);
  }
  return bytes;
}

std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  std::string out;
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(header.size() >> (8 * i)));
  return out + header + data;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.flush();
  MOEBIUS_CHECK(file.good());
}

std::string ReadFileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  MOEBIUS_CHECK(file.good());
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

}  // namespace moebius
