// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/settings.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/base/parse_number.h"
#include "moebius/base/status.h"
#include "moebius/base/suggestion.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr char kConfigName[] = "config";
constexpr size_t kMaxConfigBytes = 1 << 20;

absl::StatusOr<bool> ParseSwitch(absl::string_view place, absl::string_view text) {
  if (text.empty() || text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return absl::InvalidArgumentError(absl::StrCat(place, " is true or false, not '", text, "'"));
}

std::string VariableName(absl::string_view name) {
  std::string variable = absl::StrCat("MOEBIUS_", absl::AsciiStrToUpper(name));
  for (char& c : variable) {
    if (c == '-') c = '_';
  }
  return variable;
}

// The texts of one member of a file.
absl::StatusOr<std::vector<std::string>> TextsOf(const Json& value, absl::string_view place,
                                                 bool is_list) {
  switch (value.kind()) {
    case Json::Kind::kString:
      return std::vector<std::string>{value.string()};
    case Json::Kind::kBoolean:
      return std::vector<std::string>{value.boolean() ? "true" : "false"};
    case Json::Kind::kInteger:
    case Json::Kind::kLargeInteger:
    case Json::Kind::kNumber:
      return std::vector<std::string>{value.ToCanonicalText()};
    case Json::Kind::kArray:
      if (is_list) {
        std::vector<std::string> texts;
        for (const Json& element : value.elements()) {
          MOEBIUS_ASSIGN_OR_RETURN(const auto text, TextsOf(element, place, false));
          texts.push_back(text.front());
        }
        return texts;
      }
      break;
    default:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat(place, " cannot be ", value.KindName()));
}

absl::StatusOr<std::string> ReadConfigFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return WithHint(absl::NotFoundError(absl::StrCat(path, ": cannot be read")),
                    "--print-config > FILE writes one with all settings");
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

std::optional<std::string> ProcessEnvironment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

void Settings::Add(Setting setting) {
  MOEBIUS_CHECK(Find(setting.info.name) == nullptr);
  settings_.push_back(std::move(setting));
}

void Settings::AddText(const SettingInfo& info, std::string* value) {
  Setting setting{info};
  setting.set = [value](absl::string_view, const std::vector<std::string>& texts) {
    *value = texts.back();
    return absl::OkStatus();
  };
  setting.texts = [value] { return std::vector<std::string>{*value}; };
  Add(std::move(setting));
}

void Settings::AddSwitch(const SettingInfo& info, bool* value) {
  Setting setting{info};
  setting.is_switch = true;
  setting.set = [value](absl::string_view place, const std::vector<std::string>& texts) {
    MOEBIUS_ASSIGN_OR_RETURN(*value, ParseSwitch(place, texts.back()));
    return absl::OkStatus();
  };
  setting.texts = [value] { return std::vector<std::string>{*value ? "true" : "false"}; };
  Add(std::move(setting));
}

void Settings::AddInteger(const SettingInfo& info, int64_t min, int64_t max, int64_t* value) {
  Setting setting{info};
  setting.is_number = true;
  setting.set = [value, min, max](absl::string_view place, const std::vector<std::string>& texts) {
    MOEBIUS_ASSIGN_OR_RETURN(const int64_t number, ParseInteger(place, texts.back()));
    if (number < min || number > max) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, " is ", number, ", not in [", min, ", ", max, "]"));
    }
    *value = number;
    return absl::OkStatus();
  };
  setting.texts = [value] { return std::vector<std::string>{absl::StrCat(*value)}; };
  Add(std::move(setting));
}

void Settings::AddBytes(const SettingInfo& info, int64_t* value) {
  Setting setting{info};
  setting.is_number = true;
  setting.set = [value](absl::string_view place, const std::vector<std::string>& texts) {
    // 0 leaves it to the program; ParseBytes takes sizes only.
    if (texts.back() == "0") {
      *value = 0;
      return absl::OkStatus();
    }
    MOEBIUS_ASSIGN_OR_RETURN(*value, ParseBytes(place, texts.back()));
    return absl::OkStatus();
  };
  setting.texts = [value] { return std::vector<std::string>{absl::StrCat(*value)}; };
  Add(std::move(setting));
}

void Settings::AddChoice(const SettingInfo& info, std::vector<std::string> choices,
                         std::string* value) {
  Setting setting{info};
  setting.set = [value, choices = std::move(choices)](absl::string_view place,
                                                      const std::vector<std::string>& texts) {
    for (const std::string& choice : choices) {
      if (texts.back() == choice) {
        *value = choice;
        return absl::OkStatus();
      }
    }
    return absl::InvalidArgumentError(absl::StrCat(
        place, " is one of ", absl::StrJoin(choices, ", "), ", not '", texts.back(), "'"));
  };
  setting.texts = [value] { return std::vector<std::string>{*value}; };
  Add(std::move(setting));
}

void Settings::AddList(const SettingInfo& info, std::vector<std::string>* values) {
  Setting setting{info};
  setting.is_list = true;
  setting.set = [values](absl::string_view, const std::vector<std::string>& texts) {
    *values = texts;
    return absl::OkStatus();
  };
  setting.texts = [values] { return *values; };
  Add(std::move(setting));
}

const Settings::Setting* Settings::Find(absl::string_view name) const {
  for (const Setting& setting : settings_) {
    if (name == setting.info.name) return &setting;
  }
  return nullptr;
}

absl::Status Settings::UnknownName(absl::string_view what, absl::string_view name) const {
  const bool is_flag = absl::StartsWith(what, "flag");
  std::vector<std::string> known;
  for (const Setting& setting : settings_) {
    known.push_back(absl::StrCat(is_flag ? "--" : "", setting.info.name));
  }
  if (is_flag) {
    for (const char* name_of_request : {"help", "version", "print-config", "check-config"}) {
      known.push_back(absl::StrCat("--", name_of_request));
    }
  }
  const std::string nearest = NearestWord(name, known);
  std::string message = absl::StrCat("unknown ", what, " '", name, "'");
  if (!nearest.empty()) absl::StrAppend(&message, ", did you mean '", nearest, "'?");
  return WithHint(absl::InvalidArgumentError(message), "--help lists all settings");
}

absl::Status Settings::ReadArguments(const std::vector<std::string>& arguments, Values* values,
                                     Requests* requests) const {
  const std::map<std::string, bool*> switches = {{"help", &requests->help},
                                                 {"version", &requests->version},
                                                 {"print-config", &requests->print_config},
                                                 {"check-config", &requests->check_config}};
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (!absl::StartsWith(word, "--")) {
      return WithHint(absl::InvalidArgumentError(absl::StrCat("unexpected word '", word, "'")),
                      "--help lists all settings");
    }
    const size_t equals = word.find('=');
    const std::string flag = word.substr(0, equals);
    const std::string name = flag.substr(2);
    if (const auto request = switches.find(name); request != switches.end()) {
      *request->second = true;
      continue;
    }
    const Setting* setting = Find(name);
    if (setting == nullptr && name != kConfigName) return UnknownName("flag", flag);
    std::string text;
    if (equals != std::string::npos) {
      text = word.substr(equals + 1);
    } else if (setting == nullptr || !setting->is_switch) {
      if (++i == arguments.size()) {
        return absl::InvalidArgumentError(absl::StrCat(flag, " needs a value"));
      }
      text = arguments[i];
    }
    (*values)[name].push_back(text);
  }
  return absl::OkStatus();
}

absl::Status Settings::ApplyFile(const std::string& path, const Values& stronger) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::string text, ReadConfigFile(path));
  MOEBIUS_ASSIGN_OR_RETURN(const Json json, Json::Parse(text, path, kMaxConfigBytes));
  if (json.kind() != Json::Kind::kObject) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is ", json.KindName(), ", not an object of settings"));
  }
  for (const auto& [name, value] : json.members()) {
    const Setting* setting = Find(name);
    if (setting == nullptr) return UnknownName(absl::StrCat("setting in ", path), name);
    if (stronger.contains(name)) continue;
    const std::string place = absl::StrCat(path, ": ", name);
    MOEBIUS_ASSIGN_OR_RETURN(const auto texts, TextsOf(value, place, setting->is_list));
    MOEBIUS_RETURN_IF_ERROR(setting->set(place, texts));
  }
  return absl::OkStatus();
}

absl::Status Settings::Apply(const std::vector<std::string>& arguments,
                             const Environment& environment, Requests* requests) {
  Values values;
  MOEBIUS_RETURN_IF_ERROR(ReadArguments(arguments, &values, requests));
  if (requests->help || requests->version) return absl::OkStatus();
  std::map<std::string, std::string> places;
  for (const auto& [name, texts] : values) places[name] = absl::StrCat("--", name);
  const auto read_variable = [&](const std::string& name, bool is_list) {
    if (values.contains(name)) return;
    const std::string variable = VariableName(name);
    const std::optional<std::string> text = environment(variable);
    if (!text.has_value()) return;
    values[name] = is_list ? std::vector<std::string>(absl::StrSplit(*text, ',', absl::SkipEmpty()))
                           : std::vector<std::string>{*text};
    places[name] = variable;
  };
  for (const Setting& setting : settings_) read_variable(setting.info.name, setting.is_list);
  read_variable(kConfigName, false);
  if (const auto file = values.find(kConfigName); file != values.end()) {
    const absl::Status read = ApplyFile(file->second.back(), values);
    requests->is_file_wrong = !read.ok();
    MOEBIUS_RETURN_IF_ERROR(read);
  }
  for (const auto& [name, texts] : values) {
    if (name == kConfigName) continue;
    MOEBIUS_RETURN_IF_ERROR(Find(name)->set(places[name], texts));
  }
  return absl::OkStatus();
}

std::string Settings::ToJson() const {
  Json json = Json::Object({});
  for (const Setting& setting : settings_) {
    const std::vector<std::string> texts = setting.texts();
    if (setting.is_list) {
      std::vector<Json> elements;
      for (const std::string& text : texts) elements.push_back(Json::String(text));
      json.Set(setting.info.name, Json::Array(std::move(elements)));
    } else if (setting.is_switch) {
      json.Set(setting.info.name, Json::Boolean(texts.front() == "true"));
    } else if (setting.is_number) {
      json.Set(setting.info.name,
               Json::Integer(ParseInteger(setting.info.name, texts.front()).value_or(0)));
    } else {
      json.Set(setting.info.name, Json::String(texts.front()));
    }
  }
  return json.ToPrettyText();
}

std::string Settings::Help() const {
  std::string out;
  absl::string_view group;
  for (const Setting& setting : settings_) {
    if (group != setting.info.group) {
      group = setting.info.group;
      absl::StrAppend(&out, out.empty() ? "" : "\n", group, ":\n");
    }
    const std::string flag = absl::StrCat("--", setting.info.name, " ", setting.info.type);
    const std::string value = absl::StrJoin(setting.texts(), ",");
    absl::StrAppendFormat(&out, "  %-26s %s", flag, setting.info.help);
    if (!setting.is_switch && !value.empty()) absl::StrAppend(&out, " [", value, "]");
    absl::StrAppend(&out, "\n");
  }
  absl::StrAppend(&out,
                  "\nConfiguration:\n"
                  "  --config FILE              An object of the names above; flags and MOEBIUS_* "
                  "variables are stronger\n"
                  "  --print-config             Print what holds as such a file, and end\n"
                  "  --check-config             Say whether it is right, and end\n"
                  "  --version                  Print the version, and end\n");
  return out;
}

}  // namespace moebius
