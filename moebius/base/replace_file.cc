// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
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

// The text on the disk under `path`, which is new.
absl::Status WriteNew(const std::string& path, absl::string_view text, mode_t mode) {
  unlink(path.c_str());  // what an interrupted write has left
  const OwnedFd out(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (out.fd() < 0) return FileError(path, "made", errno);
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
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const OwnedFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.fd() >= 0) fsync(fd.fd());
}

}  // namespace

absl::Status ReplaceFile(const std::string& path, absl::string_view text, mode_t mode) {
  const std::string temporary = path + kTemporarySuffix;
  MOEBIUS_RETURN_IF_ERROR(WriteNew(temporary, text, mode));
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return FileError(path, "replaced", errno);
  SyncFolderOf(path);
  return absl::OkStatus();
}

}  // namespace moebius
