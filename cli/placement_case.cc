// SPDX-License-Identifier: Apache-2.0
#include "cli/placement_case.h"

#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "moebius/base/status.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

// Reads the members of one case, and remembers which ones it was asked for.
class CaseReader {
 public:
  CaseReader(const Json& json, absl::string_view source) : json_(json), source_(source) {}

  absl::Status Refuse(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(source_, ": ", what));
  }

  // Null where it is absent.
  const Json* Find(const char* key) {
    known_.insert(key);
    const Json* const member = json_.Find(key);
    return member == nullptr || member->kind() == Json::Kind::kNull ? nullptr : member;
  }

  absl::StatusOr<int64_t> Integer(const std::string& what, const Json& json) const {
    if (json.kind() == Json::Kind::kInteger) return json.integer();
    return Refuse(absl::StrCat(what, " is ", json.KindName(), ", not an integer"));
  }

  absl::StatusOr<std::optional<int64_t>> Integer(const char* key) {
    const Json* const member = Find(key);
    if (member == nullptr) return std::optional<int64_t>();
    MOEBIUS_ASSIGN_OR_RETURN(const int64_t value, Integer(key, *member));
    return std::optional<int64_t>(value);
  }

  absl::StatusOr<int32_t> Count(const char* key, std::optional<int64_t> otherwise) {
    MOEBIUS_ASSIGN_OR_RETURN(const std::optional<int64_t> given, Integer(key));
    const std::optional<int64_t> value = given.has_value() ? given : otherwise;
    if (!value.has_value()) return Refuse(absl::StrCat(key, " is missing"));
    if (*value < 1 || *value > kMaxBalanceSlots) {
      return Refuse(absl::StrCat(key, " is ", *value, "; it must be from 1 to ", kMaxBalanceSlots));
    }
    return static_cast<int32_t>(*value);
  }

  absl::StatusOr<std::vector<int64_t>> Integers(const std::string& what, const Json& json) const {
    if (json.kind() != Json::Kind::kArray) {
      return Refuse(absl::StrCat(what, " is ", json.KindName(), ", not an array"));
    }
    std::vector<int64_t> values;
    for (const Json& element : json.elements()) {
      MOEBIUS_ASSIGN_OR_RETURN(const int64_t value,
                               Integer(absl::StrCat(what, " element ", values.size()), element));
      values.push_back(value);
    }
    return values;
  }

  // One array of integers per layer.
  absl::StatusOr<std::vector<std::vector<int64_t>>> Layers(const char* key,
                                                           const Json& json) const {
    if (json.kind() != Json::Kind::kArray) {
      return Refuse(absl::StrCat(key, " is ", json.KindName(), ", not an array of layers"));
    }
    std::vector<std::vector<int64_t>> layers;
    for (const Json& element : json.elements()) {
      MOEBIUS_ASSIGN_OR_RETURN(std::vector<int64_t> layer,
                               Integers(absl::StrCat(key, " of layer ", layers.size()), element));
      layers.push_back(std::move(layer));
    }
    return layers;
  }

  std::vector<std::string> Unknown() const {
    std::vector<std::string> unknown;
    for (const auto& [key, value] : json_.members()) {
      if (!known_.contains(key)) unknown.push_back(key);
    }
    return unknown;
  }

 private:
  const Json& json_;
  const absl::string_view source_;
  std::set<std::string> known_;
};

absl::StatusOr<std::vector<int32_t>> ReadDeviceSlots(CaseReader& reader) {
  std::vector<int32_t> slots;
  if (const Json* const given = reader.Find("device_slots")) {
    MOEBIUS_ASSIGN_OR_RETURN(const std::vector<int64_t> values,
                             reader.Integers("device_slots", *given));
    for (const int64_t value : values) {
      if (value < 0 || value > kMaxBalanceSlots) {
        return reader.Refuse(absl::StrCat("device_slots has ", value));
      }
      slots.push_back(static_cast<int32_t>(value));
    }
    return slots;
  }
  MOEBIUS_ASSIGN_OR_RETURN(const int32_t num_devices, reader.Count("num_devices", std::nullopt));
  MOEBIUS_ASSIGN_OR_RETURN(const int32_t num_replicas, reader.Count("num_replicas", std::nullopt));
  for (int32_t device = 0; device < num_devices; ++device) {
    slots.push_back(num_replicas / num_devices + (device < num_replicas % num_devices ? 1 : 0));
  }
  return slots;
}

absl::Status ReadCurrent(CaseReader& reader, PlacementCase& parsed) {
  const Json* const json = reader.Find("current");
  if (json == nullptr) return absl::OkStatus();
  MOEBIUS_ASSIGN_OR_RETURN(const auto layers, reader.Layers("current", *json));
  if (layers.size() != parsed.problems.size()) {
    return reader.Refuse(
        absl::StrCat("current has ", layers.size(), " layers, load has ", parsed.problems.size()));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const BalanceProblem& problem = parsed.problems[i];
    BalancedLayer& layer = parsed.current.emplace_back();
    layer.replica_count.assign(problem.load.size(), 0);
    for (const int64_t expert : layers[i]) {
      const bool exists = expert >= 0 && expert < problem.num_experts();
      if (exists) ++layer.replica_count[static_cast<size_t>(expert)];
      // What does not exist is refused below, whatever number it is.
      layer.expert_of_slot.push_back(exists || expert == kEmptySlot
                                         ? static_cast<int32_t>(expert)
                                         : std::numeric_limits<int32_t>::max());
    }
    const absl::Status valid = ValidateBalancedLayer(problem, layer, ReplicaRule::kDistinctDevices);
    if (!valid.ok()) {
      return reader.Refuse(absl::StrCat("current of layer ", i, ": ", valid.message()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PlacementCase> ReadCase(const Json& json, absl::string_view source) {
  CaseReader reader(json, source);
  if (json.kind() != Json::Kind::kObject) {
    return reader.Refuse(absl::StrCat("a case is an object, not ", json.KindName()));
  }
  PlacementCase parsed;
  if (const Json* const name = reader.Find("name")) parsed.name = name->string();
  MOEBIUS_ASSIGN_OR_RETURN(const std::vector<int32_t> slots, ReadDeviceSlots(reader));
  MOEBIUS_ASSIGN_OR_RETURN(const int32_t num_groups, reader.Count("num_groups", 1));
  MOEBIUS_ASSIGN_OR_RETURN(const int32_t num_nodes, reader.Count("num_nodes", 1));
  MOEBIUS_ASSIGN_OR_RETURN(parsed.expert_bytes, reader.Integer("expert_bytes"));
  const Json* const load = reader.Find("load");
  if (load == nullptr) return reader.Refuse("load is missing");
  MOEBIUS_ASSIGN_OR_RETURN(auto layers, reader.Layers("load", *load));
  if (layers.empty()) return reader.Refuse("load has no layer");
  for (std::vector<int64_t>& layer : layers) {
    BalanceProblem& problem = parsed.problems.emplace_back();
    problem.load = std::move(layer);
    problem.device_slots = slots;
    problem.num_groups = num_groups;
    problem.num_nodes = num_nodes;
    const absl::Status valid = ValidateBalanceProblem(problem);
    if (!valid.ok()) {
      return reader.Refuse(
          absl::StrCat("layer ", parsed.problems.size() - 1, ": ", valid.message()));
    }
  }
  MOEBIUS_RETURN_IF_ERROR(ReadCurrent(reader, parsed));
  // What a file of answers holds beside the question.
  for (const char* answer :
       {"physical_to_logical", "replica_count", "max_over_mean", "lower_bound"}) {
    reader.Find(answer);
  }
  parsed.ignored = reader.Unknown();
  return parsed;
}

}  // namespace

absl::StatusOr<PlacementCase> ParsePlacementCase(absl::string_view text, absl::string_view source,
                                                 const std::string& name) {
  MOEBIUS_ASSIGN_OR_RETURN(const Json json, Json::Parse(text, source, 256u << 20));
  if (json.kind() != Json::Kind::kArray) return ReadCase(json, source);
  std::vector<std::string> names;
  for (const Json& element : json.elements()) {
    const Json* const named = element.Find("name");
    if (named == nullptr || named->kind() != Json::Kind::kString) continue;
    if (named->string() == name) return ReadCase(element, source);
    names.push_back(named->string());
  }
  if (name.empty() && json.elements().size() == 1) return ReadCase(json.elements()[0], source);
  return absl::NotFoundError(absl::StrCat(source,
                                          name.empty()
                                              ? " holds several cases: choose one with --name"
                                              : absl::StrCat(" has no case '", name, "'"),
                                          "; there are ", absl::StrJoin(names, ", ")));
}

}  // namespace moebius
