// SPDX-License-Identifier: Apache-2.0
#include "router_service/bias_file.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "moebius/base/hash.h"
#include "moebius/base/replace_file.h"
#include "moebius/base/status.h"
#include "moebius/model/file.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr int64_t kFormat = 1;
constexpr char kChecksum[] = "checksum";

std::string ChecksumOf(const Json& json) {
  const std::string text = json.ToCanonicalText();
  return FormatHash64(Hash64(text.data(), text.size()));
}

absl::Status Refuse(absl::string_view source, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(source, ": ", what));
}

// A member of a kind; null with a failure in `status` where it is absent or another.
const Json* Member(const Json& json, absl::string_view source, const char* name, Json::Kind kind,
                   absl::Status* status) {
  const Json* member = json.Find(name);
  if (member != nullptr && member->kind() == kind) return member;
  *status =
      Refuse(source, absl::StrCat(name, " is ", member == nullptr ? "absent" : member->KindName()));
  return nullptr;
}

absl::StatusOr<LayerBias> ParseLayer(const Json& json, absl::string_view source) {
  absl::Status status;
  const Json* layer = Member(json, source, "layer", Json::Kind::kInteger, &status);
  const Json* bias = Member(json, source, "bias", Json::Kind::kArray, &status);
  if (layer == nullptr || bias == nullptr) return status;
  if (layer->integer() < 0 || layer->integer() > INT32_MAX) return Refuse(source, "layer");
  LayerBias parsed;
  parsed.layer = static_cast<int32_t>(layer->integer());
  for (const Json& value : bias->elements()) {
    if (value.kind() == Json::Kind::kInteger) {
      parsed.bias.push_back(static_cast<float>(value.integer()));
    } else if (value.kind() == Json::Kind::kNumber) {
      parsed.bias.push_back(static_cast<float>(value.number()));
    } else {
      return Refuse(source,
                    absl::StrCat("a bias of layer ", parsed.layer, " is ", value.KindName()));
    }
  }
  return parsed;
}

}  // namespace

std::string FormatBiasFile(const BiasTable& table) {
  std::vector<Json> layers;
  for (const LayerBias& layer : table.layers) {
    std::vector<Json> bias;
    // Either zero is written as 0, as which it is read.
    for (const float value : layer.bias) bias.push_back(Json::Number(value == 0 ? 0 : value));
    Json entry = Json::Object({});
    entry.Set("layer", Json::Integer(layer.layer));
    entry.Set("bias", Json::Array(std::move(bias)));
    layers.push_back(std::move(entry));
  }
  Json json = Json::Object({});
  json.Set("format", Json::Integer(kFormat));
  json.Set("model_hash", Json::String(table.model_hash));
  json.Set("version", Json::Integer(static_cast<int64_t>(table.version)));
  json.Set("layers", Json::Array(std::move(layers)));
  // Of what a reader will have: a whole number is read back as one.
  const Json as_read = *Json::Parse(json.ToCanonicalText(), "biases", kMaxBiasFileBytes);
  json.Set(kChecksum, Json::String(ChecksumOf(as_read)));
  return json.ToCanonicalText() + "\n";
}

absl::StatusOr<BiasTable> ParseBiasFile(absl::string_view text, absl::string_view source) {
  MOEBIUS_ASSIGN_OR_RETURN(const Json json, Json::Parse(text, source, kMaxBiasFileBytes));
  if (json.kind() != Json::Kind::kObject) return Refuse(source, "no object");
  absl::Status status;
  const Json* format = Member(json, source, "format", Json::Kind::kInteger, &status);
  const Json* checksum = Member(json, source, kChecksum, Json::Kind::kString, &status);
  const Json* model = Member(json, source, "model_hash", Json::Kind::kString, &status);
  const Json* version = Member(json, source, "version", Json::Kind::kInteger, &status);
  const Json* layers = Member(json, source, "layers", Json::Kind::kArray, &status);
  if (!status.ok()) return status;
  if (format->integer() != kFormat) {
    return Refuse(source,
                  absl::StrCat("format ", format->integer(), "; this program reads ", kFormat));
  }
  std::map<std::string, Json> members = json.members();
  members.erase(kChecksum);
  const Json without = Json::Object(std::move(members));
  if (ChecksumOf(without) != checksum->string()) {
    return absl::DataLossError(absl::StrCat(source, ": its checksum is ", ChecksumOf(without),
                                            ", not ", PrintableName(checksum->string())));
  }
  if (version->integer() < 0) return Refuse(source, "version is negative");
  BiasTable table;
  table.model_hash = model->string();
  table.version = static_cast<uint64_t>(version->integer());
  for (const Json& entry : layers->elements()) {
    MOEBIUS_ASSIGN_OR_RETURN(LayerBias layer, ParseLayer(entry, source));
    table.layers.push_back(std::move(layer));
  }
  return table;
}

absl::StatusOr<BiasTable> ReadBiasFile(const std::string& path) {
  MOEBIUS_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  if (file.size_bytes() > kMaxBiasFileBytes) {
    return Refuse(path, absl::StrCat(file.size_bytes(), " bytes; at most ", kMaxBiasFileBytes));
  }
  std::string text(file.size_bytes(), '\0');
  MOEBIUS_RETURN_IF_ERROR(
      file.Read(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size())));
  return ParseBiasFile(text, path);
}

absl::Status WriteBiasFile(const std::string& path, const BiasTable& table) {
  return ReplaceFile(path, FormatBiasFile(table), 0640);
}

BiasFile::BiasFile(std::string path, BiasControl* control,
                   std::function<void(const std::string&)> on_notice)
    : path_(std::move(path)), control_(*control), on_notice_(std::move(on_notice)) {}

absl::Status BiasFile::Restore() {
  const absl::StatusOr<BiasTable> saved = ReadBiasFile(path_);
  if (absl::IsNotFound(saved.status())) return absl::OkStatus();
  MOEBIUS_RETURN_IF_ERROR(saved.status());
  MOEBIUS_RETURN_IF_ERROR(control_.Restore(*saved));
  saved_version_ = saved->version;
  return absl::OkStatus();
}

void BiasFile::SaveIfChanged() {
  if (control_.version() == saved_version_.value_or(0)) return;
  const BiasTable table = control_.Read();
  const absl::Status written = WriteBiasFile(path_, table);
  if (written.ok()) {
    saved_version_ = table.version;
    last_failure_.clear();
    return;
  }
  num_failures_.fetch_add(1, std::memory_order_relaxed);
  std::string failure(written.message());
  if (failure != last_failure_) on_notice_(absl::StrCat("biases are not kept: ", failure));
  last_failure_ = std::move(failure);
}

}  // namespace moebius
