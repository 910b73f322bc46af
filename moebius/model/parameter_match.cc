// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/model/config_parser.h"
#include "moebius/model/file.h"
#include "moebius/model/parameters.h"

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

/// Layouts that are known, and known not to be read, deserve their name.
absl::Status RefuseKnownLayout(const TensorInfo& tensor) {
  const std::string shown =
      absl::StrCat(PrintableName(tensor.name), " ", tensor.dtype_name, " ", tensor.ShapeText());
  const absl::string_view name = tensor.name;
  if (absl::EndsWith(name, "_scale_inv") || absl::EndsWith(name, "_scale") ||
      absl::EndsWith(name, ".qweight") || absl::EndsWith(name, "_packed")) {
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

absl::Status ValidateType(const TensorInfo& tensor, const Parameter& parameter,
                          const MatchOptions& options) {
  const bool is_float =
      tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kF32;
  if (!is_float) {
    return absl::UnimplementedError(absl::StrCat("tensor ", PrintableName(tensor.name), " is ",
                                                 tensor.dtype_name,
                                                 ", only BF16, F16 and F32 are supported"));
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
  for (const Parameter& parameter : match.parameters) {
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
    if (type_status.ok()) type_status = ValidateType(tensor, parameter, options);
    unread.erase(found);
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
  return type_status;
}

}  // namespace moebius
