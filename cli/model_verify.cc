// SPDX-License-Identifier: Apache-2.0
#include "cli/model_verify.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/terminal.h"

#include "moebius/base/hash.h"
#include "moebius/base/status.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/file.h"
#include "moebius/model/json.h"
#include "moebius/model/sha256.h"
#include "moebius/tensor/fp8.h"

namespace moebius {
namespace {

constexpr char kManifest[] = "SHA256SUMS";
constexpr size_t kPieceBytes = 1u << 20;

bool IsSha256(absl::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
         });
}

/// File name → expected sum.
using Sums = std::map<std::string, std::string>;

/// Lines of `sha256sum`: 64 digits, two characters, a name.
absl::StatusOr<Sums> ParseManifest(const std::string& text) {
  Sums sums;
  int line_number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    if (line.size() < 67 || !IsSha256(line.substr(0, 64))) {
      return absl::InvalidArgumentError(
          absl::StrCat(kManifest, ": line ", line_number, " is no \"<sha256>  <file>\""));
    }
    sums[BaseName(absl::StripAsciiWhitespace(line.substr(66)))] = std::string(line.substr(0, 64));
  }
  return sums;
}

/// A Hugging Face cache links files to blobs that are named by their sum.
std::string SumOfLinkTarget(const std::string& path) {
  char target[PATH_MAX];
  const ssize_t length = readlink(path.c_str(), target, sizeof(target));
  if (length <= 0) return "";
  const std::string name = BaseName(absl::string_view(target, static_cast<size_t>(length)));
  return IsSha256(name) ? name : "";
}

/// Reads everything once and keeps count.
class Verifier {
 public:
  Verifier(const Checkpoint& checkpoint, const VerifyProgress& on_progress,
           ModelVerification& verification)
      : checkpoint_(checkpoint), on_progress_(on_progress), verification_(verification) {}

  absl::Status Run(const Sums& sums) {
    std::map<const SafetensorsFile*, std::string> wanted;
    for (const auto& file : checkpoint_.directory().files()) {
      const auto found = sums.find(file->base_name());
      const std::string sum = found != sums.end() ? found->second : SumOfLinkTarget(file->path());
      if (!sum.empty()) wanted[file.get()] = sum;
      total_ += file->size_bytes();
      if (!sum.empty()) total_ += file->size_bytes();
    }
    StreamingHash64 content;
    for (const TensorDirectory::Entry& entry : checkpoint_.directory().entries()) {
      content.Update(entry.info->name.data(), entry.info->name.size() + 1);
      MOEBIUS_RETURN_IF_ERROR(ScanTensor(entry, content));
    }
    verification_.content_hash = content.Digest();
    for (const auto& [file, sum] : wanted) MOEBIUS_RETURN_IF_ERROR(CompareSum(*file, sum));
    for (const auto& [name, sum] : sums) {
      if (access(absl::StrCat(checkpoint_.folder(), "/", name).c_str(), F_OK) != 0) {
        verification_.faults.push_back(
            absl::StrCat(PrintableName(name), " is in ", kManifest, " but not in the folder"));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ScanTensor(const TensorDirectory::Entry& entry, StreamingHash64& content) {
    const TensorInfo& info = *entry.info;
    int64_t num_not_finite = 0;
    bool is_zero = info.size_bytes > 0;
    int64_t num_bad_scales = 0;
    const bool is_scales = info.dtype == DType::kF32 && absl::EndsWith(info.name, "_scale_inv");
    for (uint64_t offset = 0; offset < info.size_bytes; offset += kPieceBytes) {
      piece_.resize(static_cast<size_t>(std::min<uint64_t>(kPieceBytes, info.size_bytes - offset)));
      MOEBIUS_RETURN_IF_ERROR(entry.file->Read(info, offset, absl::MakeSpan(piece_)));
      content.Update(piece_.data(), piece_.size());
      num_not_finite += CountNotFinite(info.dtype);
      if (is_scales) num_bad_scales += CountBadScales();
      is_zero = is_zero && IsPieceZero(info.dtype);
      Advance(piece_.size());
    }
    const std::string where = absl::StrCat(entry.file->base_name(), ": ", PrintableName(info.name));
    if (num_not_finite > 0) {
      verification_.faults.push_back(
          absl::StrCat(where, " has ", num_not_finite, " values that are NaN or infinite"));
    }
    if (num_bad_scales > 0) {
      verification_.faults.push_back(
          absl::StrCat(where, " has ", num_bad_scales, " scales that are no positive number"));
    }
    if (is_zero && info.shape.size() >= 2) {
      verification_.faults.push_back(absl::StrCat(where, " is all zeros"));
    }
    return absl::OkStatus();
  }

  /// An exponent of all ones, by bits: no arithmetic on what may be a signalling NaN.
  int64_t CountNotFinite(DType dtype) const {
    int64_t count = 0;
    if (dtype == DType::kF32) {
      for (size_t i = 0; i + 4 <= piece_.size(); i += 4) {
        uint32_t bits;
        std::memcpy(&bits, piece_.data() + i, 4);
        count += (bits & 0x7F800000) == 0x7F800000;
      }
      return count;
    }
    if (dtype == DType::kF8E4M3) {
      for (const uint8_t code : piece_) count += IsFiniteFp8(code) ? 0 : 1;
      return count;
    }
    if (dtype != DType::kBF16 && dtype != DType::kF16) return 0;
    const uint16_t exponent = dtype == DType::kBF16 ? 0x7F80 : 0x7C00;
    for (size_t i = 0; i + 2 <= piece_.size(); i += 2) {
      uint16_t bits;
      std::memcpy(&bits, piece_.data() + i, 2);
      count += (bits & exponent) == exponent;
    }
    return count;
  }

  /// Finite ones that ReadFp8Block refuses: zero, negative, denormal.
  int64_t CountBadScales() const {
    int64_t count = 0;
    for (size_t i = 0; i + 4 <= piece_.size(); i += 4) {
      uint32_t bits;
      std::memcpy(&bits, piece_.data() + i, 4);
      const bool is_finite = (bits & 0x7F800000) != 0x7F800000;
      const bool is_positive = (bits & 0x80000000) == 0 && (bits & 0x7F800000) != 0;
      count += is_finite && !is_positive ? 1 : 0;
    }
    return count;
  }

  /// Both zeros count as zero; the sign is the last byte's high bit.
  bool IsPieceZero(DType dtype) const {
    const size_t element = std::max<size_t>(DTypeBytes(dtype), 1);
    for (size_t i = 0; i < piece_.size(); ++i) {
      const uint8_t mask = i % element == element - 1 ? 0x7F : 0xFF;
      if ((piece_[i] & mask) != 0) return false;
    }
    return true;
  }

  absl::Status CompareSum(const SafetensorsFile& file, const std::string& expected) {
    MOEBIUS_ASSIGN_OR_RETURN(const RegularFile bytes, RegularFile::Open(file.path()));
    Sha256 sum;
    for (uint64_t offset = 0; offset < bytes.size_bytes(); offset += kPieceBytes) {
      piece_.resize(
          static_cast<size_t>(std::min<uint64_t>(kPieceBytes, bytes.size_bytes() - offset)));
      MOEBIUS_RETURN_IF_ERROR(bytes.Read(offset, absl::MakeSpan(piece_)));
      sum.Update(piece_.data(), piece_.size());
      Advance(piece_.size());
    }
    ++verification_.num_sums_compared;
    const std::string actual = sum.HexDigest();
    if (actual != expected) {
      verification_.faults.push_back(
          absl::StrCat(file.base_name(), ": SHA-256 is ", actual, ", expected ", expected));
    }
    return absl::OkStatus();
  }

  void Advance(size_t bytes) {
    done_ += bytes;
    if (on_progress_) on_progress_(std::min(done_, total_), total_);
  }

  const Checkpoint& checkpoint_;
  const VerifyProgress& on_progress_;
  ModelVerification& verification_;
  std::vector<uint8_t> piece_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

}  // namespace

absl::StatusOr<ModelVerification> VerifyModel(const std::string& folder,
                                              const VerifyProgress& on_progress) {
  CheckpointOptions options;
  options.reads_as_stored = true;
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<const Checkpoint> checkpoint,
                           Checkpoint::Open(folder, options));
  ModelVerification verification;
  verification.folder = folder;
  verification.family = std::string(FamilyName(checkpoint->config().family));
  verification.num_files = static_cast<int64_t>(checkpoint->directory().files().size());
  verification.num_tensors = static_cast<int64_t>(checkpoint->directory().entries().size());
  verification.num_bytes = checkpoint->directory().total_bytes();
  verification.model_hash = checkpoint->model_hash();
  Sums sums;
  const std::string manifest = absl::StrCat(folder, "/", kManifest);
  if (access(manifest.c_str(), F_OK) == 0) {
    MOEBIUS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(manifest));
    MOEBIUS_ASSIGN_OR_RETURN(sums, ParseManifest(text));
    verification.manifest = kManifest;
  }
  MOEBIUS_RETURN_IF_ERROR(Verifier(*checkpoint, on_progress, verification).Run(sums));
  return verification;
}

std::string FormatVerification(const ModelVerification& verification) {
  std::string out = absl::StrCat(
      verification.folder, ": ", verification.family, ", ", FormatCount(verification.num_tensors),
      " tensors, ", FormatBytes(static_cast<int64_t>(verification.num_bytes)), " in ",
      verification.num_files,
      verification.num_files == 1 ? " file, all read\n" : " files, all read\n");
  absl::StrAppend(&out, "  content ", FormatHash64(verification.content_hash), "  model ",
                  FormatHash64(verification.model_hash), "\n");
  absl::StrAppend(&out, "  checksums: ",
                  verification.num_sums_compared > 0
                      ? absl::StrCat(verification.num_sums_compared, " compared")
                      : std::string("none to compare with (SHA256SUMS)"),
                  "\n");
  for (const std::string& fault : verification.faults) {
    absl::StrAppend(&out, "  fault: ", fault, "\n");
  }
  if (verification.faults.empty()) absl::StrAppend(&out, "  no fault found\n");
  return out;
}

std::string FormatVerificationJson(const ModelVerification& verification) {
  Json object = Json::Object({});
  object.Set("folder", Json::String(verification.folder));
  object.Set("family", Json::String(verification.family));
  object.Set("num_files", Json::Integer(verification.num_files));
  object.Set("num_tensors", Json::Integer(verification.num_tensors));
  object.Set("num_bytes", Json::LargeInteger(verification.num_bytes));
  object.Set("model_hash", Json::String(FormatHash64(verification.model_hash)));
  object.Set("content_hash", Json::String(FormatHash64(verification.content_hash)));
  object.Set("manifest",
             verification.manifest.empty() ? Json() : Json::String(verification.manifest));
  object.Set("num_sums_compared", Json::Integer(verification.num_sums_compared));
  std::vector<Json> faults;
  for (const std::string& fault : verification.faults) faults.push_back(Json::String(fault));
  object.Set("faults", Json::Array(std::move(faults)));
  return object.ToCanonicalText();
}

}  // namespace moebius
