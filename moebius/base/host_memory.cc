// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace moebius {
namespace {

// A file with one number; nullopt for "max", for nothing, and for what v1 writes as "no limit".
std::optional<int64_t> ReadLimit(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  constexpr int64_t kNoLimit = int64_t{1} << 60;
  return value > 0 && value < kNoLimit ? std::optional<int64_t>(value) : std::nullopt;
}

int64_t ReadMemInfo(const std::string& root, absl::string_view key) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  int64_t kilobytes = 0;
  std::string unit;
  while (file >> name >> kilobytes) {
    std::getline(file, unit);
    if (name == absl::StrCat(key, ":")) return kilobytes * 1024;
  }
  return 0;
}

void TakeSmallest(const std::string& path, absl::string_view name, HostMemory* memory) {
  const std::optional<int64_t> limit = ReadLimit(path);
  if (limit.has_value() && *limit < memory->limit_bytes) {
    memory->limit_bytes = *limit;
    memory->source = absl::StrCat(name, " ", path);
  }
}

// The limits of a cgroup and of every one above it.
void ReadHierarchy(const std::string& mount, std::string group, const char* file,
                   absl::string_view name, HostMemory* memory) {
  while (true) {
    TakeSmallest(absl::StrCat(mount, group, "/", file), name, memory);
    if (group.empty()) return;
    group.resize(group.find_last_of('/') == std::string::npos ? 0 : group.find_last_of('/'));
  }
}

}  // namespace

HostMemory ReadHostMemory(const std::string& root) {
  HostMemory memory;
  memory.limit_bytes = ReadMemInfo(root, "MemTotal");
  memory.available_bytes = ReadMemInfo(root, "MemAvailable");
  memory.source = "machine";

  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    // hierarchy:controllers:path; v2 has no controllers.
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::string group = fields[2] == "/" ? "" : fields[2];
    if (fields[1].empty()) {
      ReadHierarchy(root + "/sys/fs/cgroup", group, "memory.max", "cgroup v2", &memory);
    } else if (absl::StrContains(absl::StrCat(",", fields[1], ","), ",memory,")) {
      ReadHierarchy(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes", "cgroup v1",
                    &memory);
    }
  }
  return memory;
}

int64_t DefaultKvBudgetBytes(const HostMemory& memory) {
  constexpr int64_t kMost = int64_t{8} << 30;
  constexpr int64_t kLeast = int64_t{16} << 20;
  return std::clamp(memory.limit_bytes / 4, kLeast, kMost);
}

absl::Status CheckFits(const HostMemory& memory, int64_t weight_bytes, int64_t kv_bytes) {
  // Not their sum, which a huge KV budget would wrap.
  if (memory.limit_bytes == 0 ||
      (weight_bytes <= memory.limit_bytes && kv_bytes <= memory.limit_bytes - weight_bytes)) {
    return absl::OkStatus();
  }
  const std::string kv =
      kv_bytes > 0 ? absl::StrCat(" and the KV pool ", kv_bytes, ", together") : std::string(",");
  return absl::ResourceExhaustedError(
      absl::StrCat("weights need ", weight_bytes, " bytes", kv, " more than the ",
                   memory.limit_bytes, " that this process may use (by ", memory.source, ")"));
}

}  // namespace moebius
