// SPDX-License-Identifier: Apache-2.0
#include "router_service/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_format.h"

#include "moebius/base/check.h"
#include "moebius/base/random.h"
#include "moebius/base/status.h"
#include "moebius/kernels/math.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr double kMaxTemperature = 1000;
// Below it every difference of two fp32 logits is past the range of e^x already.
constexpr double kMinTemperature = 1e-30;
constexpr double kMaxPenalty = 2;
constexpr double kMaxRepetitionPenalty = 100;
constexpr double kMaxLogitBias = 100;

absl::Status CheckRange(const char* field, double value, double min, double max) {
  if (value >= min && value <= max) return absl::OkStatus();  // false for NaN
  // In full: rounded, a value just outside looks as if it were inside.
  return absl::InvalidArgumentError(absl::StrFormat("%s is %s; it must be in [%s, %s]", field,
                                                    FormatNumber(value), FormatNumber(min),
                                                    FormatNumber(max)));
}

absl::Status CheckNotNegative(const char* field, int64_t value) {
  if (value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %d; it must not be negative", field, value));
}

absl::Status CheckLogitBias(const SamplingParams& params, int64_t vocab_size) {
  std::vector<int64_t> ids;
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0 || id >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrFormat("logit_bias has token %d; the vocabulary is [0, %d)", id, vocab_size));
    }
    MOEBIUS_RETURN_IF_ERROR(CheckRange("logit_bias", bias, -kMaxLogitBias, kMaxLogitBias));
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice == ids.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("logit_bias has token %d twice", *twice));
}

absl::Status CheckFinite(absl::Span<const float> logits) {
  for (size_t id = 0; id < logits.size(); ++id) {
    if (std::isfinite(logits[id])) continue;
    return absl::InvalidArgumentError(absl::StrFormat("the logit of token %d is not finite", id));
  }
  return absl::OkStatus();
}

int64_t Largest(absl::Span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();  // the first of equals
}

}  // namespace

absl::Status ValidateSamplingParams(const SamplingParams& params, int64_t vocab_size) {
  MOEBIUS_RETURN_IF_ERROR(CheckRange("temperature", params.temperature, 0, kMaxTemperature));
  MOEBIUS_RETURN_IF_ERROR(CheckNotNegative("top_k", params.top_k));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("top_p", params.top_p, 0, 1));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("min_p", params.min_p, 0, 1));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("repetition_penalty", params.repetition_penalty,
                                     1 / kMaxRepetitionPenalty, kMaxRepetitionPenalty));
  MOEBIUS_RETURN_IF_ERROR(
      CheckRange("presence_penalty", params.presence_penalty, -kMaxPenalty, kMaxPenalty));
  MOEBIUS_RETURN_IF_ERROR(
      CheckRange("frequency_penalty", params.frequency_penalty, -kMaxPenalty, kMaxPenalty));
  MOEBIUS_RETURN_IF_ERROR(CheckNotNegative("logprobs", params.num_logprobs));
  return CheckLogitBias(params, vocab_size);
}

TokenCounts::Entry& TokenCounts::At(int64_t token_id) {
  const auto place =
      std::lower_bound(entries_.begin(), entries_.end(), token_id,
                       [](const Entry& entry, int64_t id) { return entry.token_id < id; });
  if (place != entries_.end() && place->token_id == token_id) return *place;
  return *entries_.insert(place, Entry{token_id, 0, 0});
}

void TokenCounts::AddPrompt(absl::Span<const int64_t> token_ids) {
  for (const int64_t id : token_ids) ++At(id).in_prompt;
}

void TokenCounts::AddGenerated(int64_t token_id) { ++At(token_id).generated; }

absl::StatusOr<SampledToken> Sampler::Sample(absl::Span<const float> logits,
                                             const SamplingParams& params,
                                             const TokenCounts* counts, int64_t position) {
  MOEBIUS_CHECK(!logits.empty());
  MOEBIUS_RETURN_IF_ERROR(CheckFinite(logits));
  logits_.assign(logits.begin(), logits.end());
  Adjust(params, counts);
  SampledToken sampled;
  if (params.temperature == 0 || params.top_k == 1) {
    sampled.token_id = Largest(logits_);
  } else {
    KeepLikely(params);
    sampled.token_id = Draw(params, position);
  }
  if (params.num_logprobs > 0) Rank(logits, params.num_logprobs, &sampled);
  return sampled;
}

void Sampler::Adjust(const SamplingParams& params, const TokenCounts* counts) {
  const bool penalised = params.repetition_penalty != 1 || params.frequency_penalty != 0 ||
                         params.presence_penalty != 0;
  if (penalised && counts != nullptr) {
    const auto repetition = static_cast<float>(params.repetition_penalty);
    const auto frequency = static_cast<float>(params.frequency_penalty);
    const auto presence = static_cast<float>(params.presence_penalty);
    for (const TokenCounts::Entry& entry : counts->entries()) {
      float& logit = logits_[static_cast<size_t>(entry.token_id)];
      logit = logit > 0 ? logit / repetition : logit * repetition;
      if (entry.generated > 0) {
        logit -= static_cast<float>(entry.generated) * frequency + presence;
      }
    }
  }
  for (const auto& [id, bias] : params.logit_bias) {
    logits_[static_cast<size_t>(id)] += static_cast<float>(bias);
  }
}

// Steps 4 to 7: leaves in candidates_, ascending by id, what may be drawn.
void Sampler::KeepLikely(const SamplingParams& params) {
  const float largest = logits_[static_cast<size_t>(Largest(logits_))];
  const double temperature = std::max(params.temperature, kMinTemperature);
  candidates_.resize(logits_.size());
  for (size_t id = 0; id < logits_.size(); ++id) {
    Candidate& candidate = candidates_[id];
    candidate.logit = logits_[id];
    candidate.token_id = static_cast<int32_t>(id);
    const double scaled = (static_cast<double>(logits_[id]) - largest) / temperature;
    candidate.weight = Exp(static_cast<float>(scaled));
  }
  const auto is_better = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token_id < b.token_id;
  };
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.token_id < b.token_id; };
  const bool limits_k = params.top_k > 0 && params.top_k < static_cast<int64_t>(candidates_.size());
  if (limits_k) {
    std::nth_element(candidates_.begin(), candidates_.begin() + params.top_k, candidates_.end(),
                     is_better);
    candidates_.resize(static_cast<size_t>(params.top_k));
    std::sort(candidates_.begin(), candidates_.end(), by_id);
  }
  if (params.top_p < 1) {
    double mass = 0;
    for (const Candidate& candidate : candidates_) mass += candidate.weight;
    // The best move to the front one by one, until they have the mass.
    const auto is_worse = [&](const Candidate& a, const Candidate& b) { return is_better(b, a); };
    std::make_heap(candidates_.begin(), candidates_.end(), is_worse);
    auto heap_end = candidates_.end();
    double kept_mass = 0;
    do {
      std::pop_heap(candidates_.begin(), heap_end, is_worse);
      --heap_end;
      kept_mass += heap_end->weight;
    } while (heap_end != candidates_.begin() && kept_mass < params.top_p * mass);
    candidates_.erase(candidates_.begin(), heap_end);
    std::sort(candidates_.begin(), candidates_.end(), by_id);
  }
  if (params.min_p > 0) {
    // The largest weight is 1: it belongs to the largest logit, which is always kept.
    const auto floor = static_cast<float>(params.min_p);
    candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(),
                                     [floor](const Candidate& c) { return c.weight < floor; }),
                      candidates_.end());
  }
}

int64_t Sampler::Draw(const SamplingParams& params, int64_t position) {
  double mass = 0;
  for (const Candidate& candidate : candidates_) mass += candidate.weight;
  // 53 bits, exact in fp64, in [0, 1).
  const uint64_t bits = RandomBits(params.seed, static_cast<uint64_t>(position)) >> 11;
  const double target = static_cast<double>(bits) * 0x1p-53 * mass;
  double sum = 0;
  int64_t last_possible = candidates_.front().token_id;
  for (const Candidate& candidate : candidates_) {
    if (candidate.weight == 0) continue;
    last_possible = candidate.token_id;
    sum += candidate.weight;
    if (sum > target) break;
  }
  return last_possible;
}

void Sampler::Rank(absl::Span<const float> logits, int64_t num_logprobs, SampledToken* sampled) {
  const float largest = logits[static_cast<size_t>(Largest(logits))];
  double mass = 0;
  for (const float logit : logits) mass += Exp(logit - largest);
  const float log_mass = Log(static_cast<float>(mass));
  const auto logprob = [&](int64_t id) {
    return (logits[static_cast<size_t>(id)] - largest) - log_mass;
  };
  sampled->logprob = logprob(sampled->token_id);
  order_.resize(logits.size());
  for (size_t id = 0; id < order_.size(); ++id) order_[id] = static_cast<int32_t>(id);
  const auto count = std::min(num_logprobs, static_cast<int64_t>(order_.size()));
  std::partial_sort(order_.begin(), order_.begin() + count, order_.end(),
                    [&](int32_t a, int32_t b) {
                      const float logit_a = logits[static_cast<size_t>(a)];
                      const float logit_b = logits[static_cast<size_t>(b)];
                      return logit_a != logit_b ? logit_a > logit_b : a < b;
                    });
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = order_[static_cast<size_t>(i)];
    sampled->ranked.push_back(RankedToken{id, logprob(id)});
  }
}

}  // namespace moebius
