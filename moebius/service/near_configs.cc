// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/near_configs.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "moebius/base/hash.h"
#include "moebius/model/model_hash.h"

namespace moebius {
namespace {

constexpr int32_t kMinSpan = 32;
constexpr int32_t kMaxSpan = 1 << 20;
constexpr int32_t kKeyBlock = 128;

std::string SumWords(const NumericsConfig& of) {
  if (of.attention_sum == "canonical") return "sums attention canonical";
  return absl::StrCat("sums attention ", of.attention_sum, " (", of.attention_layout, ")");
}

std::string SumFlags(const NumericsConfig& of) {
  const std::string sum = absl::StrCat("--attention-sum ", of.attention_sum);
  return of.attention_sum == "canonical"
             ? sum
             : absl::StrCat(sum, " --attention-layout ", of.attention_layout);
}

absl::string_view FillName(const NumericsConfig& of) {
  return of.group_fill == GroupFill::kZero ? "zero" : "neg-inf";
}

// What `of` says of the settings in which `a` and `b` differ.
ConfigWords WordsOf(const NumericsConfig& of, const NumericsConfig& a, const NumericsConfig& b) {
  std::vector<std::string> words, flags;
  if (SumWords(a) != SumWords(b)) {
    words.push_back(SumWords(of));
    flags.push_back(SumFlags(of));
  }
  if (a.group_fill != b.group_fill) {
    words.push_back(absl::StrCat("fills groups with ", FillName(of)));
    flags.push_back(absl::StrCat("--group-fill ", FillName(of)));
  }
  if (a.span != b.span) {
    words.push_back(absl::StrCat("cuts spans of ", of.span, " keys"));
    flags.push_back(absl::StrCat("--span ", of.span));
  }
  return {absl::StrJoin(words, " and "), absl::StrJoin(flags, " ")};
}

// Every sum with each of its layouts.
std::vector<NumericsConfig> WithOtherSums(const NumericsConfig& numerics) {
  std::vector<NumericsConfig> all;
  for (const char* layout : {"", "zigzag", "contiguous", "striped"}) {
    NumericsConfig& other = all.emplace_back(numerics);
    const bool is_canonical = *layout == 0;
    other.attention_sum = is_canonical ? "canonical" : "per-degree";
    other.attention_layout = is_canonical ? "zigzag" : layout;
  }
  return all;
}

}  // namespace

std::vector<NearConfig> NearConfigsOf(const NumericsConfig& numerics, uint64_t model_hash) {
  std::vector<int32_t> spans = {numerics.span};
  for (int32_t span = kMinSpan; span <= kMaxSpan; span *= 2) {
    if (span != numerics.span) spans.push_back(span);
  }
  const uint64_t own_hash = HashNumerics(numerics, model_hash);
  std::vector<NearConfig> near;
  for (NumericsConfig other : WithOtherSums(numerics)) {
    for (const GroupFill fill : {GroupFill::kNegativeInfinity, GroupFill::kZero}) {
      for (const int32_t span : spans) {
        other.group_fill = fill;
        other.span = span;
        other.key_block = std::min(kKeyBlock, span);
        const uint64_t hash = HashNumerics(other, model_hash);
        if (hash == own_hash) continue;
        near.push_back({.config_hash = FormatHash64(hash),
                        .own = WordsOf(numerics, numerics, other),
                        .other = WordsOf(other, numerics, other)});
      }
    }
  }
  return near;
}

}  // namespace moebius
