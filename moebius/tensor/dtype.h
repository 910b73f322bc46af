// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace moebius {

/// Element types that a tensor in a file or a row on the wire may have.
/// The values below kF8E4M3 are part of the wire format; never renumber.
enum class DType : uint8_t {
  kUnspecified = 0,
  kBF16 = 1,
  kF16 = 2,
  kF32 = 3,
  kI32 = 4,
  kI16 = 5,
  kI64 = 6,
  kF8E4M3 = 128  // of files only: tensor/fp8.h
};

/// Bytes of one element; 0 for kUnspecified.
size_t DTypeBytes(DType dtype);

/// The name that safetensors uses: "BF16", "F16", "F32", "F8_E4M3", …; "?" for kUnspecified.
absl::string_view DTypeName(DType dtype);

}  // namespace moebius
