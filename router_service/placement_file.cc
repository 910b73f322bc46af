// SPDX-License-Identifier: Apache-2.0
#include "router_service/placement_file.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/model/file.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr int32_t kNoRule = -1;

absl::Status Refuse(absl::string_view place, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(place, ": ", what));
}

absl::Status CheckMembers(const Json& json, const std::string& place,
                          std::initializer_list<absl::string_view> known) {
  if (json.kind() != Json::Kind::kObject) {
    return Refuse(place, absl::StrCat("is ", json.KindName(), ", not an object"));
  }
  for (const auto& [name, value] : json.members()) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return Refuse(place, absl::StrCat("has no member \"", PrintableName(name), "\""));
    }
  }
  return absl::OkStatus();
}

struct Range {
  int64_t first = 0;
  int64_t last = 0;  // inclusive
};

// 7, "7" or "0-15", each in [0, end).
absl::StatusOr<Range> ReadRange(const Json& json, const std::string& place, int64_t end) {
  Range range;
  if (json.kind() == Json::Kind::kInteger) {
    range.first = range.last = json.integer();
  } else if (json.kind() == Json::Kind::kString) {
    const std::pair<std::string, std::string> ends =
        absl::StrSplit(json.string(), absl::MaxSplits('-', 1));
    const bool is_one = json.string().find('-') == std::string::npos;
    if (!absl::SimpleAtoi(ends.first, &range.first) ||
        !absl::SimpleAtoi(is_one ? ends.first : ends.second, &range.last)) {
      return Refuse(place, absl::StrCat("\"", PrintableName(json.string()),
                                        "\" is no number and no range as \"0-15\""));
    }
  } else {
    return Refuse(place, absl::StrCat("is ", json.KindName(), ", not a number or a range"));
  }
  if (range.first > range.last) {
    return Refuse(place, absl::StrCat(range.first, "-", range.last, " is empty"));
  }
  for (const int64_t number : {range.first, range.last}) {
    if (number < 0 || number >= end) {
      return Refuse(place, absl::StrCat(number, " is not in [0, ", end, ")"));
    }
  }
  return range;
}

// One number or range, or a list of them, each number once, in the order of the file.
absl::StatusOr<std::vector<int32_t>> ReadNumbers(const Json& json, const std::string& place,
                                                 int64_t end) {
  std::vector<int32_t> numbers;
  std::vector<bool> seen(static_cast<size_t>(end), false);
  const auto add = [&](const Json& element, const std::string& at) -> absl::Status {
    MOEBIUS_ASSIGN_OR_RETURN(const Range range, ReadRange(element, at, end));
    for (int64_t number = range.first; number <= range.last; ++number) {
      if (seen[static_cast<size_t>(number)]) {
        return Refuse(at, absl::StrCat(number, " is there already"));
      }
      seen[static_cast<size_t>(number)] = true;
      numbers.push_back(static_cast<int32_t>(number));
    }
    return absl::OkStatus();
  };
  if (json.kind() != Json::Kind::kArray) {
    MOEBIUS_RETURN_IF_ERROR(add(json, place));
    return numbers;
  }
  if (json.elements().empty()) return Refuse(place, "is an empty list");
  for (size_t i = 0; i < json.elements().size(); ++i) {
    MOEBIUS_RETURN_IF_ERROR(add(json.elements()[i], absl::StrCat(place, "[", i, "]")));
  }
  return numbers;
}

class PlacementReader {
 public:
  PlacementReader(absl::string_view source, const PlacementShape& shape, int32_t num_services)
      : source_(source), shape_(shape), num_services_(num_services) {}

  absl::StatusOr<Placement> Read(const Json& file) {
    const std::string place(source_);
    MOEBIUS_RETURN_IF_ERROR(CheckMembers(file, place, {"services", "rules", "shared", "dense"}));
    MOEBIUS_RETURN_IF_ERROR(CheckNumServices(file));
    MOEBIUS_RETURN_IF_ERROR(BeginTable());
    const Json* rules = file.Find("rules");
    if (rules == nullptr || rules->kind() != Json::Kind::kArray) {
      return Refuse(place, "\"rules\" is not a list of rules");
    }
    for (size_t i = 0; i < rules->elements().size(); ++i) {
      MOEBIUS_RETURN_IF_ERROR(ReadRule(rules->elements()[i], static_cast<int32_t>(i)));
    }
    MOEBIUS_RETURN_IF_ERROR(CheckAllExpertsAreNamed());
    MOEBIUS_RETURN_IF_ERROR(ReadSlices(file, "shared", /*has_experts=*/true));
    MOEBIUS_RETURN_IF_ERROR(ReadSlices(file, "dense", /*has_experts=*/false));
    auto placement = Placement::Make(Epoch(1), shape_, num_services_, table_);
    if (!placement.ok()) return WithContext(placement.status(), place);
    for (int32_t service = 0; service < num_services_; ++service) {
      if (placement->HeldBy(ServiceId(service)).empty()) {
        return Refuse(place, absl::StrCat("service ", service, " holds nothing"));
      }
    }
    return placement;
  }

 private:
  absl::Status CheckNumServices(const Json& file) const {
    const std::string place = absl::StrCat(source_, ": services");
    const Json* services = file.Find("services");
    if (services == nullptr || services->kind() != Json::Kind::kInteger) {
      return Refuse(place, "is not the number of expert services");
    }
    if (services->integer() == num_services_) return absl::OkStatus();
    return WithHint(
        Refuse(place, absl::StrCat("is ", services->integer(), ", --experts is ", num_services_)),
        "both say how many expert services there are");
  }

  // Slices as without a file; experts nowhere yet.
  absl::Status BeginTable() {
    StaticPlacementOptions options;
    options.num_services = num_services_;
    options.expert_replicas = std::min(num_services_, 2);
    MOEBIUS_ASSIGN_OR_RETURN(const Placement by_default, Placement::Static(shape_, options));
    table_.resize(shape_.layers.size());
    rule_of_.resize(shape_.layers.size());
    for (size_t layer = 0; layer < table_.size(); ++layer) {
      const LayerId layer_id(static_cast<int32_t>(layer));
      table_[layer].resize(static_cast<size_t>(shape_.NumIds(layer_id)));
      rule_of_[layer].resize(static_cast<size_t>(shape_.num_experts));
      for (int32_t id = shape_.num_experts; id < shape_.NumIds(layer_id); ++id) {
        const auto services = by_default.Services(layer_id, ExpertId(id));
        table_[layer][static_cast<size_t>(id)].assign(services.begin(), services.end());
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<ServiceId>> ReadServices(const Json& list,
                                                      const std::string& place) const {
    MOEBIUS_ASSIGN_OR_RETURN(const std::vector<int32_t> numbers,
                             ReadNumbers(list, place, num_services_));
    return std::vector<ServiceId>(numbers.begin(), numbers.end());
  }

  absl::Status ReadRule(const Json& rule, int32_t number) {
    const std::string place = absl::StrCat(source_, ": rules[", number, "]");
    MOEBIUS_RETURN_IF_ERROR(CheckMembers(rule, place, {"experts", "layers", "services"}));
    for (const char* member : {"experts", "services"}) {
      if (rule.Find(member) == nullptr) {
        return Refuse(place, absl::StrCat("has no \"", member, "\""));
      }
    }
    MOEBIUS_ASSIGN_OR_RETURN(
        const std::vector<int32_t> experts,
        ReadNumbers(*rule.Find("experts"), absl::StrCat(place, ".experts"), shape_.num_experts));
    MOEBIUS_ASSIGN_OR_RETURN(
        const std::vector<ServiceId> services,
        ReadServices(*rule.Find("services"), absl::StrCat(place, ".services")));
    const Json* layers = rule.Find("layers");
    if (layers != nullptr) {
      MOEBIUS_ASSIGN_OR_RETURN(const std::vector<int32_t> numbers,
                               ReadNumbers(*layers, absl::StrCat(place, ".layers"),
                                           static_cast<int64_t>(shape_.layers.size())));
      for (const int32_t layer : numbers) {
        if (!shape_.LayerAt(LayerId(layer)).has_experts) {
          return Refuse(absl::StrCat(place, ".layers"),
                        absl::StrCat("layer ", layer, " has no experts"));
        }
        MOEBIUS_RETURN_IF_ERROR(Place(layer, experts, services, {number, true}));
      }
      return absl::OkStatus();
    }
    for (int32_t layer = 0; layer < static_cast<int32_t>(shape_.layers.size()); ++layer) {
      if (!shape_.LayerAt(LayerId(layer)).has_experts) continue;
      MOEBIUS_RETURN_IF_ERROR(Place(layer, experts, services, {number, false}));
    }
    return absl::OkStatus();
  }

  // The rules that name an expert of a layer, one of each kind at most.
  struct RulesOf {
    int32_t general = kNoRule;
    int32_t of_layer = kNoRule;
  };
  struct RuleId {
    int32_t number;
    bool has_layers;
  };

  absl::Status Place(int32_t layer, const std::vector<int32_t>& experts,
                     const std::vector<ServiceId>& services, RuleId rule) {
    for (const int32_t expert : experts) {
      RulesOf& rules = rule_of_[static_cast<size_t>(layer)][static_cast<size_t>(expert)];
      int32_t& same_kind = rule.has_layers ? rules.of_layer : rules.general;
      if (same_kind != kNoRule) {
        return Refuse(absl::StrCat(source_, ": rules[", rule.number, "]"),
                      absl::StrCat("names expert ", expert, " of layer ", layer, ", as rules[",
                                   same_kind, "] does"));
      }
      same_kind = rule.number;
      if (!rule.has_layers && rules.of_layer != kNoRule) continue;
      table_[static_cast<size_t>(layer)][static_cast<size_t>(expert)] = services;
    }
    return absl::OkStatus();
  }

  absl::Status CheckAllExpertsAreNamed() const {
    for (size_t layer = 0; layer < table_.size(); ++layer) {
      if (!shape_.layers[layer].has_experts) continue;
      for (size_t expert = 0; expert < static_cast<size_t>(shape_.num_experts); ++expert) {
        if (!table_[layer][expert].empty()) continue;
        return Refuse(absl::StrCat(source_, ": rules"),
                      absl::StrCat("none names expert ", expert, " of layer ", layer));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadSlices(const Json& file, const char* member, bool has_experts) {
    const Json* list = file.Find(member);
    if (list == nullptr) return absl::OkStatus();
    MOEBIUS_ASSIGN_OR_RETURN(const std::vector<ServiceId> services,
                             ReadServices(*list, absl::StrCat(source_, ": ", member)));
    for (size_t layer = 0; layer < table_.size(); ++layer) {
      if (shape_.layers[layer].has_experts != has_experts) continue;
      for (int32_t slice = 0; slice < shape_.layers[layer].num_slices; ++slice) {
        std::vector<ServiceId> in_turn = services;
        const auto turn =
            static_cast<std::ptrdiff_t>((static_cast<size_t>(slice) + layer) % services.size());
        std::rotate(in_turn.begin(), in_turn.begin() + turn, in_turn.end());
        const size_t id = static_cast<size_t>(shape_.num_experts) + static_cast<size_t>(slice);
        table_[layer][id] = std::move(in_turn);
      }
    }
    return absl::OkStatus();
  }

  const absl::string_view source_;
  const PlacementShape& shape_;
  const int32_t num_services_;
  Placement::Table table_;
  std::vector<std::vector<RulesOf>> rule_of_;  // [layer][expert]
};

}  // namespace

absl::StatusOr<Placement> ParsePlacement(absl::string_view text, absl::string_view source,
                                         const PlacementShape& shape, int32_t num_services) {
  MOEBIUS_ASSIGN_OR_RETURN(const Json file, Json::Parse(text, source, kMaxPlacementFileBytes));
  return PlacementReader(source, shape, num_services).Read(file);
}

absl::StatusOr<Placement> ReadPlacementFile(const std::string& path, const PlacementShape& shape,
                                            int32_t num_services) {
  MOEBIUS_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  if (file.size_bytes() > kMaxPlacementFileBytes) {
    return Refuse(path,
                  absl::StrCat(file.size_bytes(), " bytes; at most ", kMaxPlacementFileBytes));
  }
  std::string text(file.size_bytes(), '\0');
  MOEBIUS_RETURN_IF_ERROR(
      file.Read(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size())));
  return ParsePlacement(text, path, shape, num_services);
}

}  // namespace moebius
