// SPDX-License-Identifier: Apache-2.0
// Sliding windows, as the families' files ask for them. A window w lets the query at q see the keys
// p with q - w < p <= q.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "moebius/model/families/family.h"
#include "moebius/model/file.h"

namespace moebius {
namespace {

constexpr absl::string_view kFull = "full_attention";
constexpr absl::string_view kSliding = "sliding_attention";

// The window that the file turns on, shorter than the context; 0: none.
int64_t ParseWindow(FieldReader& reader, WindowFields fields, int64_t max_positions) {
  const auto window = reader.OptionalInteger("sliding_window", 0, INT64_MAX);
  const bool is_on =
      reader.OptionalBoolean("use_sliding_window", fields != WindowFields::kSwitched);
  if (!window.has_value()) return 0;
  if (fields == WindowFields::kAlways && !is_on) {
    reader.RefuseUnsupported("use_sliding_window",
                             "is false, this family has no switch for its sliding_window");
    return 0;
  }
  if (!is_on || *window >= max_positions) return 0;
  if (fields == WindowFields::kNone) {
    reader.RefuseUnsupported("sliding_window",
                             absl::StrCat("is ", *window, ", this family has no windows"));
  } else if (*window == 0) {
    reader.Refuse("sliding_window", "is 0, a query sees at least its own key");
  }
  return *window;
}

// Which layers have the window by layer_types; empty where the field is absent.
std::vector<bool> ParseLayerTypes(FieldReader& reader, int64_t num_layers) {
  const std::vector<std::string> types = reader.OptionalStrings("layer_types");
  std::vector<bool> slides;
  for (const std::string& type : types) {
    if (type != kFull && type != kSliding) {
      reader.RefuseUnsupported(
          "layer_types", absl::StrCat("has \"", PrintableName(type), "\", only ", kFull, " and ",
                                      kSliding, " are supported"));
    }
    slides.push_back(type == kSliding);
  }
  if (!types.empty() && static_cast<int64_t>(types.size()) != num_layers) {
    reader.Refuse("layer_types",
                  absl::StrCat("has ", types.size(), " entries for ", num_layers, " layers"));
  }
  return slides;
}

}  // namespace

void ParseWindows(FieldReader& reader, WindowFields fields, ModelConfig& config) {
  const int64_t window = ParseWindow(reader, fields, config.max_positions);
  const std::vector<bool> types = ParseLayerTypes(reader, config.num_layers);
  int64_t num_full = 0;  // the first layers
  if (fields == WindowFields::kSwitched) {
    num_full = reader.OptionalInteger("max_window_layers", 0, INT64_MAX, 0);
  }
  if (!reader.ok()) return;
  const bool any_slides = std::find(types.begin(), types.end(), true) != types.end();
  const bool all_slide = std::find(types.begin(), types.end(), false) == types.end();
  if (any_slides && fields == WindowFields::kNone) {
    reader.RefuseUnsupported("layer_types",
                             absl::StrCat("has ", kSliding, ", this family has no windows"));
  } else if (any_slides && !reader.Has("sliding_window")) {
    reader.Refuse("layer_types", absl::StrCat("has ", kSliding, ", sliding_window is absent"));
  }
  if (window == 0) return;
  if (fields == WindowFields::kAlways && !all_slide) {
    reader.RefuseUnsupported(
        "layer_types",
        absl::StrCat("has ", kFull, ", this family has its sliding_window in every layer"));
  }
  bool has_window = false;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool slides = types.empty() ? layer >= num_full : types[static_cast<size_t>(layer)];
    config.attention.windows.push_back(slides ? window : 0);
    has_window = has_window || slides;
  }
  if (!has_window) config.attention.windows.clear();
}

}  // namespace moebius
