// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "moebius/kernels/inline.h"

/// Vectors of fp32 for the tiers' source files, over the compiler's vector types: one text for all
/// widths, so that a width which this machine lacks is tested through those that it has. A tier
/// adds its fused multiply-adds and the loads and stores that change the width of a lane
/// (`vector_avx2.h` …).
///
/// Everything is in an unnamed namespace: each tier's file has its own copy, compiled for its own
/// instruction set, and none that the linker could hand to other files.
namespace moebius {
namespace {

/// Loops over constant bounds inside a tile must unroll completely: their arrays are registers.
#define MOEBIUS_UNROLL _Pragma("GCC unroll 8")

template <int lanes>
struct VectorOf {
  static constexpr int kLanes = lanes;
  typedef float Float __attribute__((vector_size(lanes * 4)));
  typedef int32_t Int __attribute__((vector_size(lanes * 4)));
  typedef uint32_t Bits __attribute__((vector_size(lanes * 4)));
  typedef float UnalignedFloat __attribute__((vector_size(lanes * 4), aligned(4), may_alias));
  typedef uint32_t UnalignedBits __attribute__((vector_size(lanes * 4), aligned(2), may_alias));

  MOEBIUS_ALWAYS_INLINE static Float Load(const float* p) {
    return *reinterpret_cast<const UnalignedFloat*>(p);
  }
  MOEBIUS_ALWAYS_INLINE static void Store(float* p, Float v) {
    *reinterpret_cast<UnalignedFloat*>(p) = v;
  }
  MOEBIUS_ALWAYS_INLINE static Float Zero() { return Float{}; }
  MOEBIUS_ALWAYS_INLINE static Float AsFloat(Bits v) { return reinterpret_cast<Float>(v); }
  MOEBIUS_ALWAYS_INLINE static Bits AsBits(Float v) { return reinterpret_cast<Bits>(v); }
  MOEBIUS_ALWAYS_INLINE static Bits BroadcastBits(uint32_t x) { return Bits{} + x; }
  MOEBIUS_ALWAYS_INLINE static Float Broadcast(float x) {
    return AsFloat(BroadcastBits(__builtin_bit_cast(uint32_t, x)));
  }
  /// Lanes of a where the mask is all ones, of b where it is zero.
  MOEBIUS_ALWAYS_INLINE static Float Select(Int mask, Float a, Float b) {
    const Bits m = reinterpret_cast<Bits>(mask);
    return AsFloat((AsBits(a) & m) | (AsBits(b) & ~m));
  }

  /// The compiler computes v before what follows: chains written side by side stay so.
  MOEBIUS_ALWAYS_INLINE static void KeepHere(Float& v) { asm volatile("" : "+v"(v)); }

  /// x − a · b of lanes where the product is exact, so that a fused multiply-add has the same bits.
  MOEBIUS_ALWAYS_INLINE static Float SubtractExactProduct(Float x, Float a, Float b) {
    return x - a * b;
  }

  /// p · 2^n where that is normal, +0 where x is below the bound. n comes twice: as the low bits of
  /// `n_in_low_bits`, whose bits 0 … 8 are it alone, and as itself. A NaN in p whose low nine bits
  /// are zero stays one.
  MOEBIUS_ALWAYS_INLINE static Float ScaleOrZeroBelow(Float x, float bound, Float p,
                                                      Float n_in_low_bits,
                                                      [[maybe_unused]] Float n) {
    const Float scaled = AsFloat(AsBits(p) + (AsBits(n_in_low_bits) << 23));
    return Select(x < Broadcast(bound), Zero(), scaled);
  }

  /// Lanes of a where it is the greater one, else of b: a NaN in a is passed over.
  MOEBIUS_ALWAYS_INLINE static Float Max(Float a, Float b) { return Select(a > b, a, b); }

  /// The lanes folded by halves, lane c with lane c + half, until one is left.
  template <class Combine>
  MOEBIUS_ALWAYS_INLINE static float FoldLanes(Float v, Combine combine) {
    return FoldHalves<lanes / 2>(v, combine)[0];
  }

  /// Vectors that hold the values of `lanes / width` rows each, `width` a row, become one vector:
  /// lane i has the values of row i of them all, folded by halves, value c with value c + half.
  template <int width = lanes, class Combine>
  MOEBIUS_ALWAYS_INLINE static Float FoldRows(const Float (&rows)[width], Combine combine) {
    if constexpr (width == 1) {
      return rows[0];
    } else {
      constexpr auto kLane = std::make_integer_sequence<int, lanes>();
      Float halves[width / 2];
      MOEBIUS_UNROLL
      for (int i = 0; i < width / 2; ++i) {
        const Float a = rows[2 * i];
        const Float b = rows[2 * i + 1];
        halves[i] = combine(HalfOfRows<width, 0>(a, b, kLane), HalfOfRows<width, 1>(a, b, kLane));
      }
      return FoldRows<width / 2>(halves, combine);
    }
  }

  /// The bf16 bits of each lane, rounded to nearest even; NaN stays a quiet NaN (as ToBf16 of
  /// tensor/bf16.h). A tier's StoreBf16 narrows them.
  MOEBIUS_ALWAYS_INLINE static Bits RoundToBf16(Float v) {
    const Bits bits = AsBits(v);
    const Bits rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    const Bits quiet = (bits >> 16) | 0x40;
    const Bits is_nan = reinterpret_cast<Bits>(v != v);
    return (quiet & is_nan) | (rounded & ~is_nan);
  }

  /// Of `lanes` consecutive bf16 pairs: the first, the second of each, widened.
  MOEBIUS_ALWAYS_INLINE static Bits LoadPairs(const uint16_t* p) {
    return *reinterpret_cast<const UnalignedBits*>(p);
  }
  MOEBIUS_ALWAYS_INLINE static Float FirstOfPairs(Bits pairs) { return AsFloat(pairs << 16); }
  MOEBIUS_ALWAYS_INLINE static Float SecondOfPairs(Bits pairs) {
    return AsFloat(pairs & 0xFFFF0000u);
  }

 private:
  template <int half, class Combine>
  MOEBIUS_ALWAYS_INLINE static Float FoldHalves(Float v, Combine combine) {
    if constexpr (half == 0) {
      return v;
    } else {
      return FoldHalves<half / 2>(
          combine(v, Rotate<half>(v, std::make_integer_sequence<int, lanes>())), combine);
    }
  }
  // The first or the second halves of the rows of a, then of b.
  template <int width, int half, int... lane>
  MOEBIUS_ALWAYS_INLINE static Float HalfOfRows(Float a, Float b,
                                                std::integer_sequence<int, lane...>) {
    constexpr int kHalf = width / 2;
    return __builtin_shufflevector(a, b, (lane / kHalf * width + half * kHalf + lane % kHalf)...);
  }
  template <int by, int... lane>
  MOEBIUS_ALWAYS_INLINE static Float Rotate(Float v, std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(v, v, ((lane + by) % lanes)...);
  }
};

}  // namespace
}  // namespace moebius
