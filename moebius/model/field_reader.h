// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "moebius/model/json.h"

namespace moebius {

/// Reads the fields of one JSON object and keeps the first refusal, so that a parser reads like the
/// list of its fields: after a refusal every call returns a harmless value. null means absent for
/// optional fields. Not thread-safe; borrows the object.
class FieldReader {
 public:
  /// `prefix` starts every message: "config.json: ", or "config.json: rope_scaling.".
  FieldReader(const Json& object, std::string prefix);

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

  /// Present and not null.
  bool Has(absl::string_view name) const;
  /// The value of whatever kind, or null.
  const Json* Field(absl::string_view name) const { return object_.Find(name); }

  int64_t RequiredInteger(absl::string_view name, int64_t low, int64_t high);
  /// The first of several names that is present.
  int64_t RequiredInteger(std::initializer_list<absl::string_view> names, int64_t low,
                          int64_t high);
  std::string RequiredString(absl::string_view name);
  std::optional<int64_t> OptionalInteger(absl::string_view name, int64_t low, int64_t high);
  int64_t OptionalInteger(absl::string_view name, int64_t low, int64_t high, int64_t otherwise) {
    return OptionalInteger(name, low, high).value_or(otherwise);
  }
  /// An integer or a number with a fraction, in [low, high].
  std::optional<double> OptionalNumber(absl::string_view name, double low, double high);
  double OptionalNumber(absl::string_view name, double low, double high, double otherwise) {
    return OptionalNumber(name, low, high).value_or(otherwise);
  }
  std::optional<bool> OptionalBoolean(absl::string_view name);
  bool OptionalBoolean(absl::string_view name, bool otherwise) {
    return OptionalBoolean(name).value_or(otherwise);
  }
  std::optional<std::string> OptionalString(absl::string_view name);
  /// An integer or a list of them; ascending and distinct; empty when absent.
  std::vector<int64_t> OptionalIntegers(absl::string_view name, int64_t low, int64_t high);
  std::vector<std::string> OptionalStrings(absl::string_view name);
  const Json* OptionalObject(absl::string_view name);

  /// INVALID_ARGUMENT "config.json: <name> <reason>".
  void Refuse(absl::string_view name, absl::string_view reason);
  /// UNIMPLEMENTED "config.json: <name> <reason>".
  void RefuseUnsupported(absl::string_view name, absl::string_view reason);
  /// Keeps `status` if nothing was refused before.
  void Keep(absl::Status status);
  /// Refuses members that are none of `names`.
  void RefuseOthers(std::initializer_list<absl::string_view> names);

  const std::string& prefix() const { return prefix_; }

 private:
  const Json* Find(absl::string_view name);

  const Json& object_;
  std::string prefix_;
  absl::Status status_;
};

/// A value as a message shows it: its canonical JSON, cut to 60 characters.
std::string ShortText(const Json& value);

}  // namespace moebius
