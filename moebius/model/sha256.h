// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace moebius {

/// SHA-256 (FIPS 180-4), for comparing files with manifests that others made. Not thread-safe.
class Sha256 {
 public:
  void Update(const void* data, size_t size);
  /// 64 lower-case hexadecimal digits. Ends the computation.
  std::string HexDigest();

 private:
  void Compress(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_ = {};
  size_t num_pending_ = 0;
  uint64_t num_bytes_ = 0;
};

}  // namespace moebius
