// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file. Input: the file's bytes, length prefix included.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "moebius/base/check.h"
#include "moebius/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, data, 8);
  if (header_bytes > size - 8) return 0;
  const auto tensors = moebius::ParseSafetensorsHeader(
      absl::string_view(reinterpret_cast<const char*>(data) + 8, header_bytes), 8 + header_bytes,
      size, "fuzz.safetensors");
  if (!tensors.ok()) {
    MOEBIUS_CHECK(!tensors.status().message().empty());
    return 0;
  }
  // Accepted tensors cover the data once: together they have its size, each lies inside.
  uint64_t total = 0;
  for (const moebius::TensorInfo& tensor : *tensors) {
    MOEBIUS_CHECK_GE(tensor.file_offset, 8 + header_bytes);
    MOEBIUS_CHECK_LE(tensor.size_bytes, size - tensor.file_offset);
    MOEBIUS_CHECK_GE(tensor.NumElements(), int64_t{0});
    total += tensor.size_bytes;
  }
  MOEBIUS_CHECK_EQ(total, size - 8 - header_bytes);
  return 0;
}
