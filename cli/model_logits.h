// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace moebius {

/// `moebius model logits` as typed.
struct ModelLogitsFlags {
  std::string model;                      // a Hugging Face folder
  std::string prompt_ids;                 // as ReadPromptIds reads it
  std::string out;                        // the safetensors file to write
  std::optional<std::string> compute;     // reference (the default) or fast
  std::optional<std::string> group_fill;  // neg-inf or zero; absent: the model's
  std::optional<std::string> config;      // read instead of the folder's config.json
  std::optional<std::string> dtype;       // bf16: the fast path may round F16 and F32 weights
  std::optional<std::string> span;        // of the fast path
  std::optional<std::string> tier;        // of the fast path
  std::optional<std::string> threads;
};

/// Runs the given ids teacher-forced and writes logits, chosen experts and their weights of every
/// token (node/logits_file.h has the form). One line on stdout says what was written. Returns the
/// exit code.
int RunModelLogits(const ModelLogitsFlags& flags);

}  // namespace moebius
