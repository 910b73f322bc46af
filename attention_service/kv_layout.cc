// SPDX-License-Identifier: Apache-2.0
#include "attention_service/kv_layout.h"

#include <algorithm>

namespace moebius {

KvLayout::KvLayout(const AttentionFacts& facts, PairOrder order) : order_(order) {
  const AttentionConfig& config = facts.config;
  shape_ = {.key_width = config.qk_head_dim,
            .value_width = config.v_head_dim,
            .key_block = facts.key_block,
            .scale = config.softmax_scale};
  if (config.mla.has_value()) {
    latent_width_ = config.mla->kv_lora_rank + config.mla->qk_rope_dim;
    shape_.key_width = latent_width_;
    shape_.value_width = config.mla->kv_lora_rank;
    latent_stride_ = shape_.padded_key_width();
    num_kv_heads_ = 1;
    layer_elements_ = facts.key_block * latent_stride_;
  } else {
    num_kv_heads_ = config.num_kv_heads;
    layer_elements_ = num_kv_heads_ * (shape_.key_block_elements() + shape_.value_block_elements());
  }
}

void KvLayout::StoreGrouped(const Bf16* k, const Bf16* v, int64_t token, Bf16* layer) const {
  for (int64_t head = 0; head < num_kv_heads_; ++head) {
    StoreKey(order_, shape_, k + head * shape_.key_width, token,
             layer + head * shape_.key_block_elements());
    StoreValue(
        order_, shape_, v + head * shape_.value_width, token,
        layer + num_kv_heads_ * shape_.key_block_elements() + head * shape_.value_block_elements());
  }
}

int64_t KvLayout::row_width(HeadRange heads) const {
  return is_latent() ? latent_width_ : heads.size() * (shape_.key_width + shape_.value_width);
}

void KvLayout::ReadRows(const Bf16* layer, int64_t token_begin, HeadRange heads,
                        MutableBf16Rows rows) const {
  if (is_latent()) {
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      std::copy_n(layer + (token_begin + r) * latent_stride_, latent_width_, rows.row(r));
    }
    return;
  }
  const int64_t k_width = heads.size() * shape_.key_width;
  for (int32_t head = heads.begin; head < heads.end; ++head) {
    const int64_t index = head - heads.begin;
    UnpackKeys(order_, shape_, keys(layer, head), token_begin,
               rows.Columns(index * shape_.key_width, (index + 1) * shape_.key_width));
    UnpackValues(order_, shape_, values(layer, head), token_begin,
                 rows.Columns(k_width + index * shape_.value_width,
                              k_width + (index + 1) * shape_.value_width));
  }
}

void KvLayout::WriteBlock(Bf16Rows rows, HeadRange heads, Bf16* layer) const {
  if (is_latent()) {
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      std::copy_n(rows.row(r), latent_width_, layer + r * latent_stride_);
    }
    ClearFrom(rows.num_rows, layer);
    return;
  }
  const int64_t k_width = heads.size() * shape_.key_width;
  for (int32_t head = heads.begin; head < heads.end; ++head) {
    const int64_t index = head - heads.begin;
    PackKeyBlock(order_, shape_,
                 rows.Columns(index * shape_.key_width, (index + 1) * shape_.key_width),
                 layer + head * shape_.key_block_elements());
    PackValueBlock(
        order_, shape_,
        rows.Columns(k_width + index * shape_.value_width,
                     k_width + (index + 1) * shape_.value_width),
        layer + num_kv_heads_ * shape_.key_block_elements() + head * shape_.value_block_elements());
  }
}

void KvLayout::ClearFrom(int64_t token, Bf16* layer) const {
  if (is_latent()) {
    std::fill(layer + token * latent_stride_, layer + layer_elements_, Bf16{});
    return;
  }
  // Hidden keys are left out by selection; only values must be +0.
  for (int64_t head = 0; head < num_kv_heads_; ++head) {
    Bf16* values =
        layer + num_kv_heads_ * shape_.key_block_elements() + head * shape_.value_block_elements();
    for (int64_t t = token; t < shape_.key_block; ++t) {
      StoreValue(order_, shape_, nullptr, t, values);
    }
  }
}

}  // namespace moebius
