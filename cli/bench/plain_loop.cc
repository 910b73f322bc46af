// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/plain_loop.h"

#include <cmath>
#include <vector>

#include "cli/bench/compute_ceilings.h"

#include "moebius/base/random.h"

namespace moebius {
namespace {

std::vector<Bf16> NormalValues(int64_t count, uint64_t seed) {
  std::vector<Bf16> values(static_cast<size_t>(count));
  Random random(seed);
  for (Bf16& value : values) value = ToBf16(random.Normal());
  return values;
}

// weights [num_outputs, depth], row [depth].
void Multiply(const std::vector<Bf16>& weights, const std::vector<float>& row,
              std::vector<float>* out) {
  for (size_t output = 0; output < out->size(); ++output) {
    const Bf16* const column = weights.data() + output * row.size();
    float sum = 0;
    for (size_t k = 0; k < row.size(); ++k) sum += ToFloat(column[k]) * row[k];
    (*out)[output] = sum;
  }
}

}  // namespace

PlainLoop::PlainLoop(const FfnShape& shape)
    : shape_(shape),
      gate_(NormalValues(shape.hidden_size * shape.intermediate_size, 1)),
      up_(NormalValues(shape.hidden_size * shape.intermediate_size, 2)),
      down_(NormalValues(shape.hidden_size * shape.intermediate_size, 3)),
      row_(static_cast<size_t>(shape.hidden_size), 0.5f),
      gates_(static_cast<size_t>(shape.intermediate_size)),
      ups_(gates_.size()),
      out_(row_.size()) {}

double PlainLoop::Seconds() {
  const double seconds = MeanSeconds(absl::ZeroDuration(), [&] {
    Multiply(gate_, row_, &gates_);
    Multiply(up_, row_, &ups_);
    for (size_t i = 0; i < ups_.size(); ++i) ups_[i] *= gates_[i] / (1 + std::exp(-gates_[i]));
    Multiply(down_, ups_, &out_);
  });
  return seconds * shape_.top_k;
}

}  // namespace moebius
