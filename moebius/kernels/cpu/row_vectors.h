// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moebius/kernels/cpu/vector_portable.h"
#include "moebius/tensor/bf16.h"

/// Elements of rows in fp32 or bf16, one or four at a time, for code that every tier shares.
namespace moebius {
namespace {

using RowVector = PortableVector;

MOEBIUS_ALWAYS_INLINE float LoadElement(const float* p) { return *p; }
MOEBIUS_ALWAYS_INLINE float LoadElement(const Bf16* p) { return ToFloat(*p); }
MOEBIUS_ALWAYS_INLINE void StoreElement(float* p, float value) { *p = value; }
MOEBIUS_ALWAYS_INLINE void StoreElement(Bf16* p, float value) { *p = ToBf16(value); }

MOEBIUS_ALWAYS_INLINE RowVector::Float LoadVector(const float* p) { return RowVector::Load(p); }
MOEBIUS_ALWAYS_INLINE RowVector::Float LoadVector(const Bf16* p) {
  return RowVector::LoadBf16(reinterpret_cast<const uint16_t*>(p));
}
MOEBIUS_ALWAYS_INLINE void StoreVector(float* p, RowVector::Float v) { RowVector::Store(p, v); }
MOEBIUS_ALWAYS_INLINE void StoreVector(Bf16* p, RowVector::Float v) {
  RowVector::StoreBf16(reinterpret_cast<uint16_t*>(p), v);
}

}  // namespace
}  // namespace moebius
