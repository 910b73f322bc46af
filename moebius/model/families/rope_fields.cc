// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "absl/strings/str_cat.h"

#include "moebius/model/families/family.h"
#include "moebius/model/yarn_magnitude.h"

namespace moebius {
namespace {

/// The stretch of rope_scaling or rope_parameters; nothing for the default type.
std::optional<YarnConfig> ParseStretch(FieldReader& fields, int64_t max_positions) {
  const std::optional<std::string> rope_type = fields.OptionalString("rope_type");
  const std::optional<std::string> type = fields.OptionalString("type");
  if (rope_type.has_value() && type.has_value() && *rope_type != *type) {
    fields.Refuse("rope_type", absl::StrCat("is \"", *rope_type, "\" but type is \"", *type, "\""));
  }
  const std::string kind = rope_type.value_or(type.value_or("default"));
  if (kind == "default") {
    fields.RefuseOthers({"rope_type", "type", "rope_theta", "partial_rotary_factor"});
    return std::nullopt;
  }
  if (kind != "yarn") {
    fields.RefuseUnsupported(rope_type.has_value() ? "rope_type" : "type",
                             absl::StrCat("is \"", kind, "\", only \"yarn\" is supported"));
    return std::nullopt;
  }
  fields.RefuseOthers({"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor",
                       "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale",
                       "mscale_all_dim", "attention_factor", "truncate"});
  YarnConfig yarn;
  if (!fields.Has("factor")) fields.Refuse("factor", "is absent");
  yarn.factor = fields.OptionalNumber("factor", 1.0, 1e4, 1.0);
  yarn.original_max_positions =
      fields.OptionalInteger("original_max_position_embeddings", 1, max_positions, max_positions);
  yarn.beta_fast = fields.OptionalNumber("beta_fast", 1e-3, 1e6, 32);
  yarn.beta_slow = fields.OptionalNumber("beta_slow", 1e-3, 1e6, 1);
  if (yarn.beta_fast < yarn.beta_slow) {
    fields.Refuse("beta_fast",
                  absl::StrCat("is ", FormatNumber(yarn.beta_fast),
                               ", less than beta_slow = ", FormatNumber(yarn.beta_slow)));
  }
  yarn.mscale = fields.OptionalNumber("mscale", 0, 100, 0);
  yarn.mscale_all_dim = fields.OptionalNumber("mscale_all_dim", 0, 100, 0);
  yarn.attention_factor = fields.OptionalNumber("attention_factor", 1e-3, 1e3);
  if (!fields.OptionalBoolean("truncate", true)) {
    fields.RefuseUnsupported("truncate", "is false, which is not supported");
  }
  return yarn;
}

/// As the widely used implementation does: an explicit factor, else the ratio of the two
/// magnitudes where both are given, else the paper's.
double Amplitude(const YarnConfig& yarn) {
  if (yarn.attention_factor.has_value()) return *yarn.attention_factor;
  if (yarn.mscale != 0 && yarn.mscale_all_dim != 0) {
    return YarnMagnitude(yarn.factor, yarn.mscale) /
           YarnMagnitude(yarn.factor, yarn.mscale_all_dim);
  }
  return YarnMagnitude(yarn.factor, 1.0);
}

/// A number that may be given at the top, inside rope_parameters, or (equally) in both.
double TopOrNested(FieldReader& reader, FieldReader* nested, absl::string_view name, double low,
                   double high, double otherwise) {
  const std::optional<double> top = reader.OptionalNumber(name, low, high);
  std::optional<double> inner;
  if (nested != nullptr) inner = nested->OptionalNumber(name, low, high);
  if (top.has_value() && inner.has_value() && *top != *inner) {
    reader.Refuse(name, absl::StrCat("is ", FormatNumber(*top), " but rope_parameters.", name,
                                     " is ", FormatNumber(*inner)));
  }
  if (inner.has_value()) return *inner;
  return top.value_or(otherwise);
}

}  // namespace

void ParseRope(FieldReader& reader, const RopeDefaults& defaults, ModelConfig& config) {
  const Json* parameters = reader.OptionalObject("rope_parameters");
  const Json* scaling = reader.OptionalObject("rope_scaling");
  if (!reader.ok()) return;
  if (parameters != nullptr && scaling != nullptr && !(*parameters == *scaling)) {
    reader.Refuse("rope_scaling", "and rope_parameters are both present and differ");
    return;
  }
  const Json* stretch = parameters != nullptr ? parameters : scaling;
  const Json none = Json::Object({});
  FieldReader fields(
      stretch != nullptr ? *stretch : none,
      absl::StrCat(reader.prefix(), parameters != nullptr ? "rope_parameters." : "rope_scaling."));
  RopeConfig& rope = config.attention.rope;
  rope.theta = TopOrNested(reader, &fields, "rope_theta", 1.0, 1e12, defaults.theta);
  const double partial =
      TopOrNested(reader, &fields, "partial_rotary_factor", 0.0, 1.0, defaults.partial);
  if (partial != 1.0 && !defaults.allows_partial) {
    reader.RefuseUnsupported(
        "partial_rotary_factor",
        absl::StrCat("is ", FormatNumber(partial), ", this family rotates whole heads"));
  }
  rope.yarn = ParseStretch(fields, config.max_positions);
  reader.Keep(fields.status());
  rope.dim = static_cast<int32_t>(static_cast<double>(defaults.head_dim) * partial);
  if (reader.ok() && (rope.dim < 2 || rope.dim % 2 != 0)) {
    reader.Refuse(partial != 1.0 ? "partial_rotary_factor" : "head_dim",
                  absl::StrCat("rotates ", rope.dim,
                               " elements of a head, it must be an even "
                               "number"));
  }
  rope.pairing = RopePairing::kHalves;
  config.attention.rope_amplitude =
      rope.yarn.has_value() ? static_cast<float>(Amplitude(*rope.yarn)) : 1.0f;
}

}  // namespace moebius
