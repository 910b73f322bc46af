// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/model/tokenizer.h"

namespace moebius {

/// A prompt as typed: one of --prompt, --prompt-file and --prompt-ids.
struct PromptFlags {
  const std::optional<std::string>& prompt;
  const std::optional<std::string>& prompt_file;
  const std::optional<std::string>& prompt_ids;
};

/// What the flag names. It is read before the model, which may take minutes to load.
struct Prompt {
  bool is_text = false;
  std::string text;
  std::vector<int64_t> token_ids;
};

/// INVALID_ARGUMENT unless there is exactly one: a usage error.
absl::Status CheckOnePrompt(const PromptFlags& flags);

absl::StatusOr<Prompt> ReadPrompt(const PromptFlags& flags);

/// A text gets the model's BOS id first, ids are taken as they are. `tokenizer` may be null: then
/// there must be ids (UNIMPLEMENTED).
absl::StatusOr<std::vector<int64_t>> TokenIdsOf(const Prompt& prompt, const Tokenizer* tokenizer);

}  // namespace moebius
