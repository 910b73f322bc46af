// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/packed_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/hash.h"
#include "moebius/base/parallel_tasks.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr char kMagic[] = "MOEBPACK";
constexpr uint32_t kFormat = 1;
constexpr int64_t kHeadBytes = 64;
constexpr int64_t kDataAlignment = 4096;
constexpr int64_t kSection = static_cast<int64_t>(kPackedSectionBytes);

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

int64_t NumSections(int64_t data_bytes) { return (data_bytes + kSection - 1) / kSection; }

int64_t DataBegin(size_t identity_bytes, int64_t data_bytes) {
  return RoundUp(kHeadBytes + static_cast<int64_t>(identity_bytes) + 8 * NumSections(data_bytes),
                 kDataAlignment);
}

template <typename T>
void Store(uint8_t* out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out[i] = static_cast<uint8_t>(value >> (8 * i));
}

template <typename T>
T Fetch(const uint8_t* bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(bytes[i]) << (8 * i);
  return value;
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("is damaged: ", what));
}

absl::Status ReadAt(int fd, int64_t offset, absl::Span<uint8_t> out) {
  while (!out.empty()) {
    const ssize_t count = pread(fd, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::DataLossError(absl::StrCat("cannot be read: ", strerror(errno)));
    if (count == 0) return Damaged("it is cut short");
    out.remove_prefix(static_cast<size_t>(count));
    offset += count;
  }
  return absl::OkStatus();
}

absl::Status WriteAt(int fd, int64_t offset, absl::Span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = pwrite(fd, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot be written: ", strerror(count < 0 ? errno : EIO)));
    }
    bytes.remove_prefix(static_cast<size_t>(count));
    offset += count;
  }
  return absl::OkStatus();
}

// Only what its user alone can have written may become weights.
absl::Status CheckOwner(const struct stat& facts) {
  if (!S_ISREG(facts.st_mode)) return absl::PermissionDeniedError("is no regular file");
  if (facts.st_uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat("belongs to user ", facts.st_uid));
  }
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError("may be written by other users");
  }
  return absl::OkStatus();
}

// A file beyond the limit of this process would end it by a signal.
absl::Status CheckFileLimit(int64_t file_bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      static_cast<uint64_t>(file_bytes) <= limit.rlim_cur) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat("would have ", file_bytes,
                                                   " bytes, files of this process at most ",
                                                   limit.rlim_cur, " (ulimit -f)"));
}

absl::Span<const uint8_t> SectionOf(absl::Span<const uint8_t> data, size_t index) {
  return data.subspan(index * kPackedSectionBytes, kPackedSectionBytes);
}

}  // namespace

absl::StatusOr<PackedFile> PackedFile::Open(int directory, const std::string& name) {
  PackedFile file;
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  file.fd_ =
      OwnedFd(openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.fd_.fd() < 0) {
    if (errno == ENOENT) return absl::NotFoundError("is not there");
    if (errno == ELOOP) return absl::PermissionDeniedError("is a link, which is not followed");
    return absl::PermissionDeniedError(absl::StrCat("cannot be opened: ", strerror(errno)));
  }
  struct stat facts = {};
  if (fstat(file.fd_.fd(), &facts) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("cannot be opened: ", strerror(errno)));
  }
  MOEBIUS_RETURN_IF_ERROR(CheckOwner(facts));
  MOEBIUS_RETURN_IF_ERROR(file.ReadHead(static_cast<uint64_t>(facts.st_size)));
  return file;
}

absl::Status PackedFile::ReadHead(uint64_t file_bytes) {
  uint8_t head[kHeadBytes] = {};
  MOEBIUS_RETURN_IF_ERROR(ReadAt(fd_.fd(), 0, head));
  if (std::memcmp(head, kMagic, 8) != 0) return Damaged("it does not begin as it should");
  if (Fetch<uint64_t>(head + 56) != Hash64(head, 56)) return Damaged("its head");
  if (Fetch<uint32_t>(head + 8) != kFormat) return Damaged("its format is not known");
  const uint32_t identity_bytes = Fetch<uint32_t>(head + 12);
  const uint64_t data_bytes = Fetch<uint64_t>(head + 16);
  // Before anything is computed with it: what a file cannot have is no size.
  if (identity_bytes > kMaxPackedIdentityBytes || data_bytes > file_bytes ||
      Fetch<uint64_t>(head + 32) != kPackedSectionBytes || Fetch<uint64_t>(head + 48) != 0) {
    return Damaged("its head has sizes that cannot be");
  }
  data_bytes_ = static_cast<int64_t>(data_bytes);
  data_begin_ = DataBegin(identity_bytes, data_bytes_);
  if (Fetch<uint64_t>(head + 24) != static_cast<uint64_t>(data_begin_)) {
    return Damaged("its head has sizes that cannot be");
  }
  if (file_bytes != static_cast<uint64_t>(data_begin_ + data_bytes_)) {
    return Damaged(
        absl::StrCat("it should have ", data_begin_ + data_bytes_, " bytes, it has ", file_bytes));
  }
  std::vector<uint8_t> rest(static_cast<size_t>(data_begin_ - kHeadBytes));
  MOEBIUS_RETURN_IF_ERROR(ReadAt(fd_.fd(), kHeadBytes, absl::MakeSpan(rest)));
  if (Fetch<uint64_t>(head + 40) != Hash64(rest.data(), rest.size())) {
    return Damaged("its identity or its table of hashes");
  }
  identity_.assign(rest.begin(), rest.begin() + identity_bytes);
  hashes_.resize(static_cast<size_t>(NumSections(data_bytes_)));
  for (size_t i = 0; i < hashes_.size(); ++i) {
    hashes_[i] = Fetch<uint64_t>(rest.data() + identity_bytes + 8 * i);
  }
  return absl::OkStatus();
}

absl::Status PackedFile::ReadData(absl::Span<uint8_t> out, int num_threads,
                                  const PackedProgress& on_progress) const {
  int64_t done = 0;
  return RunParallelTasks(
      hashes_.size(), num_threads,
      [&](size_t index) {
        const absl::Span<uint8_t> section =
            out.subspan(index * kPackedSectionBytes, kPackedSectionBytes);
        MOEBIUS_RETURN_IF_ERROR(
            ReadAt(fd_.fd(), data_begin_ + static_cast<int64_t>(index) * kSection, section));
        if (Hash64(section.data(), section.size()) == hashes_[index]) return absl::OkStatus();
        return Damaged(absl::StrCat("section ", index, " of ", hashes_.size()));
      },
      [&](size_t index) {
        done += static_cast<int64_t>(SectionOf(out, index).size());
        if (on_progress) on_progress(done);
      });
}

void PackedFile::Touch() const { futimens(fd_.fd(), nullptr); }

int64_t PackedFileBytes(absl::string_view identity, int64_t data_bytes) {
  return DataBegin(identity.size(), data_bytes) + data_bytes;
}

absl::Status WritePackedFile(int fd, absl::string_view identity, absl::Span<const uint8_t> data,
                             int num_threads) {
  const auto data_bytes = static_cast<int64_t>(data.size());
  const int64_t data_begin = DataBegin(identity.size(), data_bytes);
  if (identity.size() > kMaxPackedIdentityBytes) {
    return absl::ResourceExhaustedError("would have too long an identity");
  }
  MOEBIUS_RETURN_IF_ERROR(CheckFileLimit(data_begin + data_bytes));
  // The room at once, rather than to find out at the end; some file systems cannot.
  if (fallocate(fd, 0, 0, data_begin + data_bytes) != 0 && errno == ENOSPC) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot be written: ", strerror(errno)));
  }
  std::vector<uint8_t> head(static_cast<size_t>(data_begin));
  std::copy(identity.begin(), identity.end(), head.begin() + kHeadBytes);
  uint8_t* const hashes = head.data() + kHeadBytes + identity.size();
  MOEBIUS_RETURN_IF_ERROR(RunParallelTasks(
      static_cast<size_t>(NumSections(data_bytes)), num_threads,
      [&](size_t index) {
        const absl::Span<const uint8_t> section = SectionOf(data, index);
        Store(hashes + 8 * index, Hash64(section.data(), section.size()));
        return WriteAt(fd, data_begin + static_cast<int64_t>(index) * kSection, section);
      },
      [](size_t) {}));
  std::memcpy(head.data(), kMagic, 8);
  Store(head.data() + 8, kFormat);
  Store(head.data() + 12, static_cast<uint32_t>(identity.size()));
  Store(head.data() + 16, static_cast<uint64_t>(data_bytes));
  Store(head.data() + 24, static_cast<uint64_t>(data_begin));
  Store(head.data() + 32, kPackedSectionBytes);
  Store(head.data() + 40, Hash64(head.data() + kHeadBytes, head.size() - kHeadBytes));
  Store(head.data() + 56, Hash64(head.data(), 56));
  MOEBIUS_RETURN_IF_ERROR(WriteAt(fd, 0, head));
  if (fsync(fd) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot be written: ", strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace moebius
