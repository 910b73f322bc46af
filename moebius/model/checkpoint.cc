// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/model/file.h"
#include "moebius/model/model_hash.h"

namespace moebius {
namespace {

constexpr size_t kReadBytes = 1u << 20;

/// Rounds or widens `count` stored elements. Bit operations only: any thread may call it.
void ConvertElements(DType dtype, const uint8_t* stored, size_t count, Bf16* out) {
  switch (dtype) {
    case DType::kBF16:
      std::memcpy(out, stored, count * sizeof(Bf16));
      return;
    case DType::kF16:
      for (size_t i = 0; i < count; ++i) {
        uint16_t half;
        std::memcpy(&half, stored + 2 * i, sizeof(half));
        out[i] = ToBf16(HalfToFloat(half));
      }
      return;
    default:
      for (size_t i = 0; i < count; ++i) {
        float value;
        std::memcpy(&value, stored + 4 * i, sizeof(value));
        out[i] = ToBf16(value);
      }
      return;
  }
}

void ConvertElements(DType dtype, const uint8_t* stored, size_t count, float* out) {
  switch (dtype) {
    case DType::kBF16:
      for (size_t i = 0; i < count; ++i) {
        Bf16 value;
        std::memcpy(&value, stored + 2 * i, sizeof(value));
        out[i] = ToFloat(value);
      }
      return;
    case DType::kF16:
      for (size_t i = 0; i < count; ++i) {
        uint16_t half;
        std::memcpy(&half, stored + 2 * i, sizeof(half));
        out[i] = HalfToFloat(half);
      }
      return;
    default:
      std::memcpy(out, stored, count * sizeof(float));
      return;
  }
}

bool IsZero(Bf16 value) { return (value.bits & 0x7FFF) == 0; }
bool IsZero(float value) { return value == 0.0f; }

template <typename T>
absl::StatusOr<RowBatch<T>> ReadBlock(const TensorDirectory::Entry& entry, int64_t matrix_width,
                                      const MatrixBlock& block) {
  RowBatch<T> out(block.row_end - block.row_begin, block.col_end - block.col_begin);
  MOEBIUS_RETURN_IF_ERROR(
      ReadMatrixBlock(entry, matrix_width, block, [&](int64_t row, const uint8_t* stored) {
        ConvertElements(entry.info->dtype, stored, static_cast<size_t>(out.width()),
                        out.rows().row(row));
      }));
  return out;
}

template <typename T>
bool IsAllZero(const RowBatch<T>& batch) {
  for (int64_t row = 0; row < batch.num_rows(); ++row) {
    for (const T value : batch.rows().span(row)) {
      if (!IsZero(value)) return false;
    }
  }
  return batch.num_rows() * batch.width() > 0;
}

/// Code times scale, rounded to fp32.
RowBatch<float> Dequantise(const Fp8Rows& rows) {
  RowBatch<float> out(rows.codes.num_rows, rows.codes.width);
  for (int64_t row = 0; row < out.num_rows(); ++row) {
    for (int64_t column = 0; column < out.width(); ++column) {
      out.rows().row(row)[column] =
          Fp8ToFloat(rows.codes.row(row)[column]) * rows.scale(row, column);
    }
  }
  return out;
}

absl::Status ZeroMatrix(const TensorDirectory::Entry& entry) {
  return WithHint(
      absl::DataLossError(absl::StrCat(entry.file->base_name(), ": weight matrix ",
                                       entry.info->name, " is all zeros")),
      "an interrupted download leaves such holes: run `moebius model verify` and fetch the "
      "file again, or write {\"allow_zero_matrices\": true} to moebius.json if it is meant");
}

}  // namespace

struct Checkpoint::Source {
  const TensorDirectory::Entry* entry = nullptr;
  int64_t num_rows = 0;
  int64_t width = 0;
  bool is_matrix = false;
  bool keeps_float = false;
  const TensorDirectory::Entry* scales = nullptr;  // set where it is stored in FP8

  StoredFp8 AsFp8(const QuantizationConfig& quantization) const {
    return StoredFp8{*entry, *scales, width, quantization};
  }
  MatrixBlock whole() const { return {0, num_rows, 0, width}; }
};

struct Checkpoint::SliceKeys {
  ParameterKey gate, up, down;
  int64_t begin = 0;  // of the slice: the first row of gate and up, the first column of down
};

absl::StatusOr<std::unique_ptr<const Checkpoint>> Checkpoint::Open(
    const std::string& path, const CheckpointOptions& options) {
  // A shell completes folders with a slash; messages and paths do without.
  const size_t last = path.find_last_not_of('/');
  const std::string folder = last == std::string::npos ? path : path.substr(0, last + 1);
  auto checkpoint = std::unique_ptr<Checkpoint>(new Checkpoint());
  checkpoint->folder_ = folder;
  checkpoint->options_ = options;
  MOEBIUS_ASSIGN_OR_RETURN(checkpoint->config_, ReadFolderConfig(folder, options.config_file));
  MOEBIUS_ASSIGN_OR_RETURN(checkpoint->directory_, TensorDirectory::Open(folder));
  const TensorDirectory& directory = *checkpoint->directory_;
  std::vector<const TensorInfo*> tensors;
  for (const TensorDirectory::Entry& entry : directory.entries()) tensors.push_back(entry.info);
  MatchOptions match;
  match.convert_to_bf16 = options.convert_to_bf16;
  match.reads_as_stored = options.reads_as_stored;
  const FolderSettings& settings = checkpoint->config_.settings;
  match.tie_missing_head = options.tie_missing_head || settings.tie_missing_head;
  if (settings.allow_zero_matrices) checkpoint->options_.zero_matrices = ZeroMatrices::kAllow;
  MOEBIUS_RETURN_IF_ERROR(
      MatchParameters(tensors, match, checkpoint->config_.model, checkpoint->match_));
  const std::vector<Parameter>& parameters = checkpoint->match_.parameters;
  for (size_t i = 0; i < parameters.size(); ++i) checkpoint->index_[parameters[i].key] = i;
  const ModelConfig& config = checkpoint->config_.model;
  if (config.tied_head) {
    checkpoint->index_[{Part::kHead, -1, -1}] = checkpoint->index_.at({Part::kEmbedding, -1, -1});
    MOEBIUS_RETURN_IF_ERROR(checkpoint->ValidateTiedCopy());
  }
  MOEBIUS_ASSIGN_OR_RETURN(checkpoint->numerics_,
                           ResolveNumerics(config, checkpoint->config_.settings, options.numerics));
  MOEBIUS_ASSIGN_OR_RETURN(checkpoint->model_hash_, HashModel(config, parameters, directory));
  const auto is_fp8 = [](const Parameter& parameter) { return parameter.is_fp8(); };
  if (std::any_of(parameters.begin(), parameters.end(), is_fp8)) {
    checkpoint->numerics_.dtype = "fp8";
  }
  checkpoint->config_hash_ = HashNumerics(checkpoint->numerics_, checkpoint->model_hash_);
  return checkpoint;
}

// A stored lm_head.weight beside a tied head must be the embedding's copy; a head of its own would
// be lost silently.
absl::Status Checkpoint::ValidateTiedCopy() const {
  const TensorDirectory::Entry* head = directory_->Find("lm_head.weight");
  if (head == nullptr) return absl::OkStatus();
  const TensorDirectory::Entry* embedding = directory_->Find("model.embed_tokens.weight");
  bool is_equal = head->info->size_bytes == embedding->info->size_bytes &&
                  head->info->dtype == embedding->info->dtype;
  std::vector<uint8_t> left(kReadBytes);
  std::vector<uint8_t> right(kReadBytes);
  for (uint64_t offset = 0; is_equal && offset < head->info->size_bytes; offset += kReadBytes) {
    const size_t count =
        static_cast<size_t>(std::min<uint64_t>(kReadBytes, head->info->size_bytes - offset));
    MOEBIUS_RETURN_IF_ERROR(
        head->file->Read(*head->info, offset, absl::MakeSpan(left.data(), count)));
    MOEBIUS_RETURN_IF_ERROR(
        embedding->file->Read(*embedding->info, offset, absl::MakeSpan(right.data(), count)));
    is_equal = std::memcmp(left.data(), right.data(), count) == 0;
  }
  if (is_equal) return absl::OkStatus();
  return WithHint(absl::InvalidArgumentError(
                      "tie_word_embeddings=true, but lm_head.weight is not the embedding"),
                  "set tie_word_embeddings to false in config.json if the head is its own");
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Checkpoint::MakeTokenizer() const {
  if (config_.settings.tokenizer == "bytes") {
    if (config_.model.vocab_size < 256) {
      return absl::InvalidArgumentError(
          absl::StrCat("moebius.json: tokenizer \"bytes\" needs a vocabulary of at least 256, "
                       "config.json: vocab_size is ",
                       config_.model.vocab_size));
    }
    return MakeByteTokenizer(config_.model);
  }
  return WithHint(
      absl::UnimplementedError(absl::StrCat(folder_, ": has no tokenizer that this build reads")),
      "give token ids (--prompt-ids), or write {\"tokenizer\": \"bytes\"} to the "
      "folder's moebius.json if ids 0 to 255 are bytes");
}

bool Checkpoint::Has(const ParameterKey& key) const { return index_.count(key) > 0; }

Checkpoint::Source Checkpoint::Locate(const ParameterKey& key) const {
  const auto found = index_.find(key);
  MOEBIUS_CHECK(found != index_.end());
  const Parameter& parameter = match_.parameters[found->second];
  Source source;
  source.entry = directory_->Find(parameter.name);
  source.is_matrix = parameter.shape.size() == 2;
  source.num_rows = source.is_matrix ? parameter.shape[0] : 1;
  source.width = parameter.shape.back();
  source.keeps_float = parameter.keeps_float;
  if (parameter.is_fp8()) source.scales = directory_->Find(parameter.scale_name);
  return source;
}

absl::StatusOr<WeightMatrix> Checkpoint::LoadBlock(const ParameterKey& key,
                                                   const MatrixBlock& block) const {
  const Source source = Locate(key);
  const bool refuses_zeros = source.is_matrix && options_.zero_matrices == ZeroMatrices::kRefuse;
  if (source.scales != nullptr) {
    MOEBIUS_ASSIGN_OR_RETURN(WeightMatrix out,
                             ReadFp8Block(source.AsFp8(config_.model.quantization), block));
    if (refuses_zeros && IsAllZero(out.rows().fp8)) return ZeroMatrix(*source.entry);
    return out;
  }
  MOEBIUS_CHECK(!source.keeps_float || source.entry->info->dtype == DType::kBF16);
  MOEBIUS_CHECK(!options_.reads_as_stored || source.entry->info->dtype == DType::kBF16 ||
                options_.convert_to_bf16);
  MOEBIUS_ASSIGN_OR_RETURN(RowBatch<Bf16> out, ReadBlock<Bf16>(*source.entry, source.width, block));
  if (refuses_zeros && IsAllZero(out)) return ZeroMatrix(*source.entry);
  return WeightMatrix(std::move(out));
}

absl::StatusOr<WeightMatrix> Checkpoint::LoadWeights(const ParameterKey& key) const {
  return LoadBlock(key, Locate(key).whole());
}

absl::StatusOr<RowBatch<Bf16>> Checkpoint::LoadBf16(const ParameterKey& key) const {
  const Source source = Locate(key);
  MOEBIUS_CHECK(source.scales == nullptr);
  MOEBIUS_ASSIGN_OR_RETURN(WeightMatrix out, LoadBlock(key, source.whole()));
  return out.TakeBf16();
}

absl::StatusOr<RowBatch<float>> Checkpoint::LoadFloat(const ParameterKey& key) const {
  const Source source = Locate(key);
  if (source.scales != nullptr) {
    MOEBIUS_ASSIGN_OR_RETURN(const WeightMatrix weights, LoadBlock(key, source.whole()));
    return Dequantise(weights.rows().fp8);
  }
  MOEBIUS_ASSIGN_OR_RETURN(RowBatch<float> out,
                           ReadBlock<float>(*source.entry, source.width, source.whole()));
  if (source.is_matrix && options_.zero_matrices == ZeroMatrices::kRefuse && IsAllZero(out)) {
    return ZeroMatrix(*source.entry);
  }
  return out;
}

int64_t Checkpoint::NumSlices(LayerId layer) const {
  const ModelConfig& config = config_.model;
  return config.IsMoeLayer(layer.value()) ? config.num_shared_experts : config.NumDenseSlices();
}

int64_t Checkpoint::SliceWidth(LayerId layer, ExpertId id) const {
  const ModelConfig& config = config_.model;
  const int64_t slice = id.value() - int64_t{config.gate.num_experts};
  MOEBIUS_CHECK_LT(slice, NumSlices(layer));
  if (config.IsMoeLayer(layer.value())) {
    MOEBIUS_CHECK_GE(id.value(), 0);
    return config.moe_intermediate_size;
  }
  MOEBIUS_CHECK_GE(slice, int64_t{0});
  return std::min(config.moe_intermediate_size,
                  config.dense_intermediate_size - slice * config.moe_intermediate_size);
}

Checkpoint::SliceKeys Checkpoint::KeysOf(LayerId layer, ExpertId id) const {
  const ModelConfig& config = config_.model;
  const bool is_routed = id.value() < config.gate.num_experts;
  const bool is_moe = config.IsMoeLayer(layer.value());
  const auto key = [&](Part routed, Part shared, Part dense) {
    return ParameterKey{is_routed ? routed : (is_moe ? shared : dense), layer.value(),
                        is_routed ? id.value() : -1};
  };
  SliceKeys keys;
  keys.gate = key(Part::kExpertGate, Part::kSharedGate, Part::kDenseGate);
  keys.up = key(Part::kExpertUp, Part::kSharedUp, Part::kDenseUp);
  keys.down = key(Part::kExpertDown, Part::kSharedDown, Part::kDenseDown);
  if (!is_routed) {
    keys.begin = (id.value() - int64_t{config.gate.num_experts}) * config.moe_intermediate_size;
  }
  return keys;
}

absl::StatusOr<ExpertWeights> Checkpoint::ExpertSlice(LayerId layer, ExpertId id) const {
  const int64_t hidden = config_.model.hidden_size;
  const SliceKeys keys = KeysOf(layer, id);
  const int64_t end = keys.begin + SliceWidth(layer, id);
  ExpertWeights weights;
  MOEBIUS_ASSIGN_OR_RETURN(weights.gate, LoadBlock(keys.gate, {keys.begin, end, 0, hidden}));
  MOEBIUS_ASSIGN_OR_RETURN(weights.up, LoadBlock(keys.up, {keys.begin, end, 0, hidden}));
  MOEBIUS_ASSIGN_OR_RETURN(weights.down, LoadBlock(keys.down, {0, hidden, keys.begin, end}));
  return weights;
}

Checkpoint::SliceBlocks Checkpoint::BlocksOf(LayerId layer, ExpertId id) const {
  const SliceKeys keys = KeysOf(layer, id);
  SliceBlocks found{BlocksOf(keys.gate), BlocksOf(keys.down)};
  if (found.gate_up.has_value()) {
    found.gate_up->row_offset = keys.begin % found.gate_up->block_rows;
  }
  if (found.down.has_value()) found.down->column_offset = keys.begin % found.down->block_columns;
  return found;
}

std::optional<Fp8Rows> Checkpoint::BlocksOf(const ParameterKey& key) const {
  if (Locate(key).scales == nullptr) return std::nullopt;
  Fp8Rows blocks;
  blocks.block_rows = config_.model.quantization.block_rows;
  blocks.block_columns = config_.model.quantization.block_columns;
  return blocks;
}

}  // namespace moebius
