// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace moebius {

/// How a setting is described: in --help, in messages, and as key of a file.
struct SettingInfo {
  const char* group;
  const char* name;  // "admin-listen": --admin-listen, MOEBIUS_ADMIN_LISTEN, "admin-listen"
  const char* type;  // "ADDRESS", "N"; of a switch ""
  const char* help;
};

/// The settings of one program and where their values come from: flags > environment > file. Each
/// value is read without the locale and refused with the place that it came from.
///
/// The targets outlive the object and hold the defaults. Not thread-safe.
class Settings {
 public:
  void AddText(const SettingInfo& info, std::string* value);
  /// "", "true", "1" are on; "false", "0" are off.
  void AddSwitch(const SettingInfo& info, bool* value);
  /// In [min, max].
  void AddInteger(const SettingInfo& info, int64_t min, int64_t max, int64_t* value);
  /// A count of bytes, as 512MiB; in a file also a plain number.
  void AddBytes(const SettingInfo& info, int64_t* value);
  /// One of `choices`, as they are spelled.
  void AddChoice(const SettingInfo& info, std::vector<std::string> choices, std::string* value);
  /// A flag that may be repeated; a comma list in the environment; an array in a file. The place
  /// with the highest precedence gives the whole list.
  void AddList(const SettingInfo& info, std::vector<std::string>* values);

  /// What the command line asks for beside values.
  struct Requests {
    bool help = false;
    bool version = false;
    bool print_config = false;
    bool check_config = false;
    bool is_file_wrong = false;  // a failure is one of the file, not of the command line
  };

  /// Reads all three places. `environment` gives a variable's text or nothing. The file is that of
  /// --config or MOEBIUS_CONFIG, an object of names and values, nothing unknown in it.
  /// INVALID_ARGUMENT with the nearest known word for what nobody knows; NOT_FOUND for the file.
  using Environment = std::function<std::optional<std::string>(const std::string&)>;
  absl::Status Apply(const std::vector<std::string>& arguments, const Environment& environment,
                     Requests* requests);

  /// The values as a file that Apply reads back, with line breaks.
  std::string ToJson() const;
  /// Name, type, default and meaning of each, by group, in the order of the Add calls. Call it
  /// before Apply: the defaults are the targets' values.
  std::string Help() const;

 private:
  struct Setting {
    SettingInfo info;
    bool is_switch = false;
    bool is_list = false;
    bool is_number = false;
    std::function<absl::Status(absl::string_view place, const std::vector<std::string>& texts)> set;
    std::function<std::vector<std::string>()> texts;
  };
  using Values = std::map<std::string, std::vector<std::string>>;

  void Add(Setting setting);
  const Setting* Find(absl::string_view name) const;
  absl::Status UnknownName(absl::string_view what, absl::string_view name) const;
  absl::Status ReadArguments(const std::vector<std::string>& arguments, Values* values,
                             Requests* requests) const;
  absl::Status ApplyFile(const std::string& path, const Values& stronger);

  std::vector<Setting> settings_;
};

/// The environment of this process.
std::optional<std::string> ProcessEnvironment(const std::string& name);

}  // namespace moebius
