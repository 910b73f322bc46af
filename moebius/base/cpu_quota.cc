// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/cpu_quota.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace moebius {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

// The process's path in the hierarchy of `controller` ("" is v2's), "/" when it is not listed.
std::string CgroupPath(const std::string& cgroup_text, absl::string_view controller) {
  for (absl::string_view line : absl::StrSplit(cgroup_text, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    for (absl::string_view name : absl::StrSplit(fields[1], ',')) {
      if (name == controller) return std::string(fields[2]);
    }
  }
  return "/";
}

// "/a/b" gives "/a/b", "/a" and "".
std::vector<std::string> WithParents(std::string path) {
  std::vector<std::string> paths;
  while (!path.empty() && path != "/") {
    paths.push_back(path);
    path.resize(path.find_last_of('/'));
  }
  paths.emplace_back();
  return paths;
}

std::optional<double> Divide(absl::string_view quota, absl::string_view period) {
  double quota_us = 0;
  double period_us = 0;
  if (!absl::SimpleAtod(quota, &quota_us) || !absl::SimpleAtod(period, &period_us)) {
    return std::nullopt;
  }
  if (!(quota_us > 0) || !(period_us > 0)) return std::nullopt;
  return quota_us / period_us;
}

}  // namespace

std::optional<double> CpusOfCgroupV2(absl::string_view cpu_max) {
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::StripAsciiWhitespace(cpu_max), ' ');
  if (fields.size() != 2) return std::nullopt;
  return Divide(fields[0], fields[1]);
}

std::optional<double> CpusOfCgroupV1(absl::string_view quota_us, absl::string_view period_us) {
  return Divide(absl::StripAsciiWhitespace(quota_us), absl::StripAsciiWhitespace(period_us));
}

std::optional<double> CpuQuota(const std::string& root) {
  const std::string cgroup_text = ReadText(root + "/proc/self/cgroup");
  const std::string mount = root + "/sys/fs/cgroup";
  std::optional<double> smallest;
  const auto keep_smallest = [&smallest](std::optional<double> cpus) {
    if (cpus.has_value() && *cpus < smallest.value_or(*cpus + 1)) smallest = cpus;
  };
  for (const std::string& path : WithParents(CgroupPath(cgroup_text, ""))) {
    keep_smallest(CpusOfCgroupV2(ReadText(absl::StrCat(mount, path, "/cpu.max"))));
  }
  for (const std::string& path : WithParents(CgroupPath(cgroup_text, "cpu"))) {
    const std::string folder = absl::StrCat(mount, "/cpu", path);
    keep_smallest(CpusOfCgroupV1(ReadText(folder + "/cpu.cfs_quota_us"),
                                 ReadText(folder + "/cpu.cfs_period_us")));
  }
  return smallest;
}

int NumThreadsFor(int affinity_cpus, std::optional<double> quota) {
  // Doubles hold every quota that a kernel accepts exactly enough: ceil of a quotient of integers.
  const double allowed = std::ceil(quota.value_or(affinity_cpus));
  return static_cast<int>(
      std::clamp(allowed, 1.0, std::max(1.0, static_cast<double>(affinity_cpus))));
}

}  // namespace moebius
