// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/replace_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "moebius/base/owned_fd.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr char kTemporarySuffix[] = ".new";

absl::Status FileError(const std::string& path, absl::string_view what, int error) {
  return absl::Status(absl::ErrnoToStatusCode(error),
                      absl::StrCat(path, ": cannot be ", what, ": ", std::strerror(error)));
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// Where a link points to: the link stays what it is. The path itself where nothing is there.
std::string TargetOf(const std::string& path) {
  char target[PATH_MAX];
  return realpath(path.c_str(), target) == nullptr ? path : target;
}

// Who may read the old file may read the new one: whoever writes may be another user than the
// process that reads it.
absl::Status KeepAccess(const OwnedFd& out, const struct stat& old, const std::string& path) {
  const bool same_owner = old.st_uid == geteuid() && old.st_gid == getegid();
  if (!same_owner && fchown(out.fd(), old.st_uid, old.st_gid) != 0) {
    return FileError(path, "given to the owner that it has", errno);
  }
  if (fchmod(out.fd(), old.st_mode & 07777) != 0) {
    return FileError(path, "given the mode that it has", errno);
  }
  return absl::OkStatus();
}

// The text on the disk under `path`, which is new; with the owner and mode of `old`, if any.
absl::Status WriteNew(const std::string& path, absl::string_view text, mode_t mode,
                      const struct stat* old) {
  unlink(path.c_str());  // what an interrupted write has left
  const OwnedFd out(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (out.fd() < 0) return FileError(path, "made", errno);
  if (old != nullptr) MOEBIUS_RETURN_IF_ERROR(KeepAccess(out, *old, path));
  while (!text.empty()) {
    const ssize_t count = write(out.fd(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return FileError(path, "written", count < 0 ? errno : EIO);
    text.remove_prefix(static_cast<size_t>(count));
  }
  if (fsync(out.fd()) != 0) return FileError(path, "written", errno);
  return absl::OkStatus();
}

// A name in a folder is on the disk when the folder is.
void SyncFolderOf(const std::string& path) {
  const OwnedFd fd(open(FolderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.fd() >= 0) fsync(fd.fd());
}

}  // namespace

absl::Status ReplaceFile(const std::string& link, absl::string_view text, mode_t mode) {
  const std::string path = TargetOf(link);
  const std::string temporary = path + kTemporarySuffix;
  struct stat old = {};
  const bool is_there = stat(path.c_str(), &old) == 0;
  absl::Status written = WriteNew(temporary, text, mode, is_there ? &old : nullptr);
  if (!written.ok()) {
    unlink(temporary.c_str());
    return written;
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return FileError(path, "replaced", errno);
  SyncFolderOf(path);
  return absl::OkStatus();
}

absl::StatusOr<OwnedFd> LockForReplacing(const std::string& link) {
  const std::string folder = FolderOf(TargetOf(link));
  OwnedFd lock(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.fd() < 0) return FileError(folder, "opened", errno);
  while (flock(lock.fd(), LOCK_EX) != 0) {
    if (errno != EINTR) return FileError(folder, "locked", errno);
  }
  return lock;
}

}  // namespace moebius
