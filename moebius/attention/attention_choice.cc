// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/attention/cost_model.h"

namespace moebius {
namespace {

std::string Time(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%.3g s", seconds);
  if (seconds >= 1e-3) return absl::StrFormat("%.3g ms", seconds * 1e3);
  return absl::StrFormat("%.3g µs", seconds * 1e6);
}

std::string Size(double bytes) {
  if (bytes >= 1e9) return absl::StrFormat("%.3g GB", bytes / 1e9);
  if (bytes >= 1e6) return absl::StrFormat("%.3g MB", bytes / 1e6);
  return absl::StrFormat("%.3g KB", bytes / 1e3);
}

AttentionMethod Fastest(const AttentionChoice& choice, AttentionMethod other_than) {
  AttentionMethod best = AttentionMethod::kLocal;
  bool has_best = false;
  for (const AttentionMethod method : kAttentionMethods) {
    if (method == other_than) continue;
    if (has_best && choice.cost(method).seconds >= choice.cost(best).seconds) continue;
    best = method;
    has_best = true;
  }
  return best;
}

std::string Share(const MethodCost& cost, AttentionMethod method) {
  if (method != AttentionMethod::k2d) return absl::StrCat(" on ", cost.ranks, " ranks");
  return absl::StrCat(" on ", cost.ulysses_ranks, " × ", cost.ring_ranks, " ranks");
}

std::string ReasonOf(const AttentionChoice& choice, const AttentionWork& work,
                     const CostOptions& options) {
  const MethodCost& best = choice.cost(choice.method);
  if (options.num_ranks == 1) {
    return absl::StrCat("local: there is one rank; ", Time(best.seconds), " a layer");
  }
  const AttentionMethod second = Fastest(choice, choice.method);
  const MethodCost& next = choice.cost(second);
  if (choice.method == AttentionMethod::kLocal) {
    return absl::StrCat("local on 1 rank, ", Time(best.seconds), " a layer: ", work.new_tokens,
                        " new tokens over ", work.keys(), " keys are too little work to share; ",
                        AttentionMethodName(second), Share(next, second), " would compute for ",
                        Time(next.compute_seconds), " and wait ", Time(next.exposed_seconds),
                        " for messages");
  }
  const std::string waits =
      best.exposed_seconds > 0
          ? absl::StrCat("waits ", Time(best.exposed_seconds), " for ", Size(best.bytes))
          : absl::StrCat("hides its ", Size(best.bytes), " behind compute");
  return absl::StrCat(AttentionMethodName(choice.method), Share(best, choice.method), ", ",
                      Time(best.seconds), " a layer: it computes for ", Time(best.compute_seconds),
                      " and ", waits, "; next is ", AttentionMethodName(second), " with ",
                      Time(next.seconds), " and ", Size(next.bytes), "; one rank alone needs ",
                      Time(choice.cost(AttentionMethod::kLocal).seconds));
}

}  // namespace

AttentionChoice ChooseAttention(const AttentionHeads& heads, const AttentionWork& work,
                                const RankRates& rates, const CostOptions& options) {
  AttentionChoice choice;
  for (const AttentionMethod method : kAttentionMethods) {
    choice.costs[static_cast<size_t>(method)] = PredictCost(method, heads, work, rates, options);
  }
  // A cost that is equal but for rounding is not faster.
  for (const AttentionMethod method : kAttentionMethods) {
    if (choice.cost(method).seconds < choice.cost(choice.method).seconds * (1 - 1e-9)) {
      choice.method = method;
    }
  }
  choice.reason = ReasonOf(choice, work, options);
  return choice;
}

}  // namespace moebius
