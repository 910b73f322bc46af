// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "moebius/tensor/buffer.h"
#include "moebius/tensor/rows.h"

/// Rotary position embedding (Su et al., "RoFormer", 2021) with the roundings of the widely used
/// implementation: frequencies in fp32, the angle position · frequency rounded to fp32, cosine and
/// sine of that fp32 angle (in fp64), times the amplitude, in fp32.
namespace moebius {

/// Frequencies fp32 [dim / 2]: 1 / theta^(2i / dim), exponent and power each rounded to fp32.
/// dim even and positive.
std::vector<float> RopeInvFreq(int64_t dim, double theta);

/// YaRN's stretched frequencies (Peng et al., "YaRN", 2023, section 3.2): below beta_slow rotations
/// over the original length a frequency is divided by `factor`, above beta_fast it is kept, between
/// them a linear ramp over the index; the ramp's ends are floor and ceil unless truncate is kNo.
struct YarnFrequencies {
  double factor = 1.0;
  int64_t original_max_positions = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  enum class Truncate { kNo, kYes } truncate = Truncate::kYes;
};
std::vector<float> YarnInvFreq(int64_t dim, double theta, const YarnFrequencies& yarn);

/// 0.1 · mscale · ln(factor) + 1 for factor > 1, else 1: YaRN's attention amplitude.
double YarnAmplitude(double factor, double mscale);

/// Which elements rotate together: (2i, 2i + 1), or (i, i + dim / 2).
enum class RopePairs { kInterleaved, kHalves };

/// Cosines and sines of the rows of one step: entry t belongs to row t's position. Fill once per
/// step, share over layers and heads. Fill is not thread-safe, reading is.
class RopeTable {
 public:
  RopeTable() = default;
  /// `amplitude` multiplies cosines and sines (YaRN's attention factor; 1 without).
  RopeTable(std::vector<float> inv_freq, float amplitude);

  /// Entries for positions[t] >= 0 (< 2^24). Must run on an executor thread.
  void Fill(absl::Span<const int64_t> positions);

  int64_t num_rows() const { return num_rows_; }
  int64_t dim() const { return 2 * static_cast<int64_t>(inv_freq_.size()); }
  /// [dim / 2] each.
  absl::Span<const float> cosines(int64_t row) const;
  absl::Span<const float> sines(int64_t row) const;

 private:
  std::vector<float> inv_freq_;
  float amplitude_ = 1.0f;
  int64_t num_rows_ = 0;
  Array<float> entries_;  // [num_rows][2][dim / 2]
};

/// Heads inside rows: head h of a row starts at element offset + h · stride, and the `table.dim()`
/// elements from there rotate.
struct RopeHeads {
  int64_t num_heads = 1;
  int64_t stride = 0;
  int64_t offset = 0;
};

/// Rotates in place: row t by table entry t + table_begin. x' = x·c - y·s, y' = y·c + x·s (products
/// and sum each rounded to fp32), bf16 results rounded once. Thread-safe for disjoint rows.
///
/// The result keeps each element in its place: kInterleaved stays interleaved.
void ApplyRope(const RopeTable& table, int64_t table_begin, RopePairs pairs, RopeHeads heads,
               MutableBf16Rows rows);
void ApplyRope(const RopeTable& table, int64_t table_begin, RopePairs pairs, RopeHeads heads,
               MutableFloatRows rows);

}  // namespace moebius
