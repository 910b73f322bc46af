// SPDX-License-Identifier: Apache-2.0
#include "cli/prompt.h"

#include "cli/arguments.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr int64_t kMaxPromptBytes = int64_t{64} << 20;

}  // namespace

absl::Status CheckOnePrompt(const PromptFlags& flags) {
  const int sources = (flags.prompt.has_value() ? 1 : 0) + (flags.prompt_file.has_value() ? 1 : 0) +
                      (flags.prompt_ids.has_value() ? 1 : 0);
  if (sources == 1) return absl::OkStatus();
  return WithHint(absl::InvalidArgumentError(sources == 0 ? "there is no prompt"
                                                          : "there is more than one prompt"),
                  "give one of --prompt TEXT, --prompt-file FILE and --prompt-ids IDS");
}

absl::StatusOr<Prompt> ReadPrompt(const PromptFlags& flags) {
  Prompt prompt;
  if (flags.prompt_ids.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(prompt.token_ids, ReadPromptIds(*flags.prompt_ids));
    return prompt;
  }
  prompt.is_text = true;
  if (flags.prompt_file.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(prompt.text, ReadInput(*flags.prompt_file, kMaxPromptBytes));
  } else {
    prompt.text = *flags.prompt;
  }
  return prompt;
}

absl::StatusOr<std::vector<int64_t>> TokenIdsOf(const Prompt& prompt, const Tokenizer* tokenizer) {
  if (!prompt.is_text) return prompt.token_ids;
  if (tokenizer == nullptr) {
    return WithHint(absl::UnimplementedError("this model has no tokenizer that this build reads"),
                    "give token ids with --prompt-ids");
  }
  std::vector<int64_t> ids;
  if (const std::optional<int64_t> bos = tokenizer->bos_token_id()) ids.push_back(*bos);
  const std::vector<int64_t> encoded = tokenizer->Encode(prompt.text);
  ids.insert(ids.end(), encoded.begin(), encoded.end());
  return ids;
}

}  // namespace moebius
