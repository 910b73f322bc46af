// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/session_method.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

AttentionMethod Choose(const MethodRule& rule, const SessionRows& session) {
  const int64_t prompt_rows =
      std::min(session.num_rows, session.prompt_length - session.position_begin);
  const AttentionWork work{.new_tokens = prompt_rows, .cached_tokens = session.position_begin};
  CostOptions options{.num_ranks = rule.num_ranks,
                      .sum = rule.sum,
                      .layout = rule.layout,
                      .span = rule.span,
                      .key_block = rule.key_block};
  options.ulysses_ranks = GroupSizeOf2d(rule.num_ranks);
  return ChooseAttention(rule.heads, work, rule.rates, options).method;
}

int32_t GroupSizeOf(AttentionMethod method, int32_t num_ranks) {
  if (method == AttentionMethod::kUlysses) return num_ranks;
  return method == AttentionMethod::k2d ? GroupSizeOf2d(num_ranks) : 1;
}

}  // namespace

absl::Status ValidateMethodRule(const MethodRule& rule) {
  if (!rule.forced.has_value() || rule.num_ranks == 1) return absl::OkStatus();
  if (*rule.forced == AttentionMethod::kLocal) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention method local needs one attention rank, there are ", rule.num_ranks));
  }
  if (*rule.forced == AttentionMethod::k2d && GroupSizeOf2d(rule.num_ranks) == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention method 2d needs a number of ranks with a divisor, ", rule.num_ranks,
                     " has none"));
  }
  return absl::OkStatus();
}

int32_t GroupSizeOf2d(int32_t num_ranks) {
  int32_t size = 1;
  for (int32_t u = 2; u * u <= num_ranks; ++u) {
    if (num_ranks % u == 0) size = u;
  }
  return size;
}

int32_t FirstRankOf(const MethodRule& rule, SessionId session) {
  const bool may_go_by_heads = !rule.forced.has_value() ||
                               *rule.forced == AttentionMethod::kUlysses ||
                               *rule.forced == AttentionMethod::k2d;
  if (rule.sum == AttentionSum::kPerDegree && may_go_by_heads) return 0;
  return static_cast<int32_t>(session.value() % static_cast<uint64_t>(rule.num_ranks));
}

void SetMethods(const MethodRule& rule, StepPlan& plan) {
  int32_t group_size = 1;
  for (SessionRows& session : plan.sessions) {
    session.method = AttentionMethod::kRingPassKv;
    session.ulysses_ranks = 1;
    if (rule.num_ranks == 1) session.method = AttentionMethod::kLocal;
    const bool has_prompt_rows =
        session.num_rows > 0 && session.position_begin < session.prompt_length;
    if (rule.num_ranks == 1 || !has_prompt_rows) continue;
    const AttentionMethod method = rule.forced.has_value() ? *rule.forced : Choose(rule, session);
    if (method == AttentionMethod::kLocal) continue;
    const int32_t size = GroupSizeOf(method, rule.num_ranks);
    if (size > 1 && group_size > 1 && size != group_size) continue;
    session.method = method;
    session.ulysses_ranks = size;
    group_size = std::max(group_size, size);
  }
}

}  // namespace moebius
