// SPDX-License-Identifier: Apache-2.0
// Commands, flags, help, and the words for what is not known.
#include "cli/command_line.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/doctor_command.h"
#include "cli/error_output.h"
#include "cli/exit_code.h"
#include "cli/generate_command.h"
#include "cli/model_commands.h"
#include "cli/model_logits.h"
#include "cli/suggestion.h"
#include "cli/version_command.h"

#include "moebius/base/error.h"

namespace moebius {
namespace {

constexpr char kExamples[] =
    R"(moebius serves mixture-of-experts language models; the same bits on one laptop or a cluster.

Examples:
  moebius generate --model models/demo --prompt "And the king said to them"
  moebius model inspect --model models/demo
  moebius doctor)";

constexpr char kGenerateExamples[] =
    R"(Continue a prompt: text on stdout as it comes, figures on stderr.

Examples:
  moebius generate --model models/demo --prompt "And the king said to them"
  moebius generate --model models/demo --prompt "def main" --temperature 0.8 --seed 7
  moebius generate --model models/demo --prompt-file chapter.txt --max-tokens 16 --json
  moebius generate --model models/demo --prompt-ids 256,72,105 --logprobs 3

Without --temperature the model's generation_config.json decides, else the most probable token is
taken. A text prompt gets the model's BOS id first, --prompt-ids gets none. Ctrl-C ends the answer;
what came so far stays, with the finish reason "abort".)";

constexpr char kModelExamples[] =
    R"(What is in a model's folder, and is it whole; logits for comparison; small models to try.

Examples:
  moebius model inspect --model models/demo
  moebius model verify --model models/demo
  moebius model logits --model models/demo --prompt-ids 256,72,105 --out logits.safetensors
  moebius model make --family qwen3_moe --out build/tiny)";

constexpr char kDoctorExamples[] =
    R"(What this host has, and what would keep Moebius from running well on it.

Examples:
  moebius doctor
  moebius doctor --model models/demo --json)";

// Examples come first in a command's own help, and stay out of the list of commands.
class ExamplesFirst final : public CLI::Formatter {
 public:
  explicit ExamplesFirst(const char* examples) : examples_(examples) {}
  std::string make_description(const CLI::App*) const override {
    return absl::StrCat(examples_, "\n\n");
  }

 private:
  const char* const examples_;
};

CLI::App& AddCommand(CLI::App& app, const char* name, const char* description,
                     const char* examples) {
  CLI::App* command = app.add_subcommand(name, description);
  command->formatter(std::make_shared<ExamplesFirst>(examples));
  return *command;
}

// CLI11 splits flag groups, values and nesting; the values live here until a command runs.
struct CommandLine {
  CLI::App app{"", "moebius"};
  GenerateFlags generate;
  ModelInspectOptions inspect;
  ModelVerifyOptions verify;
  ModelLogitsFlags logits;
  ModelMakeOptions make;
  std::string doctor_model;
  bool json = false;
  bool version = false;
};

// One flag that takes a text, the last one where it is repeated; numbers are read by the command.
struct TextFlag {
  const char* group;
  const char* name;
  const char* type;
  std::optional<std::string>* value;
  const char* description;
};

void AddTextFlags(CLI::App& command, std::initializer_list<TextFlag> flags) {
  for (const TextFlag& flag : flags) {
    command.add_option(flag.name, *flag.value, flag.description)
        ->type_name(flag.type)
        ->group(flag.group)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
}

// A flag that may be repeated; each time it takes one value.
void AddRepeatedFlag(CLI::App& command, const TextFlag& flag, std::vector<std::string>* values) {
  command.add_option(flag.name, *values, flag.description)
      ->type_name(flag.type)
      ->group(flag.group)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
}

void AddModelFlag(CLI::App& command, std::string* model) {
  command.add_option("--model", *model, "Model folder: config.json and safetensors")
      ->type_name("DIR")
      ->required();
}

void AddGenerate(CommandLine& line) {
  GenerateFlags& flags = line.generate;
  CLI::App& command = AddCommand(line.app, "generate", "Continue a prompt", kGenerateExamples);
  AddModelFlag(command, &flags.model);
  AddTextFlags(
      command,
      {{"Prompt", "--prompt", "TEXT", &flags.prompt, "The text to continue"},
       {"Prompt", "--prompt-file", "FILE", &flags.prompt_file,
        "Its text, byte for byte; - is stdin"},
       {"Prompt", "--prompt-ids", "IDS", &flags.prompt_ids,
        "Token ids: 256,72,105 or a file with a JSON array or numbers"},
       {"Sampling", "--max-tokens", "N", &flags.max_tokens,
        "Tokens to generate at most; 256, or what fits"},
       {"Sampling", "--temperature", "T", &flags.temperature, "0 takes the most probable token"},
       {"Sampling", "--top-k", "K", &flags.top_k, "Sample from the k most probable; 0 is off"},
       {"Sampling", "--top-p", "P", &flags.top_p,
        "Sample from the most probable that sum to p; 1 is off"},
       {"Sampling", "--seed", "N", &flags.seed,
        "Same seed, same answer; drawn and shown where absent"},
       {"Output", "--logprobs", "N", &flags.logprobs, "Show the n best candidates of each token"},
       {"Machine", "--threads", "N", &flags.threads, "What CPU affinity and cgroup allow"},
       {"Machine", "--tier", "NAME", &flags.tier,
        "portable, avx2, avx512, avx512bf16 or amx; the best that runs here"},
       {"Machine", "--kv-budget", "BYTES", &flags.kv_budget, "Memory of the KV pool, as 512MiB"},
       {"Machine", "--chunk", "N", &flags.chunk, "Prompt tokens in one step, 1 to 512"},
       {"Machine", "--expert-pipelines", "N", &flags.expert_pipelines,
        "Cut the experts into so many parts; the answer stays the same"},
       {"Numerics", "--span", "N", &flags.span, "Keys per attention span; changes the answer"},
       {"Numerics", "--group-fill", "FILL", &flags.group_fill,
        "neg-inf or zero; changes the answer"},
       {"Numerics", "--dtype", "TYPE", &flags.dtype,
        "bf16: round F16 or F32 weights, which are refused otherwise"}});
  AddRepeatedFlag(command,
                  {"Sampling", "--stop", "TEXT", nullptr, "End before this text; may be repeated"},
                  &flags.stop);
  AddRepeatedFlag(
      command,
      {"Sampling", "--stop-token-id", "ID", nullptr, "End before this token; may be repeated"},
      &flags.stop_token_ids);
  command.add_flag("--ignore-eos", flags.ignore_eos, "Go on after the model's end marker")
      ->group("Sampling");
  command.add_flag("--json", flags.json, "One JSON object on stdout instead of text")
      ->group("Output");
  command.add_flag("--verbose", flags.verbose, "Also where the time went")->group("Output");
  command.add_flag("--quiet", flags.quiet, "The answer alone: no figures, no progress")
      ->group("Output");
}

void AddModelLogits(CLI::App& model_command, ModelLogitsFlags& flags) {
  CLI::App& command = *model_command.add_subcommand(
      "logits", "Write logits and chosen experts of given token ids to a safetensors file");
  AddModelFlag(command, &flags.model);
  command.add_option("--prompt-ids", flags.prompt_ids, "Token ids: 256,72,105 or a file")
      ->type_name("IDS")
      ->required();
  command.add_option("--out", flags.out, "The file to write")->type_name("FILE")->required();
  AddTextFlags(
      command,
      {{"Options", "--compute", "WAY", &flags.compute,
        "reference (fp32 throughout, the default) or fast"},
       {"Options", "--group-fill", "FILL", &flags.group_fill, "neg-inf or zero"},
       {"Options", "--config", "FILE", &flags.config, "Instead of the config.json"},
       {"Options", "--dtype", "TYPE", &flags.dtype, "bf16: fast may round weights"},
       {"Options", "--span", "N", &flags.span, "Keys per attention span of fast"},
       {"Options", "--tier", "NAME", &flags.tier, "Kernels of fast"},
       {"Options", "--threads", "N", &flags.threads, "What CPU affinity and cgroup allow"}});
}

void AddModel(CommandLine& line) {
  CLI::App& command =
      AddCommand(line.app, "model", "What is in a model's folder; is it whole; make a small one",
                 kModelExamples);
  AddModelInspect(command, line.inspect);
  AddModelVerify(command, line.verify);
  AddModelLogits(command, line.logits);
  AddModelMake(command, line.make);
}

void AddDoctor(CommandLine& line) {
  CLI::App& command = AddCommand(line.app, "doctor",
                                 "What this host has, and what is wrong with it", kDoctorExamples);
  command.add_option("--model", line.doctor_model, "Also check this model's folder")
      ->type_name("DIR");
  command.add_flag("--json", line.json, "One JSON object on stdout");
}

void AddVersion(CommandLine& line) {
  CLI::App* command =
      line.app.add_subcommand("version", "Version, own path, and which kernels this CPU can run");
  command->add_flag("--json", line.json, "One JSON object on stdout");
}

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

// Walks the words as CLI11 will, and refuses the first command or flag that nobody knows.
absl::Status FindUnknownWords(const CLI::App& app, absl::Span<const std::string> words,
                              const std::string& help) {
  for (size_t index = 0; index < words.size(); ++index) {
    const std::string& word = words[index];
    if (word == "--") return absl::OkStatus();
    if (absl::StartsWith(word, "--")) {
      const std::string name = word.substr(0, word.find('='));
      const CLI::Option* option = app.get_option_no_throw(name);
      if (option == nullptr) return UnknownWord("flag", name, FlagNames(app), help);
      if (name == word) index += NumValues(*option);
      continue;
    }
    if (absl::StartsWith(word, "-")) {
      if (app.get_option_no_throw(word) == nullptr) {
        return UnknownWord("flag", word, FlagNames(app), help);
      }
      continue;
    }
    const CLI::App* command = FindCommand(app, word);
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

int UsageError(const absl::Status& status, const std::vector<std::string>& arguments) {
  bool json = false;
  for (const std::string& argument : arguments) json = json || argument == "--json";
  PrintError(status, json ? OutputForm::kJson : OutputForm::kText);
  return kExitUsage;
}

int ReportModel(const absl::Status& status, bool json) {
  if (status.ok()) return kExitOk;
  PrintError(status, json ? OutputForm::kJson : OutputForm::kText);
  return IsUsageError(status) ? kExitUsage : kExitModel;
}

int RunModel(const CommandLine& line, const CLI::App& command) {
  if (command.got_subcommand("inspect")) {
    return ReportModel(RunModelInspect(line.inspect), line.inspect.json);
  }
  if (command.got_subcommand("verify")) {
    return ReportModel(RunModelVerify(line.verify), line.verify.json);
  }
  if (command.got_subcommand("logits")) return RunModelLogits(line.logits);
  if (command.got_subcommand("make")) return ReportModel(RunModelMake(line.make), line.make.json);
  std::fputs(command.help().c_str(), stdout);
  return kExitOk;
}

int RunParsed(const CommandLine& line) {
  if (line.version) return RunVersion(/*json=*/false);
  if (line.app.got_subcommand("generate")) return RunGenerate(line.generate);
  if (line.app.got_subcommand("model")) return RunModel(line, *line.app.get_subcommand("model"));
  if (line.app.got_subcommand("doctor")) return RunDoctor(line.doctor_model, line.json);
  if (line.app.got_subcommand("version")) return RunVersion(line.json);
  std::fputs(line.app.help().c_str(), stdout);
  return kExitOk;
}

}  // namespace

int RunCommandLine(const std::vector<std::string>& arguments) {
  CommandLine line;
  line.app.formatter(std::make_shared<ExamplesFirst>(kExamples));
  line.app.add_flag("--version", line.version, "Version, own path and kernels");
  AddGenerate(line);
  AddModel(line);
  AddDoctor(line);
  AddVersion(line);
  if (const absl::Status status = FindUnknownWords(line.app, arguments, "moebius"); !status.ok()) {
    return UsageError(status, arguments);
  }
  try {
    // CLI11 takes the words from the back.
    line.app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success& help) {
    return line.app.exit(help);
  } catch (const CLI::ParseError& error) {
    return UsageError(WithHint(absl::InvalidArgumentError(error.what()), "see: moebius --help"),
                      arguments);
  }
  return RunParsed(line);
}

}  // namespace moebius
