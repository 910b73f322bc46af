// SPDX-License-Identifier: Apache-2.0
#include "cli/command_flags.h"

#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

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

}  // namespace

CLI::App& AddCommand(CLI::App& app, const char* name, const char* description,
                     const char* examples) {
  CLI::App* command = app.add_subcommand(name, description);
  SetExamples(*command, examples);
  return *command;
}

void SetExamples(CLI::App& app, const char* examples) {
  app.formatter(std::make_shared<ExamplesFirst>(examples));
}

void AddTextFlags(CLI::App& command, std::initializer_list<TextFlag> flags) {
  for (const TextFlag& flag : flags) {
    command.add_option(flag.name, *flag.value, flag.description)
        ->type_name(flag.type)
        ->group(flag.group)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
}

void AddNumericsFlags(CLI::App& command, const NumericsFlags& flags,
                      const char* dtype_description) {
  AddTextFlags(command, {{"Numerics", "--span", "N", flags.span,
                          "Keys per attention span; changes the answer"},
                         {"Numerics", "--group-fill", "FILL", flags.group_fill,
                          "neg-inf or zero; changes the answer"},
                         {"Numerics", "--attention-sum", "WAY", flags.attention_sum,
                          "canonical or per-degree; changes the answer"},
                         {"Numerics", "--attention-layout", "LAYOUT", flags.attention_layout,
                          "Of per-degree: zigzag, contiguous or striped; changes the answer"},
                         {"Numerics", "--dtype", "TYPE", flags.dtype, dtype_description}});
}

void AddRepeatedFlag(CLI::App& command, const TextFlag& flag, std::vector<std::string>* values) {
  command.add_option(flag.name, *values, flag.description)
      ->type_name(flag.type)
      ->group(flag.group)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
}

void AddModelFlag(CLI::App& command, std::string* model, Presence presence) {
  command.add_option("--model", *model, "Model folder: config.json and safetensors")
      ->type_name("DIR")
      ->required(presence == Presence::kRequired);
}

void AddRouterFlags(CLI::App& command, RouterCallFlags* flags) {
  AddTextFlags(command, {{"Router", "--router", "HOST:PORT", &flags->router, "The router to ask"}});
  AddTlsFlags(command, "Router", flags);
  AddTextFlags(command, {{"Router", "--api-key-file", "FILE", &flags->api_key_file,
                          "With the key that the router wants; else MOEBIUS_API_KEY"},
                         {"Router", "--call-timeout", "TIME", &flags->timeout,
                          "How long a call may take that is no answer, as 10s; 30s"}});
}

void AddTlsFlags(CLI::App& command, const char* group, RouterCallFlags* flags) {
  AddTextFlags(command,
               {{group, "--tls-ca", "FILE", &flags->tls_ca, "Who may sign its certificate, PEM"},
                {group, "--tls-cert", "FILE", &flags->tls_cert, "Own certificate, PEM"},
                {group, "--tls-key", "FILE", &flags->tls_key, "The certificate's key, PEM"}});
}

void AddPromptFlags(CLI::App& command, std::optional<std::string>* prompt,
                    std::optional<std::string>* prompt_file,
                    std::optional<std::string>* prompt_ids) {
  AddTextFlags(command, {{"Prompt", "--prompt", "TEXT", prompt, "The text"},
                         {"Prompt", "--prompt-file", "FILE", prompt_file,
                          "Its text, byte for byte; - is stdin"},
                         {"Prompt", "--prompt-ids", "IDS", prompt_ids,
                          "Token ids: 256,72,105 or a file with a JSON array or numbers"}});
}

}  // namespace moebius
