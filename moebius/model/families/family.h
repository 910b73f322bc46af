// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "moebius/model/field_reader.h"
#include "moebius/model/model_config.h"

namespace moebius {

/// How a family's config.json asks for sliding windows.
enum class WindowFields {
  kNone,      // never; an active window is refused
  kAlways,    // sliding_window is of every layer
  kSwitched,  // by use_sliding_window, in the layers that layer_types says or from
              // max_window_layers
};

/// What distinguishes one model_type: its names, and how its config.json is read. To add a family,
/// write one file beside this one and add its entry to FamilyTable.
struct FamilyEntry {
  Family family;
  absl::string_view model_type;
  /// Values of `architectures` that are this family; the first one stands in when it is absent.
  absl::Span<const absl::string_view> architectures;
  /// Reads everything that the common part (vocabulary, hidden size, layers, positions, head ids)
  /// has not; refusals stay in the reader.
  void (*parse)(FieldReader& reader, ModelConfig& config);
  WindowFields windows = WindowFields::kNone;
};

/// All of them. Immutable.
absl::Span<const FamilyEntry> FamilyTable();

void ParseDeepseekV3(FieldReader& reader, ModelConfig& config);  // and kimi_k2
void ParseGlm4Moe(FieldReader& reader, ModelConfig& config);
void ParseMixtral(FieldReader& reader, ModelConfig& config);
void ParseOlmoe(FieldReader& reader, ModelConfig& config);
void ParseQwen3Moe(FieldReader& reader, ModelConfig& config);

// Pieces that several families share.

/// Limits beyond which a size in config.json is a mistake.
inline constexpr int64_t kMaxHiddenSize = 1 << 16;
inline constexpr int64_t kMaxIntermediateSize = 1 << 20;
inline constexpr int64_t kMaxHeadDim = 1024;
inline constexpr int64_t kMaxHeads = 1024;
inline constexpr int64_t kMaxExperts = 1024;
inline constexpr int64_t kMaxTopK = 16;
inline constexpr int64_t kMaxLayers = 1024;

/// attention.windows. UNIMPLEMENTED for a window that the family does not have, or not in that
/// layer.
void ParseWindows(FieldReader& reader, WindowFields fields, ModelConfig& config);

/// num_attention_heads, num_key_value_heads, head_dim and the softmax scale of grouped queries.
void ParseGroupedQueryHeads(FieldReader& reader, ModelConfig& config);

/// Expert count (by the first of `names` that is present), top-k and their limits.
void ParseExpertCounts(FieldReader& reader, std::initializer_list<absl::string_view> names,
                       ModelConfig& config);

/// n_group, topk_group and the rule that top-k fits the kept groups; `otherwise` where absent.
void ParseGroups(FieldReader& reader, int64_t num_groups_otherwise, int64_t kept_otherwise,
                 ModelConfig& config);

/// Refuses `scoring_func` other than `name`, and `topk_method` other than `method` (empty: any
/// value is refused).
void RequireGateRule(FieldReader& reader, absl::string_view name, absl::string_view method);

/// Layers before first_k_dense_replace are dense.
void ParseLeadingDenseLayers(FieldReader& reader, int64_t otherwise, ModelConfig& config);

/// rope_theta with rope_scaling, or rope_parameters: fills attention.rope and rope_amplitude. `dim`
/// elements of a head rotate, before a partial factor that `allows_partial` may permit.
struct RopeDefaults {
  double theta = 10000.0;
  int64_t head_dim = 0;
  bool allows_partial = false;
  double partial = 1.0;  // the factor where the config gives none
};
void ParseRope(FieldReader& reader, const RopeDefaults& defaults, ModelConfig& config);

/// 1 / sqrt(head_dim), in double.
double InverseSquareRoot(int64_t head_dim);

}  // namespace moebius
