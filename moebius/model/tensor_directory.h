// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "moebius/model/safetensors.h"

namespace moebius {

/// Every tensor of a model's folder: model.safetensors, or the shards that
/// model.safetensors.index.json names. Thread-safe after Open.
class TensorDirectory {
 public:
  struct Entry {
    const TensorInfo* info = nullptr;
    const SafetensorsFile* file = nullptr;
  };

  /// Opens all shards and validates their headers and sizes. Refuses: neither file, or a
  /// model.safetensors that an index beside it does not name; an index that names a path instead of
  /// a file name, a missing shard, a tensor in two shards, a tensor that is not where the index
  /// says, a tensor that the index does not list. The index's metadata is not relied on.
  static absl::StatusOr<std::unique_ptr<TensorDirectory>> Open(const std::string& folder);

  /// Ascending by name.
  const std::vector<Entry>& entries() const { return entries_; }
  /// Null when absent.
  const Entry* Find(absl::string_view name) const;
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  TensorDirectory() = default;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<Entry> entries_;
  uint64_t total_bytes_ = 0;
};

inline constexpr size_t kMaxShards = 1024;
inline constexpr size_t kMaxTensorsPerModel = 1u << 20;

/// One line of model.safetensors.index.json.
struct IndexEntry {
  std::string tensor;
  std::string file;
};

/// The weight map of an index file, ascending by tensor. INVALID_ARGUMENT as Json refuses, and for
/// file names that are no base name ending in ".safetensors".
absl::StatusOr<std::vector<IndexEntry>> ParseSafetensorsIndex(absl::string_view text,
                                                              absl::string_view source);

}  // namespace moebius
