// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/safetensors_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr size_t kBufferBytes = 1u << 20;

absl::Status SystemFailure(const std::string& path, absl::string_view action) {
  const std::string message = absl::StrCat(path, ": ", action, " failed: ", std::strerror(errno));
  if (errno == ENOSPC || errno == EDQUOT) return absl::ResourceExhaustedError(message);
  return absl::FailedPreconditionError(message);
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

absl::StatusOr<std::string> EncodeSafetensorsHeader(const std::vector<TensorInfo>& tensors) {
  std::map<std::string, Json> members;
  uint64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.dtype == DType::kUnspecified) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, " has no dtype"));
    }
    std::vector<Json> shape;
    for (const int64_t size : tensor.shape) shape.push_back(Json::Integer(size));
    const uint64_t end =
        offset + static_cast<uint64_t>(tensor.NumElements()) * DTypeBytes(tensor.dtype);
    Json entry = Json::Object({});
    entry.Set("dtype", Json::String(DTypeName(tensor.dtype)));
    entry.Set("shape", Json::Array(std::move(shape)));
    entry.Set("data_offsets", Json::Array({Json::LargeInteger(offset), Json::LargeInteger(end)}));
    offset = end;
    if (!members.emplace(tensor.name, std::move(entry)).second) {
      return absl::InvalidArgumentError(absl::StrCat("two tensors are named ", tensor.name));
    }
  }
  std::string header = Json::Object(std::move(members)).ToCanonicalText();
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string out;
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(header.size() >> (8 * i)));
  return out + header;
}

absl::Status SafetensorsWriter::CheckTarget(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("the file to write has an empty name");
  struct stat facts = {};
  if (stat(path.c_str(), &facts) == 0) {
    if (S_ISREG(facts.st_mode)) return absl::OkStatus();
    // A rename would put a plain file in the place of a device or a pipe.
    return absl::InvalidArgumentError(absl::StrCat(
        path, S_ISDIR(facts.st_mode) ? ": is a folder, not a file" : ": is not a regular file"));
  }
  if (access(FolderOf(path).c_str(), W_OK | X_OK) != 0)
    return SystemFailure(path, "creating the file");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, const std::vector<TensorInfo>& tensors) {
  MOEBIUS_RETURN_IF_ERROR(CheckTarget(path));
  MOEBIUS_ASSIGN_OR_RETURN(const std::string header, EncodeSafetensorsHeader(tensors));
  auto writer = std::unique_ptr<SafetensorsWriter>(new SafetensorsWriter());
  writer->path_ = path;
  writer->temporary_path_ = absl::StrCat(path, ".partial-", getpid());
  for (const TensorInfo& tensor : tensors) {
    writer->declared_bytes_ +=
        static_cast<uint64_t>(tensor.NumElements()) * DTypeBytes(tensor.dtype);
  }
  MOEBIUS_RETURN_IF_ERROR(writer->Open());
  writer->buffer_ = header;
  return writer;
}

absl::Status SafetensorsWriter::Open() {
  // A name is given through /proc later.
  if (access("/proc/self/fd", X_OK) == 0) {
    descriptor_ = open(FolderOf(path_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644);
    if (descriptor_ >= 0) return absl::OkStatus();
  }
  descriptor_ = open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) return SystemFailure(path_, "creating the file");
  is_named_ = true;
  return absl::OkStatus();
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ >= 0) close(descriptor_);
  if (is_named_) unlink(temporary_path_.c_str());
}

absl::Status SafetensorsWriter::Append(const void* data, size_t size_bytes) {
  appended_bytes_ += size_bytes;
  buffer_.append(static_cast<const char*>(data), size_bytes);
  return buffer_.size() >= kBufferBytes ? Flush() : absl::OkStatus();
}

absl::Status SafetensorsWriter::Flush() {
  size_t written = 0;
  while (written < buffer_.size()) {
    const ssize_t count = write(descriptor_, buffer_.data() + written, buffer_.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemFailure(path_, "writing");
    written += static_cast<size_t>(count);
  }
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  if (appended_bytes_ != declared_bytes_) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": declared ", declared_bytes_, " bytes, appended ", appended_bytes_));
  }
  MOEBIUS_RETURN_IF_ERROR(Flush());
  if (!is_named_) {
    const std::string open_file = absl::StrCat("/proc/self/fd/", descriptor_);
    if (linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, temporary_path_.c_str(), AT_SYMLINK_FOLLOW) !=
        0) {
      return SystemFailure(path_, "naming the file");
    }
    is_named_ = true;
  }
  const int descriptor = std::exchange(descriptor_, -1);
  if (close(descriptor) != 0) return SystemFailure(path_, "closing");
  if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    return SystemFailure(path_, "renaming");
  }
  is_named_ = false;
  return absl::OkStatus();
}

}  // namespace moebius
