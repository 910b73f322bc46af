// SPDX-License-Identifier: Apache-2.0
#include "cli/version_command.h"

#include <unistd.h>

#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/kernels/kernels.h"
#include "moebius/kernels/tier.h"
#include "moebius/model/json.h"

namespace moebius {

std::string OwnPath() {
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  return size > 0 ? std::string(path, static_cast<size_t>(size)) : "?";
}

std::string VersionLine() { return absl::StrCat("moebius ", MOEBIUS_VERSION); }

int RunVersion(bool json) {
  const std::vector<TierReport>& reports = TierReports();
  if (json) {
    std::vector<Json> tiers;
    for (const TierReport& report : reports) {
      Json tier = Json::Object({});
      tier.Set("tier", Json::String(TierName(report.tier)));
      tier.Set("usable", Json::Boolean(report.usable));
      tier.Set("reason", Json::String(report.reason));
      tiers.push_back(std::move(tier));
    }
    Json version = Json::Object({});
    version.Set("version", Json::String(MOEBIUS_VERSION));
    version.Set("path", Json::String(OwnPath()));
    version.Set("compiler", Json::String(__VERSION__));
    version.Set("tiers", Json::Array(std::move(tiers)));
    absl::PrintF("%s\n", version.ToCanonicalText());
    return 0;
  }
  absl::PrintF("%s\n  path      %s\n  compiler  %s\n", VersionLine(), OwnPath(), __VERSION__);
  const Tier best = BestKernels().tier;
  for (const TierReport& report : reports) {
    absl::PrintF("  tier      %-11s %s\n", TierName(report.tier),
                 !report.usable        ? absl::StrCat("no: ", report.reason)
                 : report.tier == best ? "yes, used unless --tier says otherwise"
                                       : "yes");
  }
  return 0;
}

}  // namespace moebius
