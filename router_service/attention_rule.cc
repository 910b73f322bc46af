// SPDX-License-Identifier: Apache-2.0
#include "router_service/attention_rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace moebius {

AttentionHeads HeadsOf(const AttentionConfig& config) {
  AttentionHeads heads{.query_heads = config.num_query_heads,
                       .kv_heads = config.num_kv_heads,
                       .head_dim = config.qk_head_dim,
                       .value_dim = config.v_head_dim,
                       .is_causal = config.is_causal};
  if (config.mla.has_value()) {
    const MlaConfig& mla = *config.mla;
    heads.latent_dim = mla.kv_lora_rank + mla.qk_rope_dim;
    heads.expand_flops = 2 * int64_t{mla.kv_lora_rank} * (mla.qk_nope_dim + config.v_head_dim);
  }
  if (!config.windows.empty()) {
    const auto [least, most] = std::minmax_element(config.windows.begin(), config.windows.end());
    heads.window = *least == 0 ? 0 : *most;
  }
  return heads;
}

absl::StatusOr<std::optional<AttentionMethod>> ParseAttentionRule(const std::string& text) {
  if (text == "auto") return std::optional<AttentionMethod>();
  AttentionMethod method = AttentionMethod::kLocal;
  if (ParseAttentionMethod(text, &method)) return std::optional<AttentionMethod>(method);
  std::string known = "auto";
  for (const AttentionMethod each : kAttentionMethods) {
    absl::StrAppend(&known, each == kAttentionMethods.back() ? " or " : ", ",
                    AttentionMethodName(each));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("attention method is \"", text, "\", it must be ", known));
}

absl::StatusOr<std::optional<RankRates>> ParseRankRates(const std::string& text) {
  if (text == "measured") return std::optional<RankRates>();
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  RankRates rates;
  const bool is_read = parts.size() == 3 && absl::SimpleAtod(parts[0], &rates.flops) &&
                       absl::SimpleAtod(parts[1], &rates.bandwidth) &&
                       absl::SimpleAtod(parts[2], &rates.latency);
  // False for what is no number, too.
  if (is_read && rates.flops > 0 && rates.bandwidth > 0 && rates.latency >= 0 &&
      std::isfinite(rates.flops + rates.bandwidth + rates.latency)) {
    return std::optional<RankRates>(rates);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("attention rates are \"", text,
                   "\", they must be \"measured\" or FLOP/s,bytes/s,seconds, as 100e9,1e9,100e-6"));
}

std::string DescribeRankRates(const RankRates& rates) {
  return absl::StrFormat("kernel %.3g GFLOP/s, links %.3g GB/s, %.3g µs a message",
                         rates.flops / 1e9, rates.bandwidth / 1e9, rates.latency * 1e6);
}

}  // namespace moebius
