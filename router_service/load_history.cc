// SPDX-License-Identifier: Apache-2.0
#include "router_service/load_history.h"

#include <algorithm>
#include <utility>

#include "moebius/base/check.h"

namespace moebius {

bool LoadHistory::IsDue(absl::Duration now) const {
  MutexLock lock(mutex_);
  return !has_begun_ || now - last_at_ >= kInterval;
}

void LoadHistory::Add(absl::Duration now, const ExpertLoadTable& load, int64_t prompt_tokens,
                      int64_t generated_tokens) {
  MutexLock lock(mutex_);
  if (has_begun_) {
    MOEBIUS_CHECK_EQ(load.demand.size(), load_.demand.size());
    Sample sample;
    sample.length = now - last_at_;
    sample.prompt_tokens = prompt_tokens - prompt_tokens_;
    sample.generated_tokens = generated_tokens - generated_tokens_;
    sample.demand.resize(load.demand.size());
    for (size_t i = 0; i < load.demand.size(); ++i) {
      sample.demand[i] = static_cast<uint32_t>(
          std::clamp<int64_t>(load.demand[i] - load_.demand[i], 0, UINT32_MAX));
    }
    if (samples_.size() == kMaxSamples) samples_.pop_front();
    samples_.push_back(std::move(sample));
  }
  has_begun_ = true;
  last_at_ = now;
  prompt_tokens_ = prompt_tokens;
  generated_tokens_ = generated_tokens;
  load_ = load;
}

LoadWindow LoadHistory::Window(size_t layer) const {
  MutexLock lock(mutex_);
  LoadWindow window;
  if (layer >= load_.layer_ids.size()) return window;
  window.num_experts = load_.num_experts;
  const auto num_experts = static_cast<size_t>(load_.num_experts);
  absl::Duration length;
  int64_t prompt = 0, generated = 0;
  for (const Sample& sample : samples_) {
    const auto begin = sample.demand.begin() + static_cast<ptrdiff_t>(layer * num_experts);
    window.demand.insert(window.demand.end(), begin, begin + load_.num_experts);
    length += sample.length;
    prompt += sample.prompt_tokens;
    generated += sample.generated_tokens;
  }
  window.seconds = absl::ToDoubleSeconds(length);
  if (window.seconds > 0) {
    window.prompt_tokens_per_second = static_cast<double>(prompt) / window.seconds;
    window.generated_tokens_per_second = static_cast<double>(generated) / window.seconds;
  }
  return window;
}

}  // namespace moebius
