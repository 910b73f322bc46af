// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moebius {

/// Receives a JSON text piece by piece. A failure returned by any call stops the parse and becomes
/// its result. Keys arrive before their values; strings are valid UTF-8 and live for the call only.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual absl::Status Null() = 0;
  virtual absl::Status Boolean(bool value) = 0;
  /// An integer in [-2^63, 2^63).
  virtual absl::Status Integer(int64_t value) = 0;
  /// An integer in [2^63, 2^64).
  virtual absl::Status LargeInteger(uint64_t value) = 0;
  /// A number that was written with a fraction or an exponent, finite.
  virtual absl::Status Number(double value) = 0;
  virtual absl::Status String(absl::string_view value) = 0;
  virtual absl::Status Key(absl::string_view key) = 0;
  virtual absl::Status BeginObject() = 0;
  virtual absl::Status EndObject() = 0;
  virtual absl::Status BeginArray() = 0;
  virtual absl::Status EndArray() = 0;
};

/// Parses `text` (RFC 8259, no extensions). Refuses, with INVALID_ARGUMENT that starts with
/// `source`: anything malformed, invalid UTF-8, integers outside [-2^63, 2^64), numbers that
/// overflow a double, nesting deeper than 64. Duplicate keys are the receiver's to refuse.
/// Numbers do not depend on the locale. Memory is bounded by the longest string.
absl::Status ParseJsonEvents(absl::string_view text, absl::string_view source, JsonEvents& events);

/// A parsed JSON value. Objects keep their members sorted by key.
class Json {
 public:
  enum class Kind { kNull, kBoolean, kInteger, kLargeInteger, kNumber, kString, kArray, kObject };

  /// Parses a text of at most `max_bytes`; refuses what ParseJsonEvents refuses, and duplicate
  /// keys.
  static absl::StatusOr<Json> Parse(absl::string_view text, absl::string_view source,
                                    size_t max_bytes = 16u << 20);

  Json() = default;
  static Json Boolean(bool value);
  static Json Integer(int64_t value);
  static Json LargeInteger(uint64_t value);
  static Json Number(double value);
  static Json String(absl::string_view value);
  static Json Array(std::vector<Json> elements);
  static Json Object(std::map<std::string, Json> members);

  Kind kind() const { return kind_; }
  /// "null", "a boolean", "a string", …, for messages.
  absl::string_view KindName() const;

  // Each is valid for its kind alone.
  bool boolean() const { return boolean_; }
  int64_t integer() const { return integer_; }
  uint64_t large_integer() const { return static_cast<uint64_t>(integer_); }
  double number() const { return number_; }
  const std::string& string() const { return string_; }
  const std::vector<Json>& elements() const { return elements_; }
  const std::map<std::string, Json>& members() const { return members_; }

  /// The member of an object, or null where this is no object or has none.
  const Json* Find(absl::string_view key) const;
  /// Adds or replaces a member; this must be an object.
  void Set(absl::string_view key, Json value);

  /// Canonical text: no white space, keys ascending by bytes, shortest round-trip numbers, control
  /// characters as \u00xx. Equal values give equal bytes on every machine: what hashes are made of.
  std::string ToCanonicalText() const;
  /// The same with line breaks and two spaces per level, for people.
  std::string ToPrettyText() const;

  friend bool operator==(const Json&, const Json&) = default;

 private:
  void Append(std::string& out, int indent) const;

  Kind kind_ = Kind::kNull;
  bool boolean_ = false;
  int64_t integer_ = 0;
  double number_ = 0;
  std::string string_;
  std::vector<Json> elements_;
  std::map<std::string, Json> members_;
};

/// Shortest decimal text that reads back as `value`, independent of the locale.
std::string FormatNumber(double value);

}  // namespace moebius
