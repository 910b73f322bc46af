// SPDX-License-Identifier: Apache-2.0
#include "router_service/attention_rule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace moebius {

AttentionHeads HeadsOf(const AttentionConfig& config) {
  AttentionHeads heads{.query_heads = config.num_query_heads,
                       .kv_heads = config.num_kv_heads,
                       .head_dim = config.qk_head_dim,
                       .value_dim = config.v_head_dim};
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

}  // namespace moebius
