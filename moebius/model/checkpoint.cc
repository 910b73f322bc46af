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

/// A rectangle of a matrix in a file.
struct Block {
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t col_begin = 0;
  int64_t col_end = 0;
};

/// Reads whole rows in pieces of about a MiB and keeps the block's columns.
template <typename T>
absl::StatusOr<RowBatch<T>> ReadBlock(const TensorDirectory::Entry& entry, int64_t matrix_width,
                                      const Block& block) {
  const size_t element_bytes = DTypeBytes(entry.info->dtype);
  const size_t row_bytes = static_cast<size_t>(matrix_width) * element_bytes;
  const int64_t width = block.col_end - block.col_begin;
  const int64_t rows_at_once =
      std::max<int64_t>(1, static_cast<int64_t>(kReadBytes / std::max<size_t>(row_bytes, 1)));
  RowBatch<T> out(block.row_end - block.row_begin, width);
  std::vector<uint8_t> bytes;
  for (int64_t row = block.row_begin; row < block.row_end; row += rows_at_once) {
    const int64_t count = std::min(rows_at_once, block.row_end - row);
    bytes.resize(static_cast<size_t>(count) * row_bytes);
    MOEBIUS_RETURN_IF_ERROR(entry.file->Read(*entry.info, static_cast<uint64_t>(row) * row_bytes,
                                             absl::MakeSpan(bytes)));
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t* const stored = bytes.data() + static_cast<size_t>(i) * row_bytes +
                                    static_cast<size_t>(block.col_begin) * element_bytes;
      ConvertElements(entry.info->dtype, stored, static_cast<size_t>(width),
                      out.rows().row(row - block.row_begin + i));
    }
  }
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
  return source;
}

absl::StatusOr<RowBatch<Bf16>> Checkpoint::LoadBlock(const ParameterKey& key, int64_t row_begin,
                                                     int64_t row_end, int64_t col_begin,
                                                     int64_t col_end) const {
  const Source source = Locate(key);
  MOEBIUS_CHECK(!source.keeps_float || source.entry->info->dtype == DType::kBF16);
  MOEBIUS_CHECK(!options_.reads_as_stored || source.entry->info->dtype == DType::kBF16 ||
                options_.convert_to_bf16);
  MOEBIUS_ASSIGN_OR_RETURN(
      RowBatch<Bf16> out,
      ReadBlock<Bf16>(*source.entry, source.width, {row_begin, row_end, col_begin, col_end}));
  if (source.is_matrix && options_.zero_matrices == ZeroMatrices::kRefuse && IsAllZero(out)) {
    return ZeroMatrix(*source.entry);
  }
  return out;
}

absl::StatusOr<RowBatch<Bf16>> Checkpoint::LoadBf16(const ParameterKey& key) const {
  const Source source = Locate(key);
  return LoadBlock(key, 0, source.num_rows, 0, source.width);
}

absl::StatusOr<RowBatch<float>> Checkpoint::LoadFloat(const ParameterKey& key) const {
  const Source source = Locate(key);
  MOEBIUS_ASSIGN_OR_RETURN(
      RowBatch<float> out,
      ReadBlock<float>(*source.entry, source.width, {0, source.num_rows, 0, source.width}));
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

absl::StatusOr<ExpertWeights> Checkpoint::ExpertSlice(LayerId layer, ExpertId id) const {
  const ModelConfig& config = config_.model;
  const int64_t hidden = config.hidden_size;
  const int64_t width = SliceWidth(layer, id);
  const bool is_routed = id.value() < config.gate.num_experts;
  const bool is_moe = config.IsMoeLayer(layer.value());
  const int64_t begin =
      is_routed ? 0
                : (id.value() - int64_t{config.gate.num_experts}) * config.moe_intermediate_size;
  const auto key = [&](Part routed, Part shared, Part dense) {
    return ParameterKey{is_routed ? routed : (is_moe ? shared : dense), layer.value(),
                        is_routed ? id.value() : -1};
  };
  ExpertWeights weights;
  MOEBIUS_ASSIGN_OR_RETURN(
      weights.gate, LoadBlock(key(Part::kExpertGate, Part::kSharedGate, Part::kDenseGate), begin,
                              begin + width, 0, hidden));
  MOEBIUS_ASSIGN_OR_RETURN(weights.up,
                           LoadBlock(key(Part::kExpertUp, Part::kSharedUp, Part::kDenseUp), begin,
                                     begin + width, 0, hidden));
  MOEBIUS_ASSIGN_OR_RETURN(weights.down,
                           LoadBlock(key(Part::kExpertDown, Part::kSharedDown, Part::kDenseDown), 0,
                                     hidden, begin, begin + width));
  return weights;
}

}  // namespace moebius
