// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/quantization.h"

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

constexpr int64_t kMaxBlock = 1 << 20;

/// "weight_block_size": [128, 128].
void ParseBlockSize(FieldReader& fields, QuantizationConfig& quantization) {
  const absl::string_view name = "weight_block_size";
  if (!fields.Has(name)) {
    fields.RefuseUnsupported(name, "is absent, only FP8 with a scale for each block is supported");
    return;
  }
  const Json& value = *fields.Field(name);
  const std::vector<Json>& sizes = value.elements();
  const auto is_size = [](const Json& size) {
    return size.kind() == Json::Kind::kInteger && size.integer() >= 1 &&
           size.integer() <= kMaxBlock;
  };
  if (value.kind() != Json::Kind::kArray || sizes.size() != 2 || !is_size(sizes[0]) ||
      !is_size(sizes[1])) {
    fields.Refuse(name, absl::StrCat("must be two sizes between 1 and ", kMaxBlock, ", it is ",
                                     ShortText(value)));
    return;
  }
  quantization.block_rows = sizes[0].integer();
  quantization.block_columns = sizes[1].integer();
}

std::string WeightTypes(const std::vector<Parameter>& parameters,
                        absl::FunctionRef<bool(Part)> is_counted) {
  bool has_bf16 = false;
  bool has_fp8 = false;
  for (const Parameter& parameter : parameters) {
    if (!MayBeFp8(parameter.key.part) || !is_counted(parameter.key.part)) continue;
    (parameter.is_fp8() ? has_fp8 : has_bf16) = true;
  }
  return has_fp8 ? (has_bf16 ? "bf16+fp8" : "fp8") : "bf16";
}

}  // namespace

QuantizationConfig ParseQuantization(FieldReader& config) {
  QuantizationConfig quantization;
  const Json* const object = config.OptionalObject("quantization_config");
  if (object == nullptr) return quantization;
  const Json* const method = object->Find("quant_method");
  if (method == nullptr || method->kind() != Json::Kind::kString || method->string() != "fp8") {
    config.RefuseUnsupported(
        "quantization_config",
        absl::StrCat("has quant_method ", method == nullptr ? "unknown" : ShortText(*method),
                     ", only \"fp8\" is supported"));
    return quantization;
  }
  FieldReader fields(*object, absl::StrCat(config.prefix(), "quantization_config."));
  // Lists of what is not quantised, and the rounding of scales, are told by the tensors themselves.
  fields.RefuseOthers({"quant_method", "fmt", "activation_scheme", "weight_block_size", "scale_fmt",
                       "modules_to_not_convert", "ignored_layers"});
  const std::string format = fields.OptionalString("fmt").value_or("e4m3");
  if (format != "e4m3") {
    fields.RefuseUnsupported("fmt", absl::StrCat("is ", ShortText(*fields.Field("fmt")),
                                                 ", only \"e4m3\" is supported"));
  }
  const std::string scheme = fields.OptionalString("activation_scheme").value_or("dynamic");
  if (scheme != "dynamic") {
    fields.RefuseUnsupported("activation_scheme",
                             absl::StrCat("is ", ShortText(*fields.Field("activation_scheme")),
                                          ", only \"dynamic\" is supported"));
  }
  ParseBlockSize(fields, quantization);
  if (!fields.ok()) config.Keep(fields.status());
  return quantization;
}

bool MayBeFp8(Part part) {
  switch (part) {
    case Part::kQ:
    case Part::kK:
    case Part::kV:
    case Part::kO:
    case Part::kQA:
    case Part::kQB:
    case Part::kKvA:
    case Part::kKvB:
      return true;
    default:
      return part >= Part::kSharedGate;
  }
}

std::string AttentionWeightTypes(const std::vector<Parameter>& parameters) {
  return WeightTypes(parameters, [](Part part) { return part < Part::kSharedGate; });
}

std::string FeedForwardWeightTypes(const std::vector<Parameter>& parameters) {
  return WeightTypes(parameters, [](Part part) { return part >= Part::kSharedGate; });
}

std::string WithBlockSize(const std::string& types, const QuantizationConfig& quantization) {
  if (!absl::EndsWith(types, "fp8")) return types;
  return absl::StrCat(types, "-", quantization.block_rows, "x", quantization.block_columns);
}

std::string ScaleName(const std::string& tensor_name) {
  return absl::StrCat(tensor_name, "_scale_inv");
}

std::vector<int64_t> ScaleShape(const QuantizationConfig& quantization,
                                const std::vector<int64_t>& shape) {
  const auto blocks = [](int64_t size, int64_t block) { return (size + block - 1) / block; };
  return {blocks(shape[0], quantization.block_rows), blocks(shape[1], quantization.block_columns)};
}

}  // namespace moebius
