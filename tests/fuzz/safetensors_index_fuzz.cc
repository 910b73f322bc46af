// SPDX-License-Identifier: Apache-2.0
// model.safetensors.index.json.
#include <cstddef>
#include <cstdint>

#include "moebius/base/check.h"
#include "moebius/model/tensor_directory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto entries = moebius::ParseSafetensorsIndex(
      absl::string_view(reinterpret_cast<const char*>(data), size), "fuzz.json");
  if (!entries.ok()) return 0;
  for (const moebius::IndexEntry& entry : *entries) {
    MOEBIUS_CHECK(entry.file.find('/') == std::string::npos);
  }
  return 0;
}
