// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/field_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/model/file.h"

namespace moebius {
namespace {

bool IsInteger(const Json& value) {
  return value.kind() == Json::Kind::kInteger || value.kind() == Json::Kind::kLargeInteger;
}

}  // namespace

std::string ShortText(const Json& value) {
  std::string text = value.ToCanonicalText();
  return text.size() <= 60 ? text : PrintableName(text.substr(0, 60)) + "…";
}

FieldReader::FieldReader(const Json& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {
  if (object_.kind() != Json::Kind::kObject) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat(prefix_, "must be an object, not ", object_.KindName()));
  }
}

void FieldReader::Keep(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void FieldReader::Refuse(absl::string_view name, absl::string_view reason) {
  Keep(absl::InvalidArgumentError(absl::StrCat(prefix_, name, " ", reason)));
}

void FieldReader::RefuseUnsupported(absl::string_view name, absl::string_view reason) {
  Keep(absl::UnimplementedError(absl::StrCat(prefix_, name, " ", reason)));
}

void FieldReader::RefuseOthers(std::initializer_list<absl::string_view> names) {
  for (const auto& [name, value] : object_.members()) {
    if (std::find(names.begin(), names.end(), absl::string_view(name)) == names.end()) {
      RefuseUnsupported(PrintableName(name), "is not a field that this build knows");
    }
  }
}

const Json* FieldReader::Find(absl::string_view name) {
  if (!ok()) return nullptr;
  const Json* value = object_.Find(name);
  return value == nullptr || value->kind() == Json::Kind::kNull ? nullptr : value;
}

bool FieldReader::Has(absl::string_view name) const {
  const Json* value = object_.Find(name);
  return value != nullptr && value->kind() != Json::Kind::kNull;
}

std::optional<int64_t> FieldReader::OptionalInteger(absl::string_view name, int64_t low,
                                                    int64_t high) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!IsInteger(*value)) {
    // 320.0 and 3.2e2 show as 320, which alone would read as a contradiction.
    Refuse(name, absl::StrCat("must be an integer, it is ", ShortText(*value),
                              value->kind() == Json::Kind::kNumber ? ", " : "",
                              value->kind() == Json::Kind::kNumber ? value->KindName() : ""));
    return std::nullopt;
  }
  if (value->kind() == Json::Kind::kLargeInteger || value->integer() < low ||
      value->integer() > high) {
    Refuse(name,
           absl::StrCat("must be between ", low, " and ", high, ", it is ", ShortText(*value)));
    return std::nullopt;
  }
  return value->integer();
}

int64_t FieldReader::RequiredInteger(absl::string_view name, int64_t low, int64_t high) {
  return RequiredInteger({name}, low, high);
}

int64_t FieldReader::RequiredInteger(std::initializer_list<absl::string_view> names, int64_t low,
                                     int64_t high) {
  for (const absl::string_view name : names) {
    if (Has(name)) return OptionalInteger(name, low, high).value_or(low);
  }
  const absl::string_view name = *names.begin();
  Refuse(name, object_.Find(name) == nullptr ? "is absent" : "is null");
  return low;
}

std::string FieldReader::RequiredString(absl::string_view name) {
  if (Has(name)) return OptionalString(name).value_or("");
  Refuse(name, object_.Find(name) == nullptr ? "is absent" : "is null");
  return "";
}

std::optional<double> FieldReader::OptionalNumber(absl::string_view name, double low, double high) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  double number = 0;
  if (value->kind() == Json::Kind::kNumber) {
    number = value->number();
  } else if (value->kind() == Json::Kind::kInteger) {
    number = static_cast<double>(value->integer());
  } else {
    Refuse(name, absl::StrCat("must be a number, it is ", ShortText(*value)));
    return std::nullopt;
  }
  if (!(number >= low && number <= high)) {
    Refuse(name, absl::StrCat("must be between ", FormatNumber(low), " and ", FormatNumber(high),
                              ", it is ", ShortText(*value)));
    return std::nullopt;
  }
  return number;
}

std::optional<bool> FieldReader::OptionalBoolean(absl::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->kind() != Json::Kind::kBoolean) {
    Refuse(name, absl::StrCat("must be true or false, it is ", ShortText(*value)));
    return std::nullopt;
  }
  return value->boolean();
}

std::optional<std::string> FieldReader::OptionalString(absl::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->kind() != Json::Kind::kString) {
    Refuse(name, absl::StrCat("must be a string, it is ", ShortText(*value)));
    return std::nullopt;
  }
  return value->string();
}

std::vector<int64_t> FieldReader::OptionalIntegers(absl::string_view name, int64_t low,
                                                   int64_t high) {
  const Json* value = Find(name);
  if (value == nullptr) return {};
  if (value->kind() != Json::Kind::kArray) {
    const std::optional<int64_t> single = OptionalInteger(name, low, high);
    return single.has_value() ? std::vector<int64_t>{*single} : std::vector<int64_t>();
  }
  std::vector<int64_t> numbers;
  for (const Json& element : value->elements()) {
    if (element.kind() != Json::Kind::kInteger || element.integer() < low ||
        element.integer() > high) {
      Refuse(name, absl::StrCat("must hold integers between ", low, " and ", high, ", it is ",
                                ShortText(*value)));
      return {};
    }
    numbers.push_back(element.integer());
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::vector<std::string> FieldReader::OptionalStrings(absl::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return {};
  std::vector<std::string> strings;
  if (value->kind() == Json::Kind::kArray) {
    for (const Json& element : value->elements()) {
      if (element.kind() == Json::Kind::kString) strings.push_back(element.string());
    }
  }
  if (value->kind() != Json::Kind::kArray || strings.size() != value->elements().size()) {
    Refuse(name, absl::StrCat("must be a list of strings, it is ", ShortText(*value)));
    return {};
  }
  return strings;
}

const Json* FieldReader::OptionalObject(absl::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return nullptr;
  if (value->kind() != Json::Kind::kObject) {
    Refuse(name, absl::StrCat("must be an object, it is ", ShortText(*value)));
    return nullptr;
  }
  return value;
}

}  // namespace moebius
