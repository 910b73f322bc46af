// SPDX-License-Identifier: Apache-2.0
#include "moebius/tensor/dtype.h"

#include "gtest/gtest.h"

namespace moebius {
namespace {

struct Row {
  DType dtype;
  int wire_value;
  size_t bytes;
  absl::string_view name;
};

constexpr Row kTable[] = {
    {DType::kUnspecified, 0, 0, "?"}, {DType::kBF16, 1, 2, "BF16"},
    {DType::kF16, 2, 2, "F16"},       {DType::kF32, 3, 4, "F32"},
    {DType::kI32, 4, 4, "I32"},       {DType::kI16, 5, 2, "I16"},
    {DType::kI64, 6, 8, "I64"},       {DType::kF8E4M3, 128, 1, "F8_E4M3"},
};

TEST(DTypeTest, HasItsSizeNameAndWireValue) {
  for (const Row& row : kTable) {
    EXPECT_EQ(static_cast<int>(row.dtype), row.wire_value) << row.name;
    EXPECT_EQ(DTypeBytes(row.dtype), row.bytes) << row.name;
    EXPECT_EQ(DTypeName(row.dtype), row.name);
  }
}

TEST(DTypeTest, AnUnknownWireValueHasNoSize) {
  EXPECT_EQ(DTypeBytes(static_cast<DType>(200)), 0u);
  EXPECT_EQ(DTypeName(static_cast<DType>(200)), "?");
}

}  // namespace
}  // namespace moebius
