// SPDX-License-Identifier: Apache-2.0
#include "cli/unknown_words.h"

#include <algorithm>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/suggestion.h"

namespace moebius {
namespace {

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

const CLI::App* FindCommand(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options({})) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

absl::Status UnknownWord(absl::string_view kind, const std::string& word,
                         const std::vector<std::string>& known, const std::string& help) {
  const std::string nearest = NearestWord(word, known);
  std::string message = absl::StrCat("unknown ", kind, " '", word, "'");
  if (!nearest.empty()) absl::StrAppend(&message, ", did you mean '", nearest, "'?");
  return WithHint(absl::InvalidArgumentError(message), absl::StrCat("see: ", help, " --help"));
}

// How many of the words after a flag are its values.
size_t NumValues(const CLI::Option& option) {
  return static_cast<size_t>(std::max(0, option.get_items_expected_min()));
}

// Whether words that belong to no flag are values of the command; CLI11 counts them.
bool TakesWords(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options({})) {
    if (option->get_positional()) return true;
  }
  return false;
}

}  // namespace

absl::Status FindUnknownWords(const CLI::App& app, absl::Span<const std::string> words,
                              const std::string& help) {
  for (size_t index = 0; index < words.size(); ++index) {
    const std::string& word = words[index];
    if (word == "--") return absl::OkStatus();
    if (absl::StartsWith(word, "--")) {
      const std::string name = word.substr(0, word.find('='));
      const CLI::Option* option = app.get_option_no_throw(name);
      if (option == nullptr) return UnknownWord("flag", name, FlagNames(app), help);
      if (name != word) continue;
      if (words.size() - index - 1 < NumValues(*option)) {
        return WithHint(absl::InvalidArgumentError(absl::StrCat("flag '", name, "' needs a value")),
                        absl::StrCat("see: ", help, " --help"));
      }
      index += NumValues(*option);
      continue;
    }
    if (absl::StartsWith(word, "-")) {
      if (app.get_option_no_throw(word) == nullptr) {
        return UnknownWord("flag", word, FlagNames(app), help);
      }
      continue;
    }
    const CLI::App* command = FindCommand(app, word);
    if (command == nullptr && TakesWords(app)) continue;
    if (command == nullptr) {
      return CommandNames(app).empty()
                 ? WithHint(
                       absl::InvalidArgumentError(absl::StrCat("unexpected word '", word, "'")),
                       absl::StrCat("see: ", help, " --help"))
                 : UnknownWord("command", word, CommandNames(app), help);
    }
    return FindUnknownWords(*command, words.subspan(index + 1), absl::StrCat(help, " ", word));
  }
  return absl::OkStatus();
}

std::string CommandPath(const CLI::App& app, absl::Span<const std::string> words) {
  std::string path = "moebius";
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    command = FindCommand(*command, word);
    if (command == nullptr) break;
    absl::StrAppend(&path, " ", word);
  }
  return path;
}

}  // namespace moebius
