// SPDX-License-Identifier: Apache-2.0
#include "node/logits_file.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/model/safetensors.h"
#include "moebius/model/safetensors_writer.h"

namespace moebius {
namespace {

TensorInfo Declare(std::string name, DType dtype, int64_t num_rows, int64_t width) {
  TensorInfo info;
  info.name = std::move(name);
  info.dtype = dtype;
  info.shape = {num_rows, width};
  return info;
}

std::string ExpertsName(int64_t layer) { return absl::StrCat("layer", layer, ".experts"); }
std::string WeightsName(int64_t layer) { return absl::StrCat("layer", layer, ".weights"); }

template <typename T>
absl::Status AppendAll(SafetensorsWriter& writer, const std::vector<T>& values) {
  return writer.Append(values.data(), values.size() * sizeof(T));
}

// The L of "layerL.experts", or -1.
int64_t LayerOf(absl::string_view name) {
  int64_t layer = -1;
  if (!absl::StartsWith(name, "layer") || !absl::EndsWith(name, ".experts")) return -1;
  const absl::string_view digits = name.substr(5, name.size() - 5 - 8);
  return absl::SimpleAtoi(digits, &layer) && name == ExpertsName(layer) ? layer : -1;
}

// A [num_rows, any] tensor of the given type; num_rows < 0 accepts any.
absl::StatusOr<const TensorInfo*> FindRows(const SafetensorsFile& file, const std::string& name,
                                           DType dtype, int64_t num_rows) {
  const TensorInfo* tensor = file.Find(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": '", name, "' is missing"));
  }
  if (tensor->dtype != dtype || tensor->shape.size() != 2 ||
      (num_rows >= 0 && tensor->shape[0] != num_rows)) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), ": '", name, "' is ", tensor->dtype_name, " ", tensor->ShapeText(), ", not ",
        DTypeName(dtype), " with ",
        num_rows < 0 ? std::string("any number of") : absl::StrCat(num_rows), " rows"));
  }
  return tensor;
}

}  // namespace

absl::Status WriteLogitsFile(const ForcedLogits& forced, const std::string& path) {
  if (forced.logits.num_rows() != forced.num_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("logits of ", forced.logits.num_rows(), " of ",
                                                   forced.num_tokens,
                                                   " tokens cannot be written: keep them all"));
  }
  std::vector<TensorInfo> tensors = {
      Declare("logits", DType::kF32, forced.num_tokens, forced.logits.width())};
  for (const ForcedLayer& layer : forced.layers) {
    tensors.push_back(
        Declare(ExpertsName(layer.layer), DType::kI16, forced.num_tokens, forced.top_k));
    tensors.push_back(
        Declare(WeightsName(layer.layer), DType::kF32, forced.num_tokens, forced.top_k));
  }
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(path, tensors));
  const size_t num_logits = static_cast<size_t>(forced.num_tokens * forced.logits.width());
  MOEBIUS_RETURN_IF_ERROR(writer->Append(forced.logits.rows().data, num_logits * sizeof(float)));
  for (const ForcedLayer& layer : forced.layers) {
    MOEBIUS_RETURN_IF_ERROR(AppendAll(*writer, layer.experts));
    MOEBIUS_RETURN_IF_ERROR(AppendAll(*writer, layer.weights));
  }
  return writer->Finish();
}

absl::StatusOr<ForcedLogits> ReadLogitsFile(const std::string& path) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsFile> file,
                           SafetensorsFile::Open(path));
  MOEBIUS_ASSIGN_OR_RETURN(const TensorInfo* const logits,
                           FindRows(*file, "logits", DType::kF32, -1));
  ForcedLogits forced;
  forced.num_tokens = logits->shape[0];
  for (int64_t row = 0; row < forced.num_tokens; ++row) forced.rows.push_back(row);
  forced.logits.Reset(forced.num_tokens, logits->shape[1]);
  MOEBIUS_ASSIGN_OR_RETURN(const std::vector<float> values, file->ReadAll<float>(*logits));
  std::copy(values.begin(), values.end(), forced.logits.rows().data);

  for (const TensorInfo& tensor : file->tensors()) {
    const int64_t layer = LayerOf(tensor.name);
    if (layer < 0) continue;
    MOEBIUS_ASSIGN_OR_RETURN(const TensorInfo* const experts,
                             FindRows(*file, tensor.name, DType::kI16, forced.num_tokens));
    MOEBIUS_ASSIGN_OR_RETURN(const TensorInfo* const weights,
                             FindRows(*file, WeightsName(layer), DType::kF32, forced.num_tokens));
    if (experts->shape != weights->shape ||
        (!forced.layers.empty() && experts->shape[1] != forced.top_k)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": '", tensor.name, "' has another number of experts than the rest of the file"));
    }
    forced.top_k = experts->shape[1];
    ForcedLayer& kept = forced.layers.emplace_back();
    kept.layer = layer;
    MOEBIUS_ASSIGN_OR_RETURN(kept.experts, file->ReadAll<int16_t>(*experts));
    MOEBIUS_ASSIGN_OR_RETURN(kept.weights, file->ReadAll<float>(*weights));
  }
  if (file->tensors().size() != 1 + 2 * forced.layers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": holds ", file->tensors().size(), " tensors, of which ",
                     1 + 2 * forced.layers.size(), " are those of a logits file"));
  }
  // The file's order is by name, where layer10 comes before layer2.
  std::sort(forced.layers.begin(), forced.layers.end(),
            [](const ForcedLayer& a, const ForcedLayer& b) { return a.layer < b.layer; });
  return forced;
}

}  // namespace moebius
