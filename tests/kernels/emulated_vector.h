// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/kernels/cpu/vector.h"
#include "moebius/kernels/math.h"
#include "moebius/tensor/bf16.h"

namespace moebius {
namespace {

/// Sixteen lanes of plain code: every fused multiply-add by the scalar statement, the bf16 dot as
/// two of them, high halves first.
struct EmulatedVector : VectorOf<16> {
  static Float LoadBf16(const uint16_t* p) {
    Float v = Zero();
    for (int i = 0; i < kLanes; ++i) v[i] = ToFloat(Bf16{p[i]});
    return v;
  }
  static void StoreBf16(uint16_t* p, Float v) {
    const Bits bits = RoundToBf16(v);
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<uint16_t>(bits[i]);
  }
  static void StoreNormalBf16Block(uint16_t* p, const Float (&v)[2]) {
    StoreBf16(p, v[0]);
    StoreBf16(p + kLanes, v[1]);
  }
  static void StoreNormalBf16BlockWithinChain(uint16_t* p, const Float (&v)[2]) {
    constexpr int kOrder[] = {2, 0, 3, 1};
    for (int i = 0; i < 2 * kLanes; ++i) {
      const int from = i / 4 * 4 + kOrder[i % 4];
      p[i] = ToBf16(v[from / kLanes][from % kLanes]).bits;
    }
  }
  static void KeepHere(Float&) {}  // no register holds it
  static Float FusedMultiplyAdd(Float a, Float b, Float c) {
    for (int i = 0; i < kLanes; ++i) c[i] = moebius::FusedMultiplyAdd(a[i], b[i], c[i]);
    return c;
  }
  static Float FusedMultiplyAddBf16(Float a, Float b, Float c) { return FusedMultiplyAdd(a, b, c); }

  static Float Dot(Float sum, Bits a, Bits w) {
    sum = FusedMultiplyAdd(SecondOfPairs(a), SecondOfPairs(w), sum);
    return FusedMultiplyAdd(FirstOfPairs(a), FirstOfPairs(w), sum);
  }
};

}  // namespace
}  // namespace moebius
