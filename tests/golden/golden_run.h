// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "moebius/model/model_config.h"
#include "moebius/tensor/buffer.h"

namespace moebius {

/// Where a prompt and what another implementation computed for it are found. Paths are relative to
/// the source folder.
struct GoldenCase {
  std::string name;         // of the test: letters, digits and _
  std::string model;        // a checkpoint's folder
  std::string config_file;  // read instead of its config.json; empty: that one
  std::string reference;    // FILE of FILE.safetensors and FILE.json
  std::string prompt;       // of several in one file; empty where the file holds one
  GroupFill group_fill = GroupFill::kNegativeInfinity;
  /// Allowed error of a reference logit over the largest logit.
  double tolerance = 1e-5;

  friend std::ostream& operator<<(std::ostream& out, const GoldenCase& golden) {
    return out << golden.name;
  }
};

/// Prompts of 47 and 241 tokens, every checkpoint in both forms of its configuration.
std::vector<GoldenCase> ShortGoldenCases();
/// Prompts of 4,200 tokens and more.
std::vector<GoldenCase> LongGoldenCases();

/// What was recorded of one MoE layer. T tokens, E experts, k chosen.
struct GoldenLayer {
  int64_t layer = 0;
  std::vector<int16_t> experts_fp32;    // [T, k], ascending
  std::vector<int16_t> experts_bf16;    // [T, k], or empty
  std::vector<float> gap;               // [T]
  std::vector<float> gate_logits_fp32;  // [T, E], or empty
  std::vector<float> weights_fp32;      // [T, k], [rows, k], or empty
};

/// What was recorded for one prompt.
struct GoldenRun {
  std::vector<int64_t> token_ids;  // [T]
  std::vector<int64_t> rows;       // tokens whose logits are kept
  RowBatch<float> logits_fp32;     // [rows.size(), vocab]
  RowBatch<float> logits_bf16;     // the same, or empty
  std::vector<GoldenLayer> layers;
  std::vector<int64_t> greedy;  // fp32 continuation
};

/// Reads the record of `golden`; what a file of another group fill leaves out is that of
/// reference.safetensors beside it.
absl::StatusOr<GoldenRun> ReadGoldenRun(const GoldenCase& golden);

}  // namespace moebius
