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
#include "moebius/model/json.h"
#include "moebius/model/quantization.h"
#include "moebius/model/safetensors_writer.h"
#include "moebius/tensor/bf16.h"
#include "moebius/tensor/fp8.h"

namespace moebius {
namespace {

constexpr uint64_t kElementsAtOnce = 1u << 16;
constexpr uint64_t kShardBytes = 5'000'000'000;
// What a file system needs beside the weights: headers, configuration, its own tables.
constexpr uint64_t kSpareBytes = 64u << 20;

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

/// Of a weight of deviation 1: the largest of NormalFromBits is then just below kMaxFp8.
constexpr float kFp8Deviation = 128.0f;

void StoreElement(float value, DType dtype, uint8_t* out) {
  if (dtype == DType::kF8E4M3) {
    const uint8_t code = ToFp8(value);
    *out = (code & 0x7F) == 0 ? 1 : code;  // nothing is zero
    return;
  }
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
  if (parameter.key.part == Part::kCorrectionBias) return DType::kF32;
  if (dtype == DType::kF8E4M3 && !MayBeFp8(parameter.key.part)) return DType::kBF16;
  return dtype;
}

QuantizationConfig BlocksOf(const RandomCheckpointOptions& options) {
  if (options.dtype != DType::kF8E4M3) return {};
  return {options.block_rows, options.block_columns};
}

TensorInfo StoredTensor(const Parameter& parameter, DType dtype) {
  TensorInfo tensor;
  tensor.name = parameter.name;
  tensor.dtype = StoredType(parameter, dtype);
  tensor.shape = parameter.shape;
  return tensor;
}

TensorInfo ScaleTensor(const Parameter& parameter, const QuantizationConfig& blocks) {
  TensorInfo tensor;
  tensor.name = ScaleName(parameter.name);
  tensor.dtype = DType::kF32;
  tensor.shape = ScaleShape(blocks, parameter.shape);
  return tensor;
}

uint64_t TensorBytes(const TensorInfo& tensor) {
  return static_cast<uint64_t>(tensor.NumElements()) * DTypeBytes(tensor.dtype);
}

/// The scales included.
uint64_t ParameterBytes(const Parameter& parameter, const RandomCheckpointOptions& options) {
  const TensorInfo tensor = StoredTensor(parameter, options.dtype);
  if (tensor.dtype != DType::kF8E4M3) return TensorBytes(tensor);
  return TensorBytes(tensor) + TensorBytes(ScaleTensor(parameter, BlocksOf(options)));
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
      tensors.push_back(StoredTensor(parameter, options_.dtype));
      if (tensors.back().dtype == DType::kF8E4M3) {
        tensors.push_back(ScaleTensor(parameter, BlocksOf(options_)));
      }
    }
    for (const TensorInfo& tensor : tensors) weight_map_.Set(tensor.name, Json::String(name));
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
    const auto count = static_cast<uint64_t>(StoredTensor(parameter, options_.dtype).NumElements());
    std::vector<uint8_t> bytes;
    for (uint64_t begin = 0; begin < count; begin += kElementsAtOnce) {
      const uint64_t piece = std::min(kElementsAtOnce, count - begin);
      bytes.resize(piece * DTypeBytes(dtype));
      FillRandomElements(parameter, dtype, options_.seed, begin, piece, absl::MakeSpan(bytes));
      MOEBIUS_RETURN_IF_ERROR(Append(bytes.data(), bytes.size(), writer));
    }
    if (dtype != DType::kF8E4M3) return absl::OkStatus();
    const std::vector<float> scales = RandomScales(parameter, BlocksOf(options_), options_.seed);
    return Append(scales.data(), scales.size() * sizeof(float), writer);
  }

  absl::Status Append(const void* data, size_t size_bytes, SafetensorsWriter& writer) {
    MOEBIUS_RETURN_IF_ERROR(writer.Append(data, size_bytes));
    done_ += size_bytes;
    if (on_progress_) on_progress_(done_, total_);
    return absl::OkStatus();
  }

  const std::string& folder_;
  const RandomCheckpointOptions& options_;
  const uint64_t total_;
  const WriteProgress& on_progress_;
  uint64_t done_ = 0;
  Json weight_map_ = Json::Object({});
};

uint64_t TotalBytes(const std::vector<Parameter>& parameters,
                    const RandomCheckpointOptions& options) {
  uint64_t total = 0;
  for (const Parameter& parameter : parameters) total += ParameterBytes(parameter, options);
  return total;
}

absl::Status WriteWeights(const std::string& folder, const RandomCheckpointOptions& options,
                          const std::vector<Parameter>& parameters,
                          const WriteProgress& on_progress) {
  const uint64_t total = TotalBytes(parameters, options);
  ShardWriter shards(folder, options, total, on_progress);
  const int64_t wanted =
      options.num_shards > 0 ? options.num_shards : static_cast<int64_t>(total / kShardBytes + 1);
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
      written += ParameterBytes(parameters[end++], options);
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

void FillRandomElements(const Parameter& parameter, DType dtype, uint64_t seed, uint64_t begin,
                        uint64_t count, absl::Span<uint8_t> out) {
  const uint64_t stream = RandomBits(seed, Hash64(parameter.name.data(), parameter.name.size()));
  const bool is_norm = absl::EndsWith(parameter.name, "norm.weight");
  const bool is_matrix = parameter.shape.size() == 2;
  // A product of rows of size 1 keeps size 1; biases and jitter of norms are a tenth.
  const float deviation =
      is_matrix ? 1.0f / std::sqrt(static_cast<float>(parameter.shape[1])) : 0.1f;
  // Codes of FP8 are as large as they can be; their scales make them small.
  const float scale = dtype == DType::kF8E4M3 ? kFp8Deviation : deviation;
  const float center = is_norm ? 1.0f : 0.0f;
  const size_t element_bytes = DTypeBytes(dtype);
  for (uint64_t i = 0; i < count; ++i) {
    float value = NormalFromBits(RandomBits(stream, begin + i)) * scale + center;
    if (value == 0.0f) value = scale / 65536.0f;
    StoreElement(value, dtype, out.data() + i * element_bytes);
  }
}

std::vector<float> RandomScales(const Parameter& parameter, const QuantizationConfig& quantization,
                                uint64_t seed) {
  const std::string name = ScaleName(parameter.name);
  const uint64_t stream = RandomBits(seed, Hash64(name.data(), name.size()));
  const std::vector<int64_t> shape = ScaleShape(quantization, parameter.shape);
  const float mean = 1.0f / (std::sqrt(static_cast<float>(parameter.shape[1])) * kFp8Deviation);
  std::vector<float> scales(static_cast<size_t>(shape[0] * shape[1]));
  for (size_t i = 0; i < scales.size(); ++i) {
    // Within a quarter of the mean, so that no two blocks are alike.
    const auto part = static_cast<float>(RandomBits(stream, i) & 0xFFFF) / 65536.0f;
    scales[i] = mean * (0.75f + 0.5f * part);
  }
  return scales;
}

absl::Status CheckRandomCheckpoint(const RandomCheckpointOptions& options) {
  return ParseModelConfig(RandomConfigText(options)).status();
}

absl::StatusOr<uint64_t> RandomCheckpointBytes(const RandomCheckpointOptions& options) {
  MOEBIUS_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(RandomConfigText(options)));
  return TotalBytes(ExpectedParameters(config), options);
}

absl::Status WriteRandomCheckpoint(const std::string& folder,
                                   const RandomCheckpointOptions& options,
                                   const WriteProgress& on_progress) {
  const std::string config_text = RandomConfigText(options);
  MOEBIUS_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(config_text));
  const std::vector<Parameter> parameters = ExpectedParameters(config);
  MOEBIUS_RETURN_IF_ERROR(CheckRoom(folder, TotalBytes(parameters, options)));
  MOEBIUS_RETURN_IF_ERROR(MakeFolder(folder));
  MOEBIUS_RETURN_IF_ERROR(WriteWeights(folder, options, parameters, on_progress));
  MOEBIUS_RETURN_IF_ERROR(
      WriteText(absl::StrCat(folder, "/generation_config.json"), RandomGenerationText(options)));
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
