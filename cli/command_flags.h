// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "cli/router_flags.h"

namespace CLI {
class App;
}

namespace moebius {

/// A command whose help begins with its examples.
CLI::App& AddCommand(CLI::App& app, const char* name, const char* description,
                     const char* examples);
/// The same for the program itself.
void SetExamples(CLI::App& app, const char* examples);

/// One flag that takes a text, the last one where it is repeated; numbers are read by the command.
struct TextFlag {
  const char* group;
  const char* name;
  const char* type;
  std::optional<std::string>* value;
  const char* description;
};
void AddTextFlags(CLI::App& command, std::initializer_list<TextFlag> flags);

/// What decides the bits of an answer.
struct NumericsFlags {
  std::optional<std::string>* span;
  std::optional<std::string>* group_fill;
  std::optional<std::string>* attention_sum;
  std::optional<std::string>* attention_layout;
  std::optional<std::string>* dtype;
};
/// Of a command whose flags have these names.
template <typename Flags>
NumericsFlags NumericsFlagsOf(Flags& flags) {
  return {&flags.span, &flags.group_fill, &flags.attention_sum, &flags.attention_layout,
          &flags.dtype};
}
void AddNumericsFlags(CLI::App& command, const NumericsFlags& flags, const char* dtype_description);

/// A flag that may be repeated; each time it takes one value. `flag.value` plays no part.
void AddRepeatedFlag(CLI::App& command, const TextFlag& flag, std::vector<std::string>* values);

enum class Presence { kRequired, kOptional };
void AddModelFlag(CLI::App& command, std::string* model, Presence presence);
/// --router and what reaches it.
void AddRouterFlags(CLI::App& command, RouterCallFlags* flags);
/// --tls-ca, --tls-cert and --tls-key.
void AddTlsFlags(CLI::App& command, const char* group, RouterCallFlags* flags);
/// --prompt, --prompt-file and --prompt-ids.
void AddPromptFlags(CLI::App& command, std::optional<std::string>* prompt,
                    std::optional<std::string>* prompt_file,
                    std::optional<std::string>* prompt_ids);

}  // namespace moebius
