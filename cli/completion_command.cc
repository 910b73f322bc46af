// SPDX-License-Identifier: Apache-2.0
#include "cli/completion_command.h"

#include <cstdio>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/command_flags.h"
#include "cli/error_output.h"

#include "moebius/base/exit_code.h"

namespace moebius {
namespace {

constexpr char kCompletionExamples[] =
    R"(A script that lets a shell complete commands, flags and file names.

Examples:
  source <(moebius completion bash)
  moebius completion bash > ~/.local/share/bash-completion/completions/moebius
  moebius completion zsh > ~/.zsh/moebius.zsh        and in ~/.zshrc: source ~/.zsh/moebius.zsh
  moebius completion fish > ~/.config/fish/completions/moebius.fish)";

/// What one flag takes.
enum class Value { kNone, kWord, kFile, kFolder };

struct Flag {
  std::string name;  // with its dashes
  Value value = Value::kNone;
  std::string help;
};

/// A command with everything that may come behind it.
struct Command {
  std::string path;  // "", " model", " model inspect"
  std::string help;
  std::vector<std::string> commands;  // names of those below
  std::vector<Flag> flags;
  bool takes_file = false;  // as a word of its own
};

Value ValueOf(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return Value::kNone;
  const std::string type = option.get_type_name();
  return type == "FILE" ? Value::kFile : type == "DIR" ? Value::kFolder : Value::kWord;
}

void Collect(const CLI::App& app, const std::string& path, std::vector<Command>* all) {
  Command command;
  command.path = path;
  command.help = app.get_description();
  for (const CLI::Option* option : app.get_options({})) {
    for (const std::string& name : option->get_lnames()) {
      command.flags.push_back(
          {absl::StrCat("--", name), ValueOf(*option), option->get_description()});
    }
    command.takes_file = command.takes_file || option->get_name() == "file";
  }
  for (const CLI::App* below : app.get_subcommands({})) {
    command.commands.push_back(below->get_name());
  }
  all->push_back(command);
  for (const CLI::App* below : app.get_subcommands({})) {
    Collect(*below, absl::StrCat(path, " ", below->get_name()), all);
  }
}

// "a"|"b", or a pattern that nothing matches.
std::string Pattern(const std::vector<std::string>& texts) {
  if (texts.empty()) return "''";
  return absl::StrCat("\"", absl::StrJoin(texts, "\"|\""), "\"");
}

std::string FormatBash(const std::vector<Command>& commands) {
  std::vector<std::string> paths;
  std::vector<std::string> files;
  std::vector<std::string> folders;
  std::vector<std::string> words;
  std::string cases;
  for (const Command& command : commands) {
    if (!command.path.empty()) paths.push_back(command.path);
    std::vector<std::string> next = command.commands;
    for (const Flag& flag : command.flags) {
      next.push_back(flag.name);
      const std::string place = absl::StrCat(command.path, " ", flag.name);
      if (flag.value == Value::kFile) files.push_back(place);
      if (flag.value == Value::kFolder) folders.push_back(place);
      if (flag.value == Value::kWord) words.push_back(place);
    }
    absl::StrAppend(&cases, "    \"", command.path, "\")\n      COMPREPLY=($(compgen -W \"",
                    absl::StrJoin(next, " "), "\" -- \"$current\"))",
                    command.takes_file ? "\n      [[ $current == -* ]] || "
                                         "COMPREPLY+=($(compgen -f -- \"$current\"))"
                                       : "",
                    " ;;\n");
  }
  return absl::StrCat(
      "# Completion of moebius for bash. Use: source <(moebius completion bash)\n"
      "_moebius() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
      "  local path= i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"$path ${COMP_WORDS[i]}\" in\n"
      "      ",
      Pattern(paths),
      ")\n        path=\"$path ${COMP_WORDS[i]}\" ;;\n"
      "    esac\n"
      "  done\n"
      "  COMPREPLY=()\n"
      "  case \"$path $before\" in\n"
      "    ",
      Pattern(files), ")\n      COMPREPLY=($(compgen -f -- \"$current\")); return ;;\n    ",
      Pattern(folders), ")\n      COMPREPLY=($(compgen -d -- \"$current\")); return ;;\n    ",
      Pattern(words), ")\n      return ;;\n  esac\n  case \"$path\" in\n", cases,
      "  esac\n"
      "}\n"
      "complete -o filenames -F _moebius moebius\n");
}

std::string FormatZsh(const std::vector<Command>& commands) {
  return absl::StrCat(
      "# Completion of moebius for zsh, which understands bash's. Use: source this file\n"
      "autoload -U +X bashcompinit && bashcompinit\n",
      FormatBash(commands));
}

// A text in single quotes, as fish reads it.
std::string FishQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

std::string FormatFish(const std::vector<Command>& commands) {
  std::string script =
      "# Completion of moebius for fish.\n"
      "# The commands before the word that is typed.\n"
      "function __moebius_path\n"
      "  set -l path\n"
      "  for word in (commandline -opc)[2..-1]\n"
      "    string match -q -- '-*' $word; or set -a path $word\n"
      "  end\n"
      "  test \"$path\" = \"$argv\"; or string match -q -- \"$argv *\" \"$path\"\n"
      "end\n"
      "complete -c moebius -f\n";
  for (const Command& command : commands) {
    const std::string path(command.path.empty() ? "" : command.path.substr(1));
    const std::string where =
        absl::StrCat("complete -c moebius -n ", FishQuoted(absl::StrCat("__moebius_path ", path)));
    for (const std::string& name : command.commands) {
      absl::StrAppend(&script, where, " -a ", name, "\n");
    }
    for (const Flag& flag : command.flags) {
      absl::StrAppend(&script, where, " -l ", flag.name.substr(2),
                      flag.value == Value::kNone                                   ? ""
                      : flag.value == Value::kFile || flag.value == Value::kFolder ? " -r -F"
                                                                                   : " -x",
                      " -d ", FishQuoted(flag.help), "\n");
    }
    if (command.takes_file) absl::StrAppend(&script, where, " -F\n");
  }
  return script;
}

}  // namespace

void AddCompletion(CLI::App& app, CompletionFlags& flags) {
  AddCommand(app, "completion", "Print a script that lets a shell complete", kCompletionExamples)
      .add_option("shell", flags.shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

int RunCompletion(const CLI::App& app, const CompletionFlags& flags) {
  std::vector<Command> commands;
  Collect(app, "", &commands);
  const std::string script = flags.shell == "bash"  ? FormatBash(commands)
                             : flags.shell == "zsh" ? FormatZsh(commands)
                                                    : FormatFish(commands);
  std::fputs(script.c_str(), stdout);
  return kExitOk;
}

}  // namespace moebius
