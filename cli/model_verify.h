// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace moebius {

/// What reading every byte of a model's folder showed. A value.
struct ModelVerification {
  std::string folder;
  std::string family;
  int64_t num_files = 0;
  int64_t num_tensors = 0;
  uint64_t num_bytes = 0;
  uint64_t model_hash = 0;
  uint64_t content_hash = 0;  // XXH3 over every byte of every tensor, by ascending name
  std::string manifest;       // the file that sums were compared with; empty: none
  int64_t num_sums_compared = 0;
  std::vector<std::string> faults;  // a sentence each, with file and tensor
};

/// Bytes read so far and in all.
using VerifyProgress = std::function<void(uint64_t done, uint64_t total)>;

/// Validates the folder as loading does, then reads every tensor: counts values that are not
/// finite, finds matrices of zeros, and compares files with SHA256SUMS where the folder has one
/// (and with the name of a link's target where that is a SHA-256, as in a Hugging Face cache). A
/// folder that does not load is a status; damage found in the bytes is a fault in the value.
absl::StatusOr<ModelVerification> VerifyModel(const std::string& folder,
                                              const VerifyProgress& on_progress = nullptr);

/// For people. Pure.
std::string FormatVerification(const ModelVerification& verification);
/// One JSON object in one line. Pure.
std::string FormatVerificationJson(const ModelVerification& verification);

}  // namespace moebius
