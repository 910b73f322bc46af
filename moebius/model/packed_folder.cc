// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/packed_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

#include "moebius/base/hash.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr char kNewMark[] = ".packed.new-";
// What a file system needs beside the data: its own tables.
constexpr uint64_t kSpareBytes = 64u << 20;
constexpr size_t kMaxEntries = 1u << 16;

// How the names begin under which `name` is written.
std::string NewMarkOf(absl::string_view name) {
  return absl::StrCat(absl::StripSuffix(name, kPackedFileSuffix), kNewMark);
}

// Names of the folder, links and others' files included; at most kMaxEntries.
std::vector<std::string> NamesIn(int folder) {
  std::vector<std::string> names;
  // An open of its own: reading moves the position that copies of a descriptor share.
  const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(fdopendir(fd), closedir);
  if (directory == nullptr) {
    close(fd);
    return names;
  }
  while (const dirent* entry = readdir(directory.get())) {
    if (names.size() == kMaxEntries) break;
    names.emplace_back(entry->d_name);
  }
  return names;
}

// Removes what a dead writer has left; false where the writer lives, or cannot be asked. The lock
// is held meanwhile: a writer that has made its file and not locked it yet sees that it is gone.
bool RemoveOfDeadWriter(int folder, const std::string& name) {
  const OwnedFd fd(openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (fd.fd() < 0) return errno == ENOENT;
  if (flock(fd.fd(), LOCK_EX | LOCK_NB) != 0) return false;
  unlinkat(folder, name.c_str(), 0);
  return true;
}

struct KeptFile {
  std::string name;
  int64_t bytes = 0;
  timespec used = {};
};

// The packed files of the folder that are this user's, those that were of use longest ago first.
std::vector<KeptFile> KeptIn(int folder, const std::vector<std::string>& names) {
  std::vector<KeptFile> kept;
  for (const std::string& name : names) {
    struct stat facts = {};
    if (!absl::EndsWith(name, kPackedFileSuffix) ||
        fstatat(folder, name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(facts.st_mode) || facts.st_uid != geteuid()) {
      continue;
    }
    kept.push_back({name, int64_t{facts.st_size}, facts.st_mtim});
  }
  std::sort(kept.begin(), kept.end(), [](const KeptFile& a, const KeptFile& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  return kept;
}

absl::Status CheckDisk(int folder, int64_t bytes) {
  struct statvfs facts = {};
  if (fstatvfs(folder, &facts) != 0) return absl::OkStatus();  // the write will tell
  const uint64_t free = uint64_t{facts.f_bavail} * facts.f_frsize;
  if (static_cast<uint64_t>(bytes) + kSpareBytes <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("it would take ", bytes, " bytes, the file system has ", free, " left"));
}

}  // namespace

NewPackedFile::NewPackedFile(int folder, std::string temporary, std::string name, OwnedFd fd)
    : folder_(folder),
      temporary_(std::move(temporary)),
      name_(std::move(name)),
      fd_(std::move(fd)) {}

NewPackedFile::NewPackedFile(NewPackedFile&& other) noexcept
    : folder_(other.folder_),
      temporary_(std::exchange(other.temporary_, std::string())),
      name_(std::move(other.name_)),
      fd_(std::move(other.fd_)) {}

NewPackedFile::~NewPackedFile() {
  if (!temporary_.empty()) unlinkat(folder_, temporary_.c_str(), 0);
}

absl::Status NewPackedFile::Publish() {
  if (renameat(folder_, temporary_.c_str(), folder_, name_.c_str()) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(name_, " cannot be replaced: ", std::strerror(errno)));
  }
  temporary_.clear();
  // A name in a folder is on the disk when the folder is.
  fsync(folder_);
  return absl::OkStatus();
}

absl::StatusOr<PackedFolder> PackedFolder::Open(const std::string& path) {
  const auto open_folder = [&path] {
    return OwnedFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  };
  OwnedFd fd = open_folder();
  if (fd.fd() < 0 && errno == ENOENT && (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST)) {
    fd = open_folder();
  }
  if (fd.fd() < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " cannot be used: ", std::strerror(errno)));
  }
  return PackedFolder(path, std::move(fd));
}

absl::Status PackedFolder::MakeRoom(const std::string& name, int64_t bytes,
                                    int64_t limit_bytes) const {
  const std::vector<std::string> names = NamesIn(fd());
  const std::string own_mark = NewMarkOf(name);
  for (const std::string& each : names) {
    if (!absl::StrContains(each, kNewMark)) continue;
    if (!RemoveOfDeadWriter(fd(), each) && absl::StartsWith(each, own_mark)) {
      return absl::AbortedError("another process is writing the same");
    }
  }
  if (limit_bytes > 0) {
    if (bytes > limit_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("it would take ", bytes, " bytes, the cache may have ", limit_bytes));
    }
    const std::vector<KeptFile> kept = KeptIn(fd(), names);
    int64_t total = bytes;
    // The one that is replaced does not count.
    for (const KeptFile& file : kept) total += file.name == name ? 0 : file.bytes;
    for (const KeptFile& file : kept) {
      if (total <= limit_bytes) break;
      if (file.name == name || unlinkat(fd(), file.name.c_str(), 0) != 0) continue;
      total -= file.bytes;
    }
    if (total > limit_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("all packed files would have ", total, " bytes, at most ", limit_bytes,
                       " are allowed, and older ones cannot be removed"));
    }
  }
  return CheckDisk(fd(), bytes);
}

absl::StatusOr<NewPackedFile> PackedFolder::Create(const std::string& name) const {
  // Another process may take a file that is not locked yet for a dead writer's, and remove it.
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    // A random name: process ids of two containers are the same.
    uint64_t random = 0;
    if (getrandom(&random, sizeof(random), 0) != static_cast<ssize_t>(sizeof(random))) {
      return absl::UnavailableError("the kernel gives no random number");
    }
    const std::string temporary = absl::StrCat(NewMarkOf(name), FormatHash64(random));
    OwnedFd file(
        openat(fd(), temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (file.fd() < 0) {
      return absl::PermissionDeniedError(
          absl::StrCat("no file can be made: ", std::strerror(errno)));
    }
    // Tells others that its writer lives; where a file system has no locks, nobody removes it.
    flock(file.fd(), LOCK_EX);
    struct stat found = {};
    const bool is_gone = fstat(file.fd(), &found) == 0 && found.st_nlink == 0;
    if (!is_gone) return NewPackedFile(fd(), temporary, name, std::move(file));
  }
  return absl::AbortedError("others remove the file as soon as it is made");
}

}  // namespace moebius
