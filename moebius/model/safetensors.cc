// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/safetensors.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/model/file.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

/// The types of the format whose elements are whole bytes.
struct FormatType {
  absl::string_view name;
  uint64_t bytes;
  DType dtype;
};
constexpr std::array<FormatType, 18> kFormatTypes = {{
    {"BF16", 2, DType::kBF16},
    {"F16", 2, DType::kF16},
    {"F32", 4, DType::kF32},
    {"I32", 4, DType::kI32},
    {"I16", 2, DType::kI16},
    {"I64", 8, DType::kI64},
    {"F64", 8, DType::kUnspecified},
    {"U8", 1, DType::kUnspecified},
    {"I8", 1, DType::kUnspecified},
    {"U16", 2, DType::kUnspecified},
    {"U32", 4, DType::kUnspecified},
    {"U64", 8, DType::kUnspecified},
    {"BOOL", 1, DType::kUnspecified},
    {"F8_E4M3", 1, DType::kF8E4M3},
    {"F8_E5M2", 1, DType::kUnspecified},
    {"F8_E8M0", 1, DType::kUnspecified},
    {"F8_E4M3FNUZ", 1, DType::kUnspecified},
    {"C64", 8, DType::kUnspecified},
}};

const FormatType* FindFormatType(absl::string_view name) {
  for (const FormatType& type : kFormatTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

/// Collects tensors from the header's events:
/// {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {…}}.
class HeaderEvents final : public JsonEvents {
 public:
  HeaderEvents(absl::string_view source, uint64_t data_begin)
      : source_(source), data_begin_(data_begin) {}

  std::vector<TensorInfo> TakeTensors() { return std::move(tensors_); }

  absl::Status Null() override { return Unexpected("null"); }
  absl::Status Boolean(bool) override { return Unexpected("a boolean"); }
  absl::Status Number(double) override { return Unexpected("a number that is no integer"); }
  absl::Status LargeInteger(uint64_t value) override {
    if (place_ == Place::kOffset) return Offset(value);
    return Unexpected("a too large integer");
  }
  absl::Status Integer(int64_t value) override {
    if (place_ == Place::kShape) {
      if (value < 0) return Refuse(absl::StrCat("shape has the negative size ", value));
      if (tensor_.shape.size() == kMaxTensorRank) {
        return Refuse(absl::StrCat("shape has more than ", kMaxTensorRank, " dimensions"));
      }
      tensor_.shape.push_back(value);
      return absl::OkStatus();
    }
    if (place_ == Place::kOffset) {
      if (value < 0) return Refuse(absl::StrCat("data_offsets has the negative value ", value));
      return Offset(static_cast<uint64_t>(value));
    }
    return Unexpected("an integer");
  }
  absl::Status String(absl::string_view value) override {
    if (place_ == Place::kMetadata) return absl::OkStatus();
    if (place_ != Place::kTensor || field_ != Field::kType) return Unexpected("a string");
    const FormatType* type = FindFormatType(value);
    if (type == nullptr) {
      return Refuse(absl::StrCat("dtype ", PrintableName(value), " is not known"));
    }
    tensor_.dtype = type->dtype;
    tensor_.dtype_name = std::string(value);
    element_bytes_ = type->bytes;
    field_ = Field::kNone;
    return absl::OkStatus();
  }
  absl::Status Key(absl::string_view key) override {
    if (place_ == Place::kTop) return BeginTensor(key);
    if (place_ == Place::kMetadata) return absl::OkStatus();
    const Field field = key == "dtype"          ? Field::kType
                        : key == "shape"        ? Field::kShape
                        : key == "data_offsets" ? Field::kOffsets
                                                : Field::kNone;
    if (field == Field::kNone) {
      return Refuse(absl::StrCat("key ", PrintableName(key), " is not known"));
    }
    const unsigned bit = 1u << static_cast<int>(field);
    if ((seen_ & bit) != 0) return Refuse(absl::StrCat("duplicate key ", key));
    seen_ |= bit;
    field_ = field;
    return absl::OkStatus();
  }
  absl::Status BeginObject() override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return absl::OkStatus();
    }
    if (place_ == Place::kTop && is_metadata_) {
      place_ = Place::kMetadata;
      return absl::OkStatus();
    }
    if (place_ != Place::kTop) return Unexpected("an object");
    place_ = Place::kTensor;
    return absl::OkStatus();
  }
  absl::Status EndObject() override {
    if (place_ == Place::kTensor) MOEBIUS_RETURN_IF_ERROR(EndTensor());
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return absl::OkStatus();
  }
  absl::Status BeginArray() override {
    if (place_ != Place::kTensor) return Unexpected("a list");
    if (field_ == Field::kShape) {
      place_ = Place::kShape;
    } else if (field_ == Field::kOffsets) {
      place_ = Place::kOffset;
    } else {
      return Unexpected("a list");
    }
    return absl::OkStatus();
  }
  absl::Status EndArray() override {
    place_ = Place::kTensor;
    field_ = Field::kNone;
    return absl::OkStatus();
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffset, kEnd };
  enum class Field { kNone, kType, kShape, kOffsets };

  absl::Status Refuse(absl::string_view reason) const {
    return absl::InvalidArgumentError(
        tensor_.name.empty()
            ? absl::StrCat(source_, ": ", reason)
            : absl::StrCat(source_, ": tensor ", PrintableName(tensor_.name), ": ", reason));
  }
  absl::Status Unexpected(absl::string_view what) const {
    return Refuse(absl::StrCat("the header has ", what, " in the wrong place"));
  }

  absl::Status BeginTensor(absl::string_view name) {
    tensor_ = TensorInfo();
    is_metadata_ = name == "__metadata__";
    if (is_metadata_) {
      if (metadata_seen_) return Refuse("duplicate key __metadata__");
      metadata_seen_ = true;
      return absl::OkStatus();
    }
    if (name.empty()) return Refuse("a tensor has an empty name");
    if (tensors_.size() == kMaxTensorsPerFile) {
      return Refuse(absl::StrCat("more than ", kMaxTensorsPerFile, " tensors in one file"));
    }
    tensor_.name = std::string(name);
    seen_ = 0;
    num_offsets_ = 0;
    field_ = Field::kNone;
    return absl::OkStatus();
  }

  absl::Status Offset(uint64_t value) {
    if (num_offsets_ == 2) return Refuse("data_offsets has more than two values");
    offsets_[num_offsets_++] = value;
    return absl::OkStatus();
  }

  absl::Status EndTensor() {
    for (const auto& [field, key] :
         {std::pair(Field::kType, "dtype"), std::pair(Field::kShape, "shape"),
          std::pair(Field::kOffsets, "data_offsets")}) {
      if ((seen_ & (1u << static_cast<int>(field))) == 0) {
        return Refuse(absl::StrCat("has no ", key));
      }
    }
    if (num_offsets_ != 2) return Refuse("data_offsets has fewer than two values");
    const auto [begin, end] = offsets_;
    if (begin > end) {
      return Refuse(absl::StrCat("data_offsets run backwards: ", begin, " to ", end));
    }
    uint64_t bytes = element_bytes_;
    for (const int64_t size : tensor_.shape) {
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes) ||
          bytes > static_cast<uint64_t>(INT64_MAX)) {
        return Refuse(absl::StrCat("shape ", tensor_.ShapeText(), " is too large"));
      }
    }
    if (bytes != end - begin) {
      return Refuse(absl::StrCat("shape ", tensor_.ShapeText(), " of ", tensor_.dtype_name, " has ",
                                 bytes, " bytes, its offsets ", end - begin));
    }
    if (end > UINT64_MAX - data_begin_) return Refuse("data_offsets are too large");
    tensor_.file_offset = data_begin_ + begin;
    tensor_.size_bytes = bytes;
    tensors_.push_back(std::move(tensor_));
    tensor_ = TensorInfo();
    return absl::OkStatus();
  }

  absl::string_view source_;
  uint64_t data_begin_;
  Place place_ = Place::kStart;
  Field field_ = Field::kNone;
  bool is_metadata_ = false;
  bool metadata_seen_ = false;
  unsigned seen_ = 0;
  uint64_t element_bytes_ = 0;
  std::array<uint64_t, 2> offsets_ = {};
  size_t num_offsets_ = 0;
  TensorInfo tensor_;
  std::vector<TensorInfo> tensors_;
};

/// Data must be covered once, without holes, to the last byte.
absl::Status ValidateCoverage(std::vector<TensorInfo>& tensors, uint64_t data_begin,
                              uint64_t file_size, absl::string_view source) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.file_offset, a.size_bytes) < std::pair(b.file_offset, b.size_bytes);
  });
  uint64_t end = data_begin;
  absl::string_view previous = "the header";
  for (const TensorInfo& tensor : tensors) {
    if (tensor.file_offset != end) {
      const bool overlap = tensor.file_offset < end;
      return absl::InvalidArgumentError(
          absl::StrCat(source, ": tensor ", PrintableName(tensor.name),
                       overlap ? " overlaps " : " leaves a hole after ", PrintableName(previous)));
    }
    end = tensor.file_offset + tensor.size_bytes;
    previous = tensor.name;
  }
  if (end > file_size) {
    return WithHint(absl::DataLossError(absl::StrCat(source, ": file is cut short: expected ", end,
                                                     " bytes, it has ", file_size)),
                    "copy or download this file again");
  }
  if (end < file_size) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", file_size - end,
                                                   " bytes follow the last tensor: expected ", end,
                                                   " bytes, the file has ", file_size));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t TensorInfo::NumElements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::string TensorInfo::ShapeText() const {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<std::vector<TensorInfo>> ParseSafetensorsHeader(absl::string_view header,
                                                               uint64_t data_begin,
                                                               uint64_t file_size,
                                                               absl::string_view source) {
  if (header.empty() || header[0] != '{') {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": not a safetensors file: its header does not begin with {"));
  }
  HeaderEvents events(source, data_begin);
  MOEBIUS_RETURN_IF_ERROR(ParseJsonEvents(header, source, events));
  std::vector<TensorInfo> tensors = events.TakeTensors();
  MOEBIUS_RETURN_IF_ERROR(ValidateCoverage(tensors, data_begin, file_size, source));
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].name == tensors[i - 1].name) {
      return absl::InvalidArgumentError(
          absl::StrCat(source, ": duplicate tensor ", PrintableName(tensors[i].name)));
    }
  }
  return tensors;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  auto file = std::unique_ptr<SafetensorsFile>(new SafetensorsFile());
  file->path_ = path;
  file->base_name_ = BaseName(path);
  const std::string& name = file->base_name_;
  MOEBIUS_ASSIGN_OR_RETURN(file->file_, RegularFile::Open(path));
  const uint64_t size = file->file_.size_bytes();
  std::array<uint8_t, 8> prefix = {};
  if (size < prefix.size()) {
    return absl::DataLossError(
        absl::StrCat(name, ": not a safetensors file: expected at least 8 bytes, it has ", size));
  }
  MOEBIUS_RETURN_IF_ERROR(file->file_.Read(0, absl::MakeSpan(prefix)));
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < prefix.size(); ++i) {
    header_bytes |= static_cast<uint64_t>(prefix[i]) << (8 * i);
  }
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": not a safetensors file: its header would have ", header_bytes,
                     " bytes, at most ", kMaxSafetensorsHeaderBytes, " are read"));
  }
  const uint64_t data_begin = prefix.size() + header_bytes;
  if (data_begin > size) {
    return absl::DataLossError(absl::StrCat(name, ": file is cut short in its header: expected ",
                                            data_begin, " bytes or more, it has ", size));
  }
  std::string header(header_bytes, '\0');
  MOEBIUS_RETURN_IF_ERROR(file->file_.Read(
      prefix.size(), absl::MakeSpan(reinterpret_cast<uint8_t*>(header.data()), header.size())));
  MOEBIUS_ASSIGN_OR_RETURN(file->tensors_, ParseSafetensorsHeader(header, data_begin, size, name));
  return file;
}

const TensorInfo* SafetensorsFile::Find(absl::string_view name) const {
  const auto found = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorInfo& tensor, absl::string_view wanted) { return tensor.name < wanted; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

absl::Status SafetensorsFile::Read(const TensorInfo& tensor, uint64_t offset,
                                   absl::Span<uint8_t> out) const {
  MOEBIUS_CHECK_LE(offset, tensor.size_bytes);
  MOEBIUS_CHECK_LE(out.size(), tensor.size_bytes - offset);
  return WithContext(file_.Read(tensor.file_offset + offset, out), tensor.name);
}

}  // namespace moebius
