// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/model_hash.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"

#include "moebius/base/hash.h"
#include "moebius/base/status.h"
#include "moebius/model/config_parser.h"

namespace moebius {
namespace {

struct Sample {
  const TensorDirectory::Entry* entry = nullptr;
  uint64_t digest = 0;
};

absl::Status ReadSample(Sample& sample) {
  const TensorInfo& info = *sample.entry->info;
  std::array<uint8_t, kHashedWholeBytes> bytes;
  uint64_t offset = 0;
  uint64_t count = info.size_bytes;
  if (count > kHashedWholeBytes) {
    count = kHashWindowBytes;
    offset = Hash64(info.name.data(), info.name.size()) % (info.size_bytes - count + 1);
  }
  MOEBIUS_RETURN_IF_ERROR(
      sample.entry->file->Read(info, offset, absl::MakeSpan(bytes.data(), count)));
  sample.digest = Hash64(bytes.data(), count);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> HashModel(const ModelConfig& config,
                                   const std::vector<Parameter>& parameters,
                                   const TensorDirectory& directory) {
  std::vector<Sample> samples;
  for (const Parameter& parameter : parameters) {
    samples.push_back({directory.Find(parameter.name), 0});
    if (parameter.is_fp8()) samples.push_back({directory.Find(parameter.scale_name), 0});
  }
  // Read in the order of the disk, combine in the order of the names.
  std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) {
    if (a.entry->file != b.entry->file) {
      return a.entry->file->base_name() < b.entry->file->base_name();
    }
    return a.entry->info->file_offset < b.entry->info->file_offset;
  });
  for (Sample& sample : samples) MOEBIUS_RETURN_IF_ERROR(ReadSample(sample));
  std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) {
    return a.entry->info->name < b.entry->info->name;
  });
  std::string text = absl::StrCat("moebius model 1\n", CanonicalConfigText(config), "\n");
  for (const Sample& sample : samples) {
    const TensorInfo& info = *sample.entry->info;
    absl::StrAppend(&text, info.name, " ", info.dtype_name, " ", info.ShapeText(), " ",
                    FormatHash64(sample.digest), "\n");
  }
  return Hash64(text.data(), text.size());
}

uint64_t HashNumerics(const NumericsConfig& numerics, uint64_t model_hash) {
  const std::string text = CanonicalNumericsText(numerics, model_hash);
  return Hash64(text.data(), text.size());
}

}  // namespace moebius
