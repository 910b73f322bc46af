// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/rope.h"

#include <algorithm>
#include <utility>

#include "moebius/base/check.h"
#include "moebius/kernels/cpu/row_vectors.h"
#include "moebius/kernels/math.h"

namespace moebius {
namespace {

constexpr double kPi = 3.14159265358979323846;

// theta^(2i / dim), the exponent and the power rounded to fp32.
float FrequencyDivisor(int64_t i, int64_t dim, double theta) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
  return static_cast<float>(Pow(theta, static_cast<double>(exponent)));
}

// The index at which a frequency makes `rotations` turns over the original length.
double RampIndex(double rotations, int64_t dim, double theta, int64_t original_max_positions) {
  const double length = static_cast<double>(original_max_positions);
  return static_cast<double>(dim) * LogOfDouble(length / (rotations * 2 * kPi)) /
         (2 * LogOfDouble(theta));
}

double Floor(double x) {
  const double truncated = static_cast<double>(static_cast<int64_t>(x));
  return truncated > x ? truncated - 1 : truncated;
}

constexpr int kLanes = RowVector::kLanes;

// x' = x·c - y·s, y' = y·c + x·s of numbers or vectors.
template <class Value>
struct Turned {
  Value x, y;
  Turned(Value from_x, Value from_y, Value cosine, Value sine)
      : x(from_x * cosine - from_y * sine), y(from_y * cosine + from_x * sine) {}
};

template <class T>
void RotateElements(T* x, T* y, float cosine, float sine) {
  const Turned turned(LoadElement(x), LoadElement(y), cosine, sine);
  StoreElement(x, turned.x);
  StoreElement(y, turned.y);
}

// Elements i of x and y.
template <class T>
void RotateHalves(const float* cosines, const float* sines, int64_t half, T* x, T* y) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Turned turned(LoadVector(x + i), LoadVector(y + i), RowVector::Load(cosines + i),
                        RowVector::Load(sines + i));
    StoreVector(x + i, turned.x);
    StoreVector(y + i, turned.y);
  }
  for (; i < half; ++i) RotateElements(x + i, y + i, cosines[i], sines[i]);
}

// Elements 2i and 2i + 1.
template <class T>
void RotateInterleaved(const float* cosines, const float* sines, int64_t half, T* head) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    T* const at = head + 2 * i;
    const RowVector::Float low = LoadVector(at);
    const RowVector::Float high = LoadVector(at + kLanes);
    const Turned turned(__builtin_shufflevector(low, high, 0, 2, 4, 6),
                        __builtin_shufflevector(low, high, 1, 3, 5, 7),
                        RowVector::Load(cosines + i), RowVector::Load(sines + i));
    StoreVector(at, __builtin_shufflevector(turned.x, turned.y, 0, 4, 1, 5));
    StoreVector(at + kLanes, __builtin_shufflevector(turned.x, turned.y, 2, 6, 3, 7));
  }
  for (; i < half; ++i) RotateElements(head + 2 * i, head + 2 * i + 1, cosines[i], sines[i]);
}

template <class T>
void RotateRows(const RopeTable& table, int64_t table_begin, RopePairs pairs, RopeHeads heads,
                Rows<T> rows) {
  MOEBIUS_CHECK_LE(table_begin + rows.num_rows, table.num_rows());
  MOEBIUS_CHECK_LE(heads.offset + (heads.num_heads - 1) * heads.stride + table.dim(), rows.width);
  const int64_t half = table.dim() / 2;
  for (int64_t t = 0; t < rows.num_rows; ++t) {
    const float* const cosines = table.cosines(table_begin + t).data();
    const float* const sines = table.sines(table_begin + t).data();
    for (int64_t h = 0; h < heads.num_heads; ++h) {
      T* const head = rows.row(t) + heads.offset + h * heads.stride;
      if (pairs == RopePairs::kInterleaved) {
        RotateInterleaved(cosines, sines, half, head);
      } else {
        RotateHalves(cosines, sines, half, head, head + half);
      }
    }
  }
}

}  // namespace

std::vector<float> RopeInvFreq(int64_t dim, double theta) {
  MOEBIUS_CHECK(dim > 0 && dim % 2 == 0);
  std::vector<float> inv_freq(static_cast<size_t>(dim / 2));
  for (int64_t i = 0; i < dim / 2; ++i) {
    inv_freq[static_cast<size_t>(i)] = 1.0f / FrequencyDivisor(i, dim, theta);
  }
  return inv_freq;
}

std::vector<float> YarnInvFreq(int64_t dim, double theta, const YarnFrequencies& yarn) {
  MOEBIUS_CHECK(dim > 0 && dim % 2 == 0);
  double low = RampIndex(yarn.beta_fast, dim, theta, yarn.original_max_positions);
  double high = RampIndex(yarn.beta_slow, dim, theta, yarn.original_max_positions);
  if (yarn.truncate == YarnFrequencies::Truncate::kYes) {
    low = Floor(low);
    high = -Floor(-high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;  // the ramp becomes a step instead of 0 / 0
  const float ramp_begin = static_cast<float>(low);
  const float ramp_width = static_cast<float>(high - low);

  std::vector<float> inv_freq(static_cast<size_t>(dim / 2));
  for (int64_t i = 0; i < dim / 2; ++i) {
    const float divisor = FrequencyDivisor(i, dim, theta);
    const float kept = 1.0f / divisor;
    const float stretched = 1.0f / (static_cast<float>(yarn.factor) * divisor);
    const float ramp = std::clamp((static_cast<float>(i) - ramp_begin) / ramp_width, 0.0f, 1.0f);
    const float kept_share = 1.0f - ramp;
    inv_freq[static_cast<size_t>(i)] = stretched * (1.0f - kept_share) + kept * kept_share;
  }
  return inv_freq;
}

double YarnAmplitude(double factor, double mscale) {
  return factor > 1.0 ? 0.1 * mscale * LogOfDouble(factor) + 1.0 : 1.0;
}

RopeTable::RopeTable(std::vector<float> inv_freq, float amplitude)
    : inv_freq_(std::move(inv_freq)), amplitude_(amplitude) {}

void RopeTable::Fill(absl::Span<const int64_t> positions) {
  const size_t half = inv_freq_.size();
  num_rows_ = static_cast<int64_t>(positions.size());
  entries_.Resize(positions.size() * 2 * half);
  for (size_t t = 0; t < positions.size(); ++t) {
    MOEBIUS_CHECK(positions[t] >= 0 && positions[t] < (int64_t{1} << 24));
    const float position = static_cast<float>(positions[t]);
    float* const cosines = entries_.data() + t * 2 * half;
    float* const sines = cosines + half;
    for (size_t i = 0; i < half; ++i) {
      const float angle = position * inv_freq_[i];
      const SineCosine turn = SinCos(static_cast<double>(angle));
      cosines[i] = static_cast<float>(turn.cosine) * amplitude_;
      sines[i] = static_cast<float>(turn.sine) * amplitude_;
    }
  }
}

absl::Span<const float> RopeTable::cosines(int64_t row) const {
  MOEBIUS_DCHECK(row >= 0 && row < num_rows_);
  const size_t half = inv_freq_.size();
  return entries_.span().subspan(static_cast<size_t>(row) * 2 * half, half);
}

absl::Span<const float> RopeTable::sines(int64_t row) const {
  MOEBIUS_DCHECK(row >= 0 && row < num_rows_);
  const size_t half = inv_freq_.size();
  return entries_.span().subspan((static_cast<size_t>(row) * 2 + 1) * half, half);
}

void ApplyRope(const RopeTable& table, int64_t table_begin, RopePairs pairs, RopeHeads heads,
               MutableBf16Rows rows) {
  RotateRows(table, table_begin, pairs, heads, rows);
}

void ApplyRope(const RopeTable& table, int64_t table_begin, RopePairs pairs, RopeHeads heads,
               MutableFloatRows rows) {
  RotateRows(table, table_begin, pairs, heads, rows);
}

}  // namespace moebius
