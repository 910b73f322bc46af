// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace moebius {

/// Flags of `moebius model inspect`, as typed. Numbers stay text until the command runs: they are
/// read without the locale and refused with a sentence.
struct ModelInspectOptions {
  std::string model;
  std::string config_file;  // read instead of the folder's config.json
  std::string dtype;        // "bf16": F16 and F32 weights may be rounded
  std::string kv_tokens;    // positions that the KV pool must hold; empty: max_positions
  std::string experts;      // expert services; empty: 4
  std::string attention;    // attention ranks; empty: 1
  std::string replicas;     // services that hold each routed expert; empty: 2, or 1 of 1
  bool json = false;
};

/// Flags of `moebius model verify`.
struct ModelVerifyOptions {
  std::string model;
  bool json = false;
  bool quiet = false;  // no progress bar
};

/// Flags of `moebius model make`; see RandomCheckpointOptions for what each size means.
struct ModelMakeOptions {
  std::string out;
  std::string family;  // empty: deepseek_v3
  std::string like;    // a known model's shape, which the other flags change
  std::string scale;   // of --like: times so many weights; empty: 1
  std::string layers, hidden, vocab, positions;
  std::string heads, kv_heads, head_dim;
  std::string experts, top_k, groups, kept_groups, shared, intermediate;
  std::string dense_layers, dense_intermediate;
  std::string dtype, weight_block, shards, seed;
  bool tied = false;
  bool no_tokenizer = false;
  bool quiet = false;
  bool json = false;
};

/// Each adds one command under `moebius model`. The options are filled when the line is parsed and
/// must outlive that.
CLI::App* AddModelInspect(CLI::App& model_command, ModelInspectOptions& options);
CLI::App* AddModelVerify(CLI::App& model_command, ModelVerifyOptions& options);
CLI::App* AddModelMake(CLI::App& model_command, ModelMakeOptions& options);

/// Each runs the command: results to stdout, progress to stderr. A failure is the caller's to
/// print; it is a usage error where `IsUsageError` says so, else the model's (exit code 4).
absl::Status RunModelInspect(const ModelInspectOptions& options);
absl::Status RunModelVerify(const ModelVerifyOptions& options);
absl::Status RunModelMake(const ModelMakeOptions& options);

}  // namespace moebius
