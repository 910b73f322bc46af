// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace moebius {

/// XXH3-64 with seed 0 of `size` bytes: the one hash on which processes may agree.
uint64_t Hash64(const void* data, size_t size);

/// The same over pieces. Not thread-safe.
class StreamingHash64 {
 public:
  StreamingHash64();
  ~StreamingHash64();
  StreamingHash64(StreamingHash64&&) noexcept;
  StreamingHash64& operator=(StreamingHash64&&) noexcept;
  void Update(const void* data, size_t size);
  uint64_t Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// 16 lower-case hexadecimal digits.
std::string FormatHash64(uint64_t hash);

/// 8 lower-case hexadecimal digits of the low 32 bits.
std::string FormatHash32(uint64_t hash);

}  // namespace moebius
