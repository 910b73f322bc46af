// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/packed_cache.h"

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/hash.h"
#include "moebius/base/status.h"
#include "moebius/model/packed_folder.h"

namespace moebius {
namespace {

// File systems stamp changes with a clock of up to 10 ms: a file that was opened sooner after its
// last change could change again and look the same.
constexpr int64_t kClockStepNs = 50'000'000;

// What the packed bytes depend on beside the files' contents and the key.
std::string OptionsText(const CheckpointOptions& options) {
  return absl::StrCat("convert_to_bf16=", options.convert_to_bf16 ? 1 : 0, " zero_matrices=",
                      options.zero_matrices == ZeroMatrices::kAllow ? "allowed" : "refused");
}

std::string KeyText(const Checkpoint& checkpoint, const PackedKey& key) {
  return absl::StrCat("moebius packed weights 1\nrole ", key.role, "\nlayout ", key.layout,
                      "\nmodel ", FormatHash64(checkpoint.model_hash()), "\noptions ",
                      OptionsText(checkpoint.options()), "\ncontents ", key.contents, "\n");
}

std::string IdentityText(const Checkpoint& checkpoint, const PackedKey& key,
                         const PackedSource& source) {
  return KeyText(checkpoint, key) + source.text;
}

int64_t NowNs() {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

absl::string_view PackedCacheOutcomeName(PackedCacheOutcome outcome) {
  constexpr absl::string_view kNames[kNumPackedCacheOutcomes] = {
      "off", "hit", "miss", "stale", "invalid", "written", "refused"};
  return kNames[static_cast<size_t>(outcome)];
}

absl::StatusOr<PackedSource> PackedSource::Of(const Checkpoint& checkpoint) {
  PackedSource source;
  source.is_settled = true;
  const int64_t now = NowNs();
  for (const auto& file : checkpoint.directory().files()) {
    MOEBIUS_ASSIGN_OR_RETURN(const FileIdentity identity, file->Identity());
    source.is_settled = source.is_settled && now - identity.changed_ns >= kClockStepNs;
    absl::StrAppend(&source.text, "file ", file->base_name(), " size=", identity.size_bytes,
                    " inode=", identity.inode, " modified=", identity.modified_ns,
                    " changed=", identity.changed_ns, "\n");
  }
  return source;
}

std::string PackedFileName(const Checkpoint& checkpoint, const PackedKey& key) {
  const std::string text = KeyText(checkpoint, key);
  return absl::StrCat(key.role, "-", FormatHash64(checkpoint.model_hash()), "-",
                      FormatHash64(Hash64(text.data(), text.size())), kPackedFileSuffix);
}

PackedCacheResult PackedCache::Counted(PackedCacheResult result) {
  counts_[static_cast<size_t>(result.outcome)].fetch_add(1, std::memory_order_relaxed);
  return result;
}

PackedCacheResult PackedCache::Read(const Checkpoint& checkpoint, const PackedKey& key,
                                    absl::Span<uint8_t> out, int num_threads,
                                    const PackedProgress& on_progress) {
  if (!is_on()) return {};
  return Counted(TryRead(checkpoint, key, out, num_threads, on_progress));
}

PackedCacheResult PackedCache::TryRead(const Checkpoint& checkpoint, const PackedKey& key,
                                       absl::Span<uint8_t> out, int num_threads,
                                       const PackedProgress& on_progress) const {
  const std::string name = PackedFileName(checkpoint, key);
  const auto result = [&](PackedCacheOutcome outcome, absl::string_view why) {
    return PackedCacheResult{
        outcome, absl::StrCat("packed cache ", options_.folder, "/", name, " ", why), 0};
  };
  const auto folder = PackedFolder::Open(options_.folder);
  if (!folder.ok()) return {PackedCacheOutcome::kMiss, "", 0};  // Write says why
  const auto file = PackedFile::Open(folder->fd(), name);
  if (absl::IsNotFound(file.status())) return {PackedCacheOutcome::kMiss, "", 0};
  if (!file.ok()) {
    return result(PackedCacheOutcome::kInvalid,
                  absl::StrCat(file.status().message(), "; the checkpoint is read instead"));
  }
  const auto source = PackedSource::Of(checkpoint);
  if (!source.ok() || file->identity() != IdentityText(checkpoint, key, *source) ||
      file->data_bytes() != static_cast<int64_t>(out.size())) {
    return result(PackedCacheOutcome::kStale,
                  "was made of other files than the checkpoint has now; they are read instead");
  }
  const absl::Status read = file->ReadData(out, num_threads, on_progress);
  if (!read.ok()) {
    return result(PackedCacheOutcome::kInvalid,
                  absl::StrCat(read.message(), "; the checkpoint is read instead"));
  }
  file->Touch();
  return {PackedCacheOutcome::kHit, "", file->file_bytes()};
}

PackedCacheResult PackedCache::Write(const Checkpoint& checkpoint, const PackedKey& key,
                                     const PackedSource& source, absl::Span<const uint8_t> data,
                                     int num_threads) {
  if (!is_on()) return {};
  PackedCacheResult result;
  const int64_t bytes =
      PackedFileBytes(IdentityText(checkpoint, key, source), static_cast<int64_t>(data.size()));
  const absl::Status status = TryWrite(checkpoint, key, source, data, num_threads);
  if (status.ok()) {
    result = {PackedCacheOutcome::kWritten,
              absl::StrCat("packed cache ", options_.folder, "/", PackedFileName(checkpoint, key),
                           " now has ", bytes, " bytes for the next start"),
              bytes};
  } else {
    result = {PackedCacheOutcome::kRefused,
              absl::StrCat("packed cache ", options_.folder,
                           ": nothing is kept for the next start: ", status.message()),
              0};
  }
  return Counted(std::move(result));
}

absl::Status PackedCache::TryWrite(const Checkpoint& checkpoint, const PackedKey& key,
                                   const PackedSource& source, absl::Span<const uint8_t> data,
                                   int num_threads) const {
  if (!source.is_settled) {
    return absl::FailedPreconditionError("the checkpoint was written a moment before it was read");
  }
  MOEBIUS_ASSIGN_OR_RETURN(const PackedSource now, PackedSource::Of(checkpoint));
  if (now.text != source.text) {
    return absl::FailedPreconditionError("the checkpoint's files changed while they were read");
  }
  MOEBIUS_ASSIGN_OR_RETURN(const PackedFolder folder, PackedFolder::Open(options_.folder));
  const std::string identity = IdentityText(checkpoint, key, source);
  const std::string name = PackedFileName(checkpoint, key);
  MOEBIUS_RETURN_IF_ERROR(folder.MakeRoom(
      name, PackedFileBytes(identity, static_cast<int64_t>(data.size())), options_.limit_bytes));
  MOEBIUS_ASSIGN_OR_RETURN(NewPackedFile file, folder.Create(name));
  MOEBIUS_RETURN_IF_ERROR(WritePackedFile(file.fd(), identity, data, num_threads));
  return file.Publish();
}

}  // namespace moebius
