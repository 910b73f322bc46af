// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

// Its assertions are about the locale's decimal point, which no result here depends on.
#define JSON_ASSERT(condition) static_cast<void>(0)
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/base/utf8.h"

namespace moebius {
namespace {

constexpr int kMaxDepth = 64;

/// Adapts the library's callbacks. Strings have been checked for UTF-8 by its lexer.
class SaxAdapter {
 public:
  SaxAdapter(absl::string_view source, JsonEvents& events) : source_(source), events_(events) {}

  bool null() { return Keep(events_.Null()); }
  bool boolean(bool value) { return Keep(events_.Boolean(value)); }
  bool number_integer(int64_t value) { return Keep(events_.Integer(value)); }
  bool number_unsigned(uint64_t value) {
    if (value <= static_cast<uint64_t>(INT64_MAX)) {
      return Keep(events_.Integer(static_cast<int64_t>(value)));
    }
    return Keep(events_.LargeInteger(value));
  }
  bool number_float(double, const std::string& token) { return Keep(Float(token)); }
  bool string(std::string& value) { return Keep(events_.String(value)); }
  bool binary(std::vector<uint8_t>&) { return false; }
  bool key(std::string& value) { return Keep(events_.Key(value)); }
  bool start_object(size_t) { return Keep(Descend()) && Keep(events_.BeginObject()); }
  bool end_object() {
    --depth_;
    return Keep(events_.EndObject());
  }
  bool start_array(size_t) { return Keep(Descend()) && Keep(events_.BeginArray()); }
  bool end_array() {
    --depth_;
    return Keep(events_.EndArray());
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& exception) {
    absl::string_view reason = exception.what();
    if (const size_t end = reason.find("] "); end != absl::string_view::npos) {
      reason.remove_prefix(end + 2);
    }
    std::string text(reason.substr(0, 200));
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F) c = '?';
    }
    status_ = absl::InvalidArgumentError(
        absl::StrCat(source_, ": not valid JSON near byte ", position, ": ", text));
    return false;
  }

  absl::Status TakeStatus() { return std::move(status_); }

 private:
  absl::Status Descend() {
    if (++depth_ <= kMaxDepth) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(source_, ": JSON is nested deeper than ", kMaxDepth));
  }

  // The token carries the locale's decimal point; every other character is fixed by the grammar.
  absl::Status Float(const std::string& token) {
    std::string text = token;
    bool is_integer = true;
    for (char& c : text) {
      if ((c >= '0' && c <= '9') || c == '-' || c == '+') continue;
      is_integer = false;
      if (c != 'e' && c != 'E') c = '.';
    }
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, value);
    if (is_integer || result.ec != std::errc() || result.ptr != end || !std::isfinite(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat(source_, ": number ", text.substr(0, 40), " is out of range"));
    }
    return events_.Number(value);
  }

  bool Keep(absl::Status status) {
    if (status.ok()) return true;
    status_ = std::move(status);
    return false;
  }

  absl::string_view source_;
  JsonEvents& events_;
  int depth_ = 0;
  absl::Status status_;
};

/// Builds a Json from events. Depth is bounded by the parser.
class TreeBuilder final : public JsonEvents {
 public:
  explicit TreeBuilder(absl::string_view source) : source_(source) {}

  absl::Status Null() override { return Place(Json()); }
  absl::Status Boolean(bool value) override { return Place(Json::Boolean(value)); }
  absl::Status Integer(int64_t value) override { return Place(Json::Integer(value)); }
  absl::Status LargeInteger(uint64_t value) override { return Place(Json::LargeInteger(value)); }
  absl::Status Number(double value) override { return Place(Json::Number(value)); }
  absl::Status String(absl::string_view value) override { return Place(Json::String(value)); }
  absl::Status Key(absl::string_view key) override {
    Level& level = levels_.back();
    level.key = std::string(key);
    if (level.members.count(level.key) > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(source_, ": duplicate key \"", key.substr(0, 100), "\""));
    }
    return absl::OkStatus();
  }
  absl::Status BeginObject() override { return Open(Json::Kind::kObject); }
  absl::Status EndObject() override {
    Json value = Json::Object(std::move(levels_.back().members));
    levels_.pop_back();
    return Place(std::move(value));
  }
  absl::Status BeginArray() override { return Open(Json::Kind::kArray); }
  absl::Status EndArray() override {
    Json value = Json::Array(std::move(levels_.back().elements));
    levels_.pop_back();
    return Place(std::move(value));
  }

  Json TakeRoot() { return std::move(root_); }

 private:
  struct Level {
    Json::Kind kind = Json::Kind::kNull;
    std::string key;
    std::map<std::string, Json> members;
    std::vector<Json> elements;
  };

  absl::Status Open(Json::Kind kind) {
    levels_.emplace_back();
    levels_.back().kind = kind;
    return absl::OkStatus();
  }

  absl::Status Place(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return absl::OkStatus();
    }
    Level& level = levels_.back();
    if (level.kind == Json::Kind::kArray) {
      level.elements.push_back(std::move(value));
    } else {
      level.members[level.key] = std::move(value);
    }
    return absl::OkStatus();
  }

  absl::string_view source_;
  std::vector<Level> levels_;
  Json root_;
};

}  // namespace

absl::Status ParseJsonEvents(absl::string_view text, absl::string_view source, JsonEvents& events) {
  SaxAdapter adapter(source, events);
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &adapter)) return absl::OkStatus();
  absl::Status status = adapter.TakeStatus();
  MOEBIUS_CHECK(!status.ok());
  return status;
}

absl::StatusOr<Json> Json::Parse(absl::string_view text, absl::string_view source,
                                 size_t max_bytes) {
  if (text.size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": has ", text.size(), " bytes, at most ", max_bytes, " are read"));
  }
  TreeBuilder builder(source);
  MOEBIUS_RETURN_IF_ERROR(ParseJsonEvents(text, source, builder));
  return builder.TakeRoot();
}

Json Json::Boolean(bool value) {
  Json json;
  json.kind_ = Kind::kBoolean;
  json.boolean_ = value;
  return json;
}

Json Json::Integer(int64_t value) {
  Json json;
  json.kind_ = Kind::kInteger;
  json.integer_ = value;
  return json;
}

Json Json::LargeInteger(uint64_t value) {
  Json json;
  json.kind_ = value <= static_cast<uint64_t>(INT64_MAX) ? Kind::kInteger : Kind::kLargeInteger;
  json.integer_ = static_cast<int64_t>(value);
  return json;
}

Json Json::Number(double value) {
  Json json;
  json.kind_ = Kind::kNumber;
  json.number_ = value;
  return json;
}

Json Json::String(absl::string_view value) {
  Json json;
  json.kind_ = Kind::kString;
  json.string_ = std::string(value);
  return json;
}

Json Json::Array(std::vector<Json> elements) {
  Json json;
  json.kind_ = Kind::kArray;
  json.elements_ = std::move(elements);
  return json;
}

Json Json::Object(std::map<std::string, Json> members) {
  Json json;
  json.kind_ = Kind::kObject;
  json.members_ = std::move(members);
  return json;
}

absl::string_view Json::KindName() const {
  switch (kind_) {
    case Kind::kNull:
      return "null";
    case Kind::kBoolean:
      return "a boolean";
    case Kind::kInteger:
    case Kind::kLargeInteger:
      return "an integer";
    case Kind::kNumber:
      return "a number with a fraction or exponent";
    case Kind::kString:
      return "a string";
    case Kind::kArray:
      return "a list";
    case Kind::kObject:
      return "an object";
  }
  return "?";
}

const Json* Json::Find(absl::string_view key) const {
  const auto found = members_.find(std::string(key));
  return found == members_.end() ? nullptr : &found->second;
}

void Json::Set(absl::string_view key, Json value) {
  MOEBIUS_CHECK(kind_ == Kind::kObject);
  members_[std::string(key)] = std::move(value);
}

std::string FormatNumber(double value) {
  char buffer[40];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, result.ptr);
}

namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";  // U+FFFD

// JSON is UTF-8: what is none (a file name, a flag's value) shows as replacement characters.
void AppendQuoted(std::string& out, absl::string_view text) {
  out.push_back('"');
  while (!text.empty()) {
    const size_t length = Utf8CharacterBytes(text);
    const unsigned char byte = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out += kReplacement;
    } else if (byte < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", byte);
    } else {
      if (byte == '"' || byte == '\\') out.push_back('\\');
      absl::StrAppend(&out, text.substr(0, length));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  out.push_back('"');
}

void AppendBreak(std::string& out, int indent) {
  if (indent < 0) return;
  out.push_back('\n');
  out.append(2 * static_cast<size_t>(indent), ' ');
}

}  // namespace

// indent < 0: canonical, else the level of the line that this value begins on.
void Json::Append(std::string& out, int indent) const {
  const int inner = indent < 0 ? indent : indent + 1;
  bool first = true;
  switch (kind_) {
    case Kind::kNull:
      out += "null";
      return;
    case Kind::kBoolean:
      out += boolean_ ? "true" : "false";
      return;
    case Kind::kInteger:
      absl::StrAppend(&out, integer_);
      return;
    case Kind::kLargeInteger:
      absl::StrAppend(&out, large_integer());
      return;
    case Kind::kNumber:
      out += std::isfinite(number_) ? FormatNumber(number_) : "null";
      return;
    case Kind::kString:
      AppendQuoted(out, string_);
      return;
    case Kind::kArray:
      out.push_back('[');
      for (const Json& element : elements_) {
        if (!first) out += indent < 0 ? "," : ", ";
        first = false;
        element.Append(out, inner);
      }
      out.push_back(']');
      return;
    case Kind::kObject:
      out.push_back('{');
      for (const auto& [key, value] : members_) {
        if (!first) out.push_back(',');
        first = false;
        AppendBreak(out, inner);
        AppendQuoted(out, key);
        out += indent < 0 ? ":" : ": ";
        value.Append(out, inner);
      }
      if (!first) AppendBreak(out, indent);
      out.push_back('}');
      return;
  }
}

std::string Json::ToCanonicalText() const {
  std::string out;
  Append(out, -1);
  return out;
}

std::string Json::ToPrettyText() const {
  std::string out;
  Append(out, 0);
  return out;
}

}  // namespace moebius
