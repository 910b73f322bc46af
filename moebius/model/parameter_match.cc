// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/model/config_parser.h"
#include "moebius/model/file.h"
#include "moebius/model/parameters.h"
#include "moebius/model/quantization.h"

namespace moebius {
namespace {

constexpr size_t kNamesShown = 5;

/// "3 tensors are missing: a, b, c".
std::string Listing(const std::vector<std::string>& names, absl::string_view one,
                    absl::string_view many) {
  std::vector<std::string> shown(
      names.begin(), names.begin() + static_cast<ptrdiff_t>(std::min(names.size(), kNamesShown)));
  return absl::StrCat(names.size(), " ", names.size() == 1 ? one : many, ": ",
                      absl::StrJoin(shown, ", "), names.size() > kNamesShown ? ", …" : "");
}

/// A stored next-token module is complete enough to be recognised: only then are layers from
/// num_hidden_layers on left unread, so that a wrong num_hidden_layers does not cut a model short.
std::set<int64_t> NextTokenLayers(const std::vector<const TensorInfo*>& tensors) {
  std::set<int64_t> layers;
  for (const TensorInfo* tensor : tensors) {
    if (absl::EndsWith(tensor->name, ".eh_proj.weight")) {
      layers.insert(LayerOfTensor(tensor->name));
    }
  }
  return layers;
}

bool IsIgnored(const ModelConfig& config, const std::set<int64_t>& next_token_layers,
               const std::string& name) {
  const absl::string_view rule = IgnoreRule(config, name);
  if (rule.empty()) return false;
  return rule != "next-token layer" || next_token_layers.count(LayerOfTensor(name)) > 0;
}

/// Scales belong to a tensor of F8_E4M3 that a parameter names.
absl::Status RefuseStrayScales(const TensorInfo& tensor,
                               const std::vector<const TensorInfo*>& tensors) {
  constexpr absl::string_view kSuffix = "_scale_inv";
  if (!absl::EndsWith(tensor.name, kSuffix)) return absl::OkStatus();
  const absl::string_view scaled = absl::StripSuffix(tensor.name, kSuffix);
  std::string why = absl::StrCat("there is no ", PrintableName(scaled));
  for (const TensorInfo* other : tensors) {
    if (other->name != scaled) continue;
    why = absl::StrCat(PrintableName(scaled), " is ", other->dtype_name, " ", other->ShapeText());
  }
  return absl::InvalidArgumentError(absl::StrCat("tensor ", PrintableName(tensor.name), " ",
                                                 tensor.dtype_name, " ", tensor.ShapeText(),
                                                 " scales no F8_E4M3 weights: ", why));
}

/// Layouts that are known, and known not to be read, deserve their name.
absl::Status RefuseKnownLayout(const TensorInfo& tensor) {
  const std::string shown =
      absl::StrCat(PrintableName(tensor.name), " ", tensor.dtype_name, " ", tensor.ShapeText());
  const absl::string_view name = tensor.name;
  if (absl::EndsWith(name, "_scale") || absl::EndsWith(name, ".qweight") ||
      absl::EndsWith(name, "_packed")) {
    return WithHint(
        absl::UnimplementedError(absl::StrCat("quantised weights are not supported: ", shown)),
        "use a BF16 version of this checkpoint");
  }
  if (absl::StrContains(name, ".experts.gate_up_proj") ||
      absl::StrContains(name, ".experts.down_proj") ||
      absl::StrContains(name, ".experts.gate_proj") ||
      absl::StrContains(name, ".experts.up_proj")) {
    return WithHint(absl::UnimplementedError(
                        absl::StrCat("experts fused into one tensor are not supported: ", shown)),
                    "save the model with one tensor per expert, as mlp.experts.0.gate_proj.weight");
  }
  return absl::OkStatus();
}

absl::Status ValidateFp8(const TensorInfo& tensor, const Parameter& parameter,
                         const TensorInfo* scales, const QuantizationConfig& quantization) {
  const std::string shown =
      absl::StrCat("tensor ", PrintableName(tensor.name), " is F8_E4M3 ", tensor.ShapeText());
  if (!MayBeFp8(parameter.key.part)) {
    return absl::UnimplementedError(absl::StrCat(
        shown, ", only matrices of attention and feed-forward networks may be; this is a ",
        PartName(parameter.key.part)));
  }
  const std::string scale_name = PrintableName(ScaleName(tensor.name));
  if (scales == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(shown, ", its scales are missing: there is no ", scale_name));
  }
  const std::string shown_scales =
      absl::StrCat(scale_name, " ", scales->dtype_name, " ", scales->ShapeText());
  if (!quantization.is_present()) {
    return absl::InvalidArgumentError(
        absl::StrCat(shown, " with the scales ", shown_scales,
                     ", but config.json has no quantization_config with a weight_block_size"));
  }
  TensorInfo expected;
  expected.shape = ScaleShape(quantization, parameter.shape);
  if (scales->dtype != DType::kF32 || scales->shape != expected.shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        shown, ", its scales are ", shown_scales, ", expected F32 ", expected.ShapeText(),
        " for blocks of ", quantization.block_rows, " × ", quantization.block_columns));
  }
  return absl::OkStatus();
}

// Parts that are multiplied as one matrix are of one type.
constexpr std::pair<Part, Part> kPartsOfOneMatrix[] = {{Part::kExpertGate, Part::kExpertUp},
                                                       {Part::kSharedGate, Part::kSharedUp},
                                                       {Part::kDenseGate, Part::kDenseUp},
                                                       {Part::kQ, Part::kK},
                                                       {Part::kQ, Part::kV},
                                                       {Part::kQA, Part::kKvA},
                                                       {Part::kQ, Part::kKvA}};

absl::Status ValidateMixture(const std::vector<Parameter>& parameters) {
  if (std::none_of(parameters.begin(), parameters.end(),
                   [](const Parameter& parameter) { return parameter.is_fp8(); })) {
    return absl::OkStatus();
  }
  std::map<ParameterKey, const Parameter*> by_key;
  for (const Parameter& parameter : parameters) by_key[parameter.key] = &parameter;
  for (const auto& [key, parameter] : by_key) {
    for (const auto& [first, second] : kPartsOfOneMatrix) {
      if (key.part != first) continue;
      const auto other = by_key.find({second, key.layer, key.expert});
      if (other == by_key.end() || other->second->is_fp8() == parameter->is_fp8()) continue;
      const auto type = [](const Parameter& each) {
        return each.is_fp8() ? " is F8_E4M3" : " is not";
      };
      return absl::UnimplementedError(absl::StrCat(
          "tensor ", parameter->name, type(*parameter), " and ", other->second->name,
          type(*other->second), "; they are multiplied as one matrix, so both must be or neither"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateType(const TensorInfo& tensor, const Parameter& parameter,
                          const MatchOptions& options) {
  const bool is_float =
      tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kF32;
  if (!is_float) {
    return absl::UnimplementedError(absl::StrCat("tensor ", PrintableName(tensor.name), " is ",
                                                 tensor.dtype_name,
                                                 ", only BF16, F16, F32 and F8_E4M3 are "
                                                 "supported"));
  }
  if (tensor.dtype == DType::kBF16 || parameter.keeps_float || options.convert_to_bf16 ||
      options.reads_as_stored) {
    return absl::OkStatus();
  }
  return WithHint(absl::FailedPreconditionError(
                      absl::StrCat("tensor ", PrintableName(tensor.name), " is ", tensor.dtype_name,
                                   ", computation is in BF16 and would round it")),
                  "pass --dtype=bf16 to round the weights when they are loaded");
}

}  // namespace

absl::Status MatchParameters(const std::vector<const TensorInfo*>& tensors,
                             const MatchOptions& options, ModelConfig& config,
                             ParameterMatch& match) {
  absl::flat_hash_map<absl::string_view, const TensorInfo*> unread;
  for (const TensorInfo* tensor : tensors) unread.emplace(tensor->name, tensor);
  const std::string head = "lm_head.weight";
  if (!config.tied_head && options.tie_missing_head && unread.count(head) == 0) {
    config.tied_head = true;
  }
  match = ParameterMatch();
  match.parameters = ExpectedParameters(config);
  std::vector<std::string> missing;
  std::vector<std::string> misshapen;
  absl::Status type_status;
  for (Parameter& parameter : match.parameters) {
    const auto found = unread.find(parameter.name);
    if (found == unread.end()) {
      missing.push_back(parameter.name);
      continue;
    }
    const TensorInfo& tensor = *found->second;
    if (tensor.shape != parameter.shape) {
      TensorInfo expected;
      expected.shape = parameter.shape;
      misshapen.push_back(absl::StrCat(parameter.name, " is ", tensor.ShapeText(), ", expected ",
                                       expected.ShapeText()));
    }
    const bool is_fp8 = tensor.dtype == DType::kF8E4M3;
    if (is_fp8) parameter.scale_name = ScaleName(parameter.name);
    const auto scales = is_fp8 ? unread.find(parameter.scale_name) : unread.end();
    if (type_status.ok()) {
      const TensorInfo* const info = scales == unread.end() ? nullptr : scales->second;
      type_status = is_fp8 ? ValidateFp8(tensor, parameter, info, config.quantization)
                           : ValidateType(tensor, parameter, options);
    }
    if (scales != unread.end()) unread.erase(scales);
    unread.erase(parameter.name);
  }
  const std::set<int64_t> next_token_layers = NextTokenLayers(tensors);
  std::vector<std::string> unexpected;
  for (const TensorInfo* tensor : tensors) {
    if (unread.count(tensor->name) == 0) continue;
    if (IsIgnored(config, next_token_layers, tensor->name)) {
      ++match.num_ignored;
      match.ignored_bytes += tensor->size_bytes;
      continue;
    }
    MOEBIUS_RETURN_IF_ERROR(RefuseStrayScales(*tensor, tensors));
    MOEBIUS_RETURN_IF_ERROR(RefuseKnownLayout(*tensor));
    unexpected.push_back(PrintableName(tensor->name));
  }
  if (missing.size() == 1 && missing[0] == head && unexpected.empty()) {
    return WithHint(
        absl::InvalidArgumentError("lm_head.weight missing and tie_word_embeddings=false"),
        "if the output head is the embedding, write {\"tie_missing_head\": true} to the folder's "
        "moebius.json");
  }
  std::vector<std::string> faults;
  if (!missing.empty()) {
    faults.push_back(Listing(missing, "parameter has no tensor", "parameters have no tensor"));
  }
  if (!unexpected.empty()) {
    faults.push_back(Listing(unexpected, "tensor is no parameter", "tensors are no parameter"));
  }
  if (!misshapen.empty()) {
    faults.push_back(Listing(misshapen, "tensor has another shape", "tensors have another shape"));
  }
  if (!faults.empty()) {
    return WithHint(
        absl::InvalidArgumentError(absl::StrCat("the weights do not fit config.json (",
                                                FamilyName(config.family),
                                                "): ", absl::StrJoin(faults, "; "))),
        "every tensor must be a parameter or on the ignore list of docs/model_format.md");
  }
  MOEBIUS_RETURN_IF_ERROR(type_status);
  return ValidateMixture(match.parameters);
}

}  // namespace moebius
