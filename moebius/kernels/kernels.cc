// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/kernels.h"

#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/kernels/attention_calls.h"
#include "moebius/kernels/cpu/tiers.h"
#include "moebius/kernels/cpu/tile_state.h"
#include "moebius/kernels/self_test.h"
#include "moebius/kernels/tier.h"

namespace moebius {
namespace {

constexpr std::array<Tier, 5> kTiers = {Tier::kPortable, Tier::kAvx2, Tier::kAvx512,
                                        Tier::kAvx512Bf16, Tier::kAmx};
constexpr std::array<absl::string_view, 5> kTierNames = {"portable", "avx2", "avx512", "avx512bf16",
                                                         "amx"};
constexpr size_t kFloatBlockBytes = kBlockDepth * sizeof(float);
constexpr size_t kBf16BlockBytes = kBlockDepth * sizeof(uint16_t);
constexpr int64_t kVectorTileRows = 6;
constexpr int64_t kAmxTileRows = 16;

struct Decoder {
  DecodeFp8 decode = nullptr;
  const char* name = "";
};

// The fastest decoder among those that a CPU of this tier has.
Decoder ChooseDecoder(Tier tier) {
  if (tier == Tier::kPortable) return {DecodeFp8Portable, "portable"};
  if (tier == Tier::kAvx2) return {DecodeFp8Avx2, "avx2"};
  if (__builtin_cpu_supports("avx512vbmi")) return {DecodeFp8Vbmi, "vbmi"};
  return {DecodeFp8Avx512, "avx512"};
}

Kernels MakeKernels(const TierKernels& functions, Tier tier, PairOrder order,
                    size_t prepared_block_bytes, int64_t tile_rows = kVectorTileRows) {
  Kernels kernels;
  const Decoder decoder = ChooseDecoder(tier);
  kernels.decode_fp8 = decoder.decode;
  kernels.decode_name = decoder.name;
  kernels.attention = &ChooseAttentionKernels(tier);
  static_cast<TierKernels&>(kernels) = functions;
  kernels.tier = tier;
  kernels.pair_order = order;
  kernels.prepared_block_bytes = prepared_block_bytes;
  kernels.tile_rows = tile_rows;
  return kernels;
}

// Of this build, ascending by tier.
const std::vector<Kernels>& BuiltKernels() {
  static const std::vector<Kernels> kernels = {
      MakeKernels(kPortableKernels, Tier::kPortable, PairOrder::kAdjacent, kFloatBlockBytes),
      MakeKernels(kAvx2Kernels, Tier::kAvx2, PairOrder::kAdjacent, kFloatBlockBytes),
      MakeKernels(kAvx512Kernels, Tier::kAvx512, PairOrder::kAdjacent, kFloatBlockBytes),
      MakeKernels(kAvx512Bf16Kernels, Tier::kAvx512Bf16, PairOrder::kWithinChain, kBf16BlockBytes),
      MakeKernels(kAmxKernels, Tier::kAmx, PairOrder::kAdjacent, kBf16BlockBytes, kAmxTileRows),
  };
  return kernels;
}

// The instructions that a tier's file is compiled for and this CPU, or its operating system, lacks.
std::string MissingInstructions(Tier tier) {
  std::string missing;
  const auto need = [&missing](bool present, absl::string_view name) {
    if (!present) absl::StrAppend(&missing, missing.empty() ? "" : ", ", name);
  };
  if (tier >= Tier::kAvx2) {
    need(__builtin_cpu_supports("avx2"), "avx2");
    need(__builtin_cpu_supports("fma"), "fma");
  }
  if (tier >= Tier::kAvx512) {
    need(__builtin_cpu_supports("avx512f"), "avx512f");
    need(__builtin_cpu_supports("avx512bw"), "avx512bw");
    need(__builtin_cpu_supports("avx512dq"), "avx512dq");
    need(__builtin_cpu_supports("avx512vl"), "avx512vl");
  }
  if (tier == Tier::kAvx512Bf16) need(__builtin_cpu_supports("avx512bf16"), "avx512bf16");
  if (tier == Tier::kAmx) {
    const TileInstructions found = FindTileInstructions();
    need(found.amx_tile, "amx_tile");
    need(found.amx_bf16, "amx_bf16");
  }
  return missing;
}

const Kernels* FindBuilt(Tier tier) {
  for (const Kernels& kernels : BuiltKernels()) {
    if (kernels.tier == tier) return &kernels;
  }
  return nullptr;
}

TierReport MakeReport(Tier tier) {
  const Kernels* const kernels = FindBuilt(tier);
  if (kernels == nullptr) return TierReport{tier, false, "not in this build"};
  if (const std::string missing = MissingInstructions(tier); !missing.empty()) {
    return TierReport{tier, false, absl::StrCat("this CPU lacks ", missing)};
  }
  if (tier == Tier::kAmx) {
    if (const std::string refusal = RequestTileState(); !refusal.empty()) {
      return TierReport{tier, false, refusal};
    }
  }
  if (const std::string failure = SelfTestBlockSum(*kernels); !failure.empty()) {
    return TierReport{tier, false, absl::StrCat("self-test of the block sum failed: ", failure)};
  }
  return TierReport{tier, true, ""};
}

}  // namespace

absl::string_view TierName(Tier tier) { return kTierNames[static_cast<size_t>(tier)]; }

std::optional<Tier> ParseTier(absl::string_view name) {
  for (const Tier tier : kTiers) {
    if (TierName(tier) == name) return tier;
  }
  return std::nullopt;
}

const std::vector<TierReport>& TierReports() {
  static const std::vector<TierReport> reports = [] {
    std::vector<TierReport> made;
    for (const Tier tier : kTiers) made.push_back(MakeReport(tier));
    // Nothing can be computed without it, and it needs nothing of the CPU.
    MOEBIUS_CHECK_EQ(made.front().reason, "");
    return made;
  }();
  return reports;
}

std::vector<Tier> HostTiers() {
  std::vector<Tier> tiers;
  for (const TierReport& report : TierReports()) {
    if (report.usable) tiers.push_back(report.tier);
  }
  return tiers;
}

const Kernels* FindKernels(Tier tier) {
  return TierReports()[static_cast<size_t>(tier)].usable ? FindBuilt(tier) : nullptr;
}

const Kernels& BestKernels() { return *FindKernels(HostTiers().back()); }

std::string KernelInfo(const Kernels& kernels) {
  std::string text =
      absl::StrCat("kernels ", TierName(kernels.tier), ", pairs ",
                   kernels.pair_order == PairOrder::kAdjacent ? "adjacent" : "within chains",
                   ", fp8 by ", kernels.decode_name);
  for (const TierReport& report : TierReports()) {
    absl::StrAppend(&text, "; ", TierName(report.tier), ": ",
                    report.usable ? "usable" : report.reason);
  }
  return text;
}

}  // namespace moebius
