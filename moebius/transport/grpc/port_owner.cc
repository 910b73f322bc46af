// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/port_owner.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

namespace fs = std::filesystem;

constexpr char kListening[] = "0A";

// The socket inodes that listen on the port, from one of /proc/net/tcp and tcp6: columns are
// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode.
void AddListeners(const char* table, uint16_t port, std::set<std::string>* links) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream columns(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    columns >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
        timeout >> inode;
    const size_t colon = local.rfind(':');
    uint32_t local_port = 0;
    if (state != kListening || colon == std::string::npos ||
        !absl::SimpleHexAtoi(local.substr(colon + 1), &local_port) || local_port != port) {
      continue;
    }
    links->insert(absl::StrCat("socket:[", inode, "]"));
  }
}

bool HoldsAny(const fs::path& process, const std::set<std::string>& links) {
  std::error_code error;
  for (fs::directory_iterator fd(process / "fd", error), end; !error && fd != end;
       fd.increment(error)) {
    std::error_code unreadable;
    if (links.contains(fs::read_symlink(fd->path(), unreadable).string())) return true;
  }
  return false;
}

}  // namespace

std::string PortOwner(uint16_t port) {
  std::set<std::string> links;
  AddListeners("/proc/net/tcp", port, &links);
  AddListeners("/proc/net/tcp6", port, &links);
  if (links.empty()) return "";
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    const std::string pid = process->path().filename().string();
    uint32_t number = 0;
    if (!absl::SimpleAtoi(pid, &number) || !HoldsAny(process->path(), links)) continue;
    std::ifstream file(process->path() / "comm");
    std::string name;
    std::getline(file, name);
    for (char& c : name) {
      if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
    }
    return absl::StrCat("pid ", pid, " (", name, ")");
  }
  return "a process that this user may not see";
}

}  // namespace moebius
