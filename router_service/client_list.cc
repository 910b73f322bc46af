// SPDX-License-Identifier: Apache-2.0
#include "router_service/client_list.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"
#include "moebius/model/file.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr size_t kHashDigits = 64;
constexpr size_t kMaxNameBytes = 64;
constexpr int64_t kMaxLimit = int64_t{1} << 40;

absl::Status Refuse(absl::string_view source, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(source, ": ", what));
}

bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
                  c == '-';
         });
}

bool IsHash(absl::string_view text) {
  return text.size() == kHashDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

absl::StatusOr<int64_t> LimitOf(const Json& value, absl::string_view what) {
  if (value.kind() != Json::Kind::kInteger || value.integer() < 0 || value.integer() > kMaxLimit) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is no whole number from 0 to ", kMaxLimit));
  }
  return value.integer();
}

absl::StatusOr<std::vector<std::string>> HashesOf(const Json& value) {
  std::vector<std::string> hashes;
  const bool is_list = value.kind() == Json::Kind::kArray && !value.elements().empty() &&
                       value.elements().size() <= kMaxKeysOfClient;
  for (size_t i = 0; is_list && i < value.elements().size(); ++i) {
    const Json& hash = value.elements()[i];
    if (hash.kind() == Json::Kind::kString && IsHash(hash.string())) {
      hashes.push_back(hash.string());
    }
  }
  if (is_list && hashes.size() == value.elements().size()) return hashes;
  return absl::InvalidArgumentError(absl::StrCat("keys_sha256 is no list of 1 to ",
                                                 kMaxKeysOfClient,
                                                 " times 64 hexadecimal digits in lower case"));
}

absl::StatusOr<ClientEntry> ParseClient(const Json& json) {
  if (json.kind() != Json::Kind::kObject) {
    return absl::InvalidArgumentError(absl::StrCat("a client is ", json.KindName()));
  }
  ClientEntry client;
  for (const auto& [field, value] : json.members()) {
    if (field == "name" && value.kind() == Json::Kind::kString) {
      client.name = value.string();
    } else if (field == "keys_sha256") {
      MOEBIUS_ASSIGN_OR_RETURN(client.key_hashes, HashesOf(value));
    } else if (field == "max_in_flight") {
      MOEBIUS_ASSIGN_OR_RETURN(client.max_in_flight, LimitOf(value, field));
    } else if (field == "tokens_per_minute") {
      MOEBIUS_ASSIGN_OR_RETURN(client.tokens_per_minute, LimitOf(value, field));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("a client has name, keys_sha256, max_in_flight and tokens_per_minute, not '",
                       PrintableName(field), "' as ", value.KindName()));
    }
  }
  if (!IsName(client.name)) {
    return absl::InvalidArgumentError(absl::StrCat("the name '", PrintableName(client.name),
                                                   "' is not 1 to 64 of a-z, 0-9, '.', '_', '-'"));
  }
  if (client.key_hashes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the client ", client.name, " has no key"));
  }
  return client;
}

}  // namespace

absl::StatusOr<std::vector<ClientEntry>> ParseClientList(absl::string_view text,
                                                         absl::string_view source) {
  MOEBIUS_ASSIGN_OR_RETURN(const Json json, Json::Parse(text, source, kMaxClientListBytes));
  const Json* list = json.kind() == Json::Kind::kObject ? json.Find("clients") : nullptr;
  if (list == nullptr || list->kind() != Json::Kind::kArray || json.members().size() != 1) {
    return Refuse(source, "it is not {\"clients\": [ … ]} alone");
  }
  if (list->elements().size() > kMaxClients) {
    return Refuse(source,
                  absl::StrCat(list->elements().size(), " clients, the limit is ", kMaxClients));
  }
  std::vector<ClientEntry> clients;
  std::set<std::string> names, hashes;
  for (const Json& element : list->elements()) {
    absl::StatusOr<ClientEntry> client = ParseClient(element);
    if (!client.ok()) return Refuse(source, client.status().message());
    if (!names.insert(client->name).second) {
      return Refuse(source, absl::StrCat("the client ", client->name, " is there twice"));
    }
    for (const std::string& hash : client->key_hashes) {
      if (hashes.insert(hash).second) continue;
      return Refuse(source, absl::StrCat("a key of ", client->name, " is there twice"));
    }
    clients.push_back(*std::move(client));
  }
  return clients;
}

std::string FormatClientList(const std::vector<ClientEntry>& clients) {
  std::vector<Json> list;
  for (const ClientEntry& client : clients) {
    Json entry = Json::Object({});
    entry.Set("name", Json::String(client.name));
    std::vector<Json> hashes;
    for (const std::string& hash : client.key_hashes) hashes.push_back(Json::String(hash));
    entry.Set("keys_sha256", Json::Array(std::move(hashes)));
    entry.Set("max_in_flight", Json::Integer(client.max_in_flight));
    entry.Set("tokens_per_minute", Json::Integer(client.tokens_per_minute));
    list.push_back(std::move(entry));
  }
  Json json = Json::Object({});
  json.Set("clients", Json::Array(std::move(list)));
  return json.ToCanonicalText();
}

absl::StatusOr<std::vector<ClientEntry>> ReadClientList(const std::string& path) {
  MOEBIUS_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  if (file.size_bytes() > kMaxClientListBytes) {
    return Refuse(path,
                  absl::StrCat(file.size_bytes(), " bytes, the limit is ", kMaxClientListBytes));
  }
  std::string text(static_cast<size_t>(file.size_bytes()), '\0');
  MOEBIUS_RETURN_IF_ERROR(
      file.Read(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size())));
  return ParseClientList(text, path);
}

}  // namespace moebius
