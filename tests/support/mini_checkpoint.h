// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "moebius/model/json.h"
#include "moebius/tensor/dtype.h"

namespace moebius {

/// A folder under the test's temporary directory that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// One tensor as it will be stored. Bytes and shape need not agree: that is what tests are for.
struct MiniTensor {
  std::string name;
  std::string dtype = "BF16";
  std::vector<int64_t> shape;
  std::string bytes;
};

/// A tiny random qwen3_moe checkpoint (vocabulary 97, hidden 32, 2 layers, 4 experts top-2, head
/// 8) with hooks that spoil it before it is written. Another configuration of any family may be
/// set: tensors follow it.
struct MiniCheckpoint {
  MiniCheckpoint();

  Json config;                 // config.json
  Json generation;             // generation_config.json; null: none is written
  Json settings;               // moebius.json; null: none is written
  int num_shards = 2;          // 1: model.safetensors
  std::string dtype = "BF16";  // of all but the correction bias; F8_E4M3: of what may be in FP8,
                               // where the configuration has blocks
  uint64_t seed = 0;
  bool parse_config = true;  // false: tensors are those of the original configuration
  std::function<void(std::vector<MiniTensor>&)> edit_tensors;
  std::function<void(std::string&)> edit_header;  // of every shard, JSON before padding
  std::function<void(Json&)> edit_index;

  /// Creates the folder's files. CHECKs that the operating system agrees.
  void Write(const std::string& folder) const;
};

/// Stored bytes of values in BF16 (rounded), F16 or F32.
std::string EncodeElements(const std::vector<float>& values, const std::string& dtype);

/// 8 bytes of little-endian length, then `header`, then `data`: a safetensors file, right or wrong.
std::string SafetensorsBytes(const std::string& header, const std::string& data);

void WriteFile(const std::string& path, const std::string& bytes);
std::string ReadFileBytes(const std::string& path);

}  // namespace moebius
