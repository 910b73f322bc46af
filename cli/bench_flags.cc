// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_flags.h"

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/arguments.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/kernels/tier.h"

namespace moebius {
namespace {

// A number of a flag that was given.
template <typename Number>
absl::Status ReadNumber(const char* flag, const std::string& text, Number* value) {
  if (text.empty()) return absl::OkStatus();
  MOEBIUS_ASSIGN_OR_RETURN(const int64_t number, ParseInteger(flag, text));
  if (number < 0 || number > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " is ", number, ", which is too large"));
  }
  *value = static_cast<Number>(number);
  return absl::OkStatus();
}

absl::Status ReadSeconds(const std::string& text, absl::Duration* value) {
  if (text.empty()) return absl::OkStatus();
  MOEBIUS_ASSIGN_OR_RETURN(const double seconds, ParseNumber("--seconds", text));
  *value = absl::Seconds(seconds);
  return absl::OkStatus();
}

// What every benchmark has, and the check of the whole.
template <typename Options>
absl::StatusOr<Options> WithCommonFlags(const BenchFlags& common, Options options) {
  if constexpr (requires { options.duration; }) {
    MOEBIUS_RETURN_IF_ERROR(ReadSeconds(common.seconds, &options.duration));
  }
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--repetitions", common.repetitions, &options.repetitions));
  MOEBIUS_RETURN_IF_ERROR(ValidateOptions(options));
  return options;
}

absl::StatusOr<std::vector<Tier>> ParseTiers(const std::string& text) {
  if (text == "all") return HostTiers();
  std::vector<Tier> tiers;
  if (text.empty()) return tiers;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    const std::optional<Tier> tier = ParseTier(name);
    if (!tier.has_value()) {
      return WithHint(absl::InvalidArgumentError(absl::StrCat("there is no tier '", name, "'")),
                      "--tiers takes all, or a list of portable, avx2, avx512, avx512bf16, amx");
    }
    const TierReport& report = TierReports()[static_cast<size_t>(*tier)];
    if (!report.usable) {
      return absl::InvalidArgumentError(
          absl::StrCat("tier ", name, " does not run here: ", report.reason));
    }
    tiers.push_back(*tier);
  }
  return tiers;
}

}  // namespace

absl::StatusOr<TransportBenchOptions> ParseOptions(const BenchTransportFlags& flags) {
  TransportBenchOptions options;
  options.transports = TransportBenchKinds();
  if (!flags.transports.empty()) options.transports = absl::StrSplit(flags.transports, ',');
  if (!flags.sizes.empty()) {
    options.message_bytes.clear();
    for (const absl::string_view size : absl::StrSplit(flags.sizes, ',')) {
      MOEBIUS_ASSIGN_OR_RETURN(const int64_t bytes, ParseBytes("--sizes", size));
      options.message_bytes.push_back(bytes);
    }
  }
  return WithCommonFlags(flags.common, options);
}

absl::StatusOr<ExpertBenchOptions> ParseOptions(const BenchExpertsFlags& flags) {
  ExpertBenchOptions options;
  if (!flags.rows.empty()) {
    options.rows.clear();
    for (const absl::string_view rows : absl::StrSplit(flags.rows, ',')) {
      MOEBIUS_ASSIGN_OR_RETURN(const int64_t num_rows, ParseInteger("--rows", rows));
      options.rows.push_back(num_rows);
    }
  }
  MOEBIUS_ASSIGN_OR_RETURN(options.tiers, ParseTiers(flags.tiers));
  options.peers = flags.peers;
  if (flags.dtype == "fp8") {
    options.type = WeightType::kFp8;
  } else if (!flags.dtype.empty() && flags.dtype != "bf16") {
    return absl::InvalidArgumentError(
        absl::StrCat("--dtype is \"", flags.dtype, "\", it must be bf16 or fp8"));
  }
  FfnShape& shape = options.shape;
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--hidden", flags.hidden, &shape.hidden_size));
  MOEBIUS_RETURN_IF_ERROR(
      ReadNumber("--intermediate", flags.intermediate, &shape.intermediate_size));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--experts", flags.experts, &shape.num_experts));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--top-k", flags.top_k, &shape.top_k));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--threads", flags.threads, &options.num_threads));
  return WithCommonFlags(flags.common, options);
}

absl::StatusOr<AttentionBenchOptions> ParseOptions(const BenchAttentionFlags& flags) {
  AttentionBenchOptions options;
  MOEBIUS_ASSIGN_OR_RETURN(options.tiers, ParseTiers(flags.tiers));
  options.peers = flags.peers;
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--tokens", flags.tokens, &options.prefill_tokens));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--keys", flags.keys, &options.decode_tokens));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--query-heads", flags.query_heads, &options.query_heads));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--kv-heads", flags.kv_heads, &options.kv_heads));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--head-dim", flags.head_dim, &options.head_dim));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--threads", flags.threads, &options.num_threads));
  return WithCommonFlags(flags.common, options);
}

absl::StatusOr<ClusterBenchOptions> ParseOptions(const BenchClusterFlags& flags) {
  ClusterBenchOptions options;
  options.model = flags.model;
  if (!flags.transports.empty()) options.transports = absl::StrSplit(flags.transports, ',');
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--experts", flags.experts, &options.num_experts));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--attention", flags.attention, &options.num_attention));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--threads", flags.threads, &options.num_threads));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--rows", flags.rows, &options.prefill_rows));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--tokens", flags.tokens, &options.decode_tokens));
  return WithCommonFlags(flags.common, options);
}

absl::StatusOr<LoadBenchOptions> ParseOptions(const BenchLoadFlags& flags) {
  LoadBenchOptions options;
  options.model = flags.model;
  options.folder = flags.packed_cache;
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--threads", flags.threads, &options.num_threads));
  return WithCommonFlags(flags.common, options);
}

absl::StatusOr<PlanBenchOptions> ParseOptions(const BenchPlanFlags& flags) {
  PlanBenchOptions options;
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--rows", flags.rows, &options.num_rows));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--experts", flags.experts, &options.num_experts));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--top-k", flags.top_k, &options.top_k));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--services", flags.services, &options.num_services));
  MOEBIUS_RETURN_IF_ERROR(ReadNumber("--hidden", flags.hidden, &options.hidden_size));
  return WithCommonFlags(flags.common, options);
}

}  // namespace moebius
