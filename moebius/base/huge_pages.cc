// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/huge_pages.h"

#include <charconv>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace moebius {
namespace {

constexpr char kPolicyFile[] = "/sys/kernel/mm/transparent_hugepage/enabled";

// "7f00-7f10 rw-p …": whether a line of smaps begins a mapping, and where that begins.
bool ParseMappingBegin(const std::string& line, uint64_t* begin) {
  const char* const end = line.data() + line.size();
  const auto [rest, error] = std::from_chars(line.data(), end, *begin, 16);
  return error == std::errc() && rest != end && *rest == '-';
}

}  // namespace

std::string HostHugePagePolicy(const std::string& root) {
  std::ifstream file(root + kPolicyFile);
  std::string word;
  while (file >> word) {
    // The one that holds is in brackets: "always [madvise] never".
    if (word.size() > 2 && word.front() == '[') return word.substr(1, word.size() - 2);
  }
  return "";
}

int64_t HugePageBytesAt(const void* address, const std::string& root) {
  std::ifstream smaps(root + "/proc/self/smaps");
  const uint64_t wanted = reinterpret_cast<uintptr_t>(address);
  bool is_inside = false;
  std::string line;
  while (std::getline(smaps, line)) {
    uint64_t begin = 0;
    if (ParseMappingBegin(line, &begin)) {
      if (is_inside) return 0;
      is_inside = begin == wanted;
    } else if (is_inside && absl::StartsWith(line, "AnonHugePages:")) {
      const size_t digit = line.find_first_of("0123456789");
      int64_t kilobytes = 0;
      if (digit != std::string::npos) {
        std::from_chars(line.data() + digit, line.data() + line.size(), kilobytes);
      }
      return kilobytes * 1024;
    }
  }
  return 0;
}

std::string DescribeHugePages(const HugePages& pages, const std::string& policy) {
  if (pages.asked_bytes == 0) return "huge pages: too little memory to ask for one";
  std::string asked =
      absl::StrCat("huge pages: ", pages.asked_bytes, " bytes asked, ", pages.got_bytes, " got");
  if (pages.got_bytes > 0) return asked;
  if (policy == "never") {
    return absl::StrCat(asked, "; this host says never (", kPolicyFile, "): echo madvise into it");
  }
  if (policy.empty()) return absl::StrCat(asked, "; this host's kernel has none");
  return absl::StrCat(asked, "; this host says ", policy, " and had none free");
}

}  // namespace moebius
