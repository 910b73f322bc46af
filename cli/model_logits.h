// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace moebius {

/// What `moebius model logits` was asked for; flags as typed.
struct ModelLogitsOptions {
  std::string model;                  // a Hugging Face folder
  std::string prompt_ids;             // as ReadPromptIds reads it
  std::string out;                    // the safetensors file to write
  std::string compute = "reference";  // or "fast"
  std::string group_fill;             // "neg-inf", "zero"; empty: the model's
  std::string config_file;            // read instead of the folder's config.json
  std::string dtype;                  // "bf16": the fast path may round F16 and F32 weights
  int threads = 0;                    // 0: DefaultNumThreads()
};

/// Adds the command under `moebius model`. `options` is filled when the line is parsed and must
/// outlive that.
CLI::App* AddModelLogits(CLI::App& model_command, ModelLogitsOptions& options);

/// Runs the prompt teacher-forced and writes logits, chosen experts and their weights of every
/// token (node/logits_file.h has the form). Prints one line that says what was written.
absl::Status RunModelLogits(const ModelLogitsOptions& options);

}  // namespace moebius
