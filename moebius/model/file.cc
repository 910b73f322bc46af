// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"

namespace moebius {
namespace {

absl::Status Missing(const std::string& path, const std::string& name) {
  struct stat link = {};
  if (lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode)) {
    char target[PATH_MAX];
    const ssize_t length = readlink(path.c_str(), target, sizeof(target));
    return WithHint(absl::NotFoundError(absl::StrCat(
                        name, " is a link to ",
                        length > 0 ? absl::string_view(target, static_cast<size_t>(length)) : "?",
                        ", which is not visible here")),
                    "mount or copy the folder that the link points into; for a Hugging Face cache "
                    "that is the cache's root");
  }
  return absl::NotFoundError(absl::StrCat(path, ": no such file"));
}

}  // namespace

std::string BaseName(absl::string_view path) {
  const size_t slash = path.rfind('/');
  return std::string(slash == absl::string_view::npos ? path : path.substr(slash + 1));
}

std::string PrintableName(absl::string_view name) {
  constexpr size_t kLongest = 200;
  if (name.size() > kLongest) {
    return absl::StrCat(absl::Utf8SafeCEscape(name.substr(0, kLongest)), "…");
  }
  return absl::Utf8SafeCEscape(name);
}

absl::StatusOr<RegularFile> RegularFile::Open(const std::string& path) {
  RegularFile file;
  file.name_ = BaseName(path);
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  file.descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.descriptor_ < 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) return Missing(path, file.name_);
    const std::string message = absl::StrCat(path, ": ", std::strerror(error));
    if (error == EACCES) return absl::PermissionDeniedError(message);
    if (error == EMFILE || error == ENFILE) return absl::ResourceExhaustedError(message);
    return absl::InvalidArgumentError(message);
  }
  struct stat facts = {};
  if (fstat(file.descriptor_, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  file.size_bytes_ = static_cast<uint64_t>(facts.st_size);
  return file;
}

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

RegularFile::RegularFile(RegularFile&& other) noexcept { *this = std::move(other); }

RegularFile& RegularFile::operator=(RegularFile&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

absl::StatusOr<FileIdentity> RegularFile::Identity() const {
  struct stat facts = {};
  if (fstat(descriptor_, &facts) != 0) {
    return absl::DataLossError(absl::StrCat(name_, ": ", std::strerror(errno)));
  }
  const auto nanoseconds = [](const timespec& time) {
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  FileIdentity identity;
  identity.size_bytes = static_cast<uint64_t>(facts.st_size);
  identity.inode = facts.st_ino;
  identity.modified_ns = nanoseconds(facts.st_mtim);
  identity.changed_ns = nanoseconds(facts.st_ctim);
  return identity;
}

absl::Status RegularFile::Read(uint64_t offset, absl::Span<uint8_t> out) const {
  while (!out.empty()) {
    const ssize_t count = pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return absl::DataLossError(
          absl::StrCat(name_, ": reading at byte ", offset, " failed: ", std::strerror(errno)));
    }
    if (count == 0) {
      return absl::DataLossError(absl::StrCat(name_,
                                              ": file became shorter while in use: expected ",
                                              size_bytes_, " bytes, it ends at ", offset));
    }
    out.remove_prefix(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace moebius
