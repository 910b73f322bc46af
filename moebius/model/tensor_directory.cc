// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/tensor_directory.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/model/file.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr char kSingleName[] = "model.safetensors";
constexpr size_t kMaxIndexBytes = 256u << 20;

/// {"metadata": {…}, "weight_map": {"tensor": "file", …}}; other members are skipped.
class IndexEvents final : public JsonEvents {
 public:
  explicit IndexEvents(absl::string_view source) : source_(source) {}

  std::vector<IndexEntry> TakeEntries() { return std::move(entries_); }
  bool has_weight_map() const { return has_weight_map_; }

  absl::Status Null() override { return Scalar("null"); }
  absl::Status Boolean(bool) override { return Scalar("a boolean"); }
  absl::Status Integer(int64_t) override { return Scalar("an integer"); }
  absl::Status LargeInteger(uint64_t) override { return Scalar("an integer"); }
  absl::Status Number(double) override { return Scalar("a number"); }
  absl::Status String(absl::string_view value) override {
    if (!InWeightMap()) return Scalar("a string");
    if (depth_ != 2) return Refuse("weight_map must map names to file names");
    entries_.back().file = std::string(value);
    return absl::OkStatus();
  }
  absl::Status Key(absl::string_view key) override {
    if (depth_ == 1) {
      member_ = std::string(key);
      if (member_ != "weight_map") return absl::OkStatus();
      if (has_weight_map_) return Refuse("duplicate key weight_map");
      has_weight_map_ = true;
    } else if (depth_ == 2 && InWeightMap()) {
      if (entries_.size() == kMaxTensorsPerModel) {
        return Refuse(absl::StrCat("more than ", kMaxTensorsPerModel, " tensors"));
      }
      entries_.push_back({std::string(key), std::string()});
    }
    return absl::OkStatus();
  }
  absl::Status BeginObject() override { return Begin(/*is_object=*/true); }
  absl::Status EndObject() override { return End(); }
  absl::Status BeginArray() override { return Begin(/*is_object=*/false); }
  absl::Status EndArray() override { return End(); }

 private:
  bool InWeightMap() const { return depth_ >= 1 && member_ == "weight_map"; }
  absl::Status Refuse(absl::string_view reason) const {
    return absl::InvalidArgumentError(absl::StrCat(source_, ": ", reason));
  }
  absl::Status Scalar(absl::string_view what) const {
    if (depth_ == 0) return Refuse("must be an object");
    if (!InWeightMap()) return absl::OkStatus();
    return Refuse(absl::StrCat("weight_map has ", what, " where a file name belongs"));
  }
  absl::Status Begin(bool is_object) {
    if (depth_ == 0 && !is_object) return Refuse("must be an object");
    if (InWeightMap() && (depth_ != 1 || !is_object)) {
      return Refuse("weight_map must map names to file names");
    }
    ++depth_;
    return absl::OkStatus();
  }
  absl::Status End() {
    --depth_;
    return absl::OkStatus();
  }

  absl::string_view source_;
  int depth_ = 0;
  std::string member_;
  bool has_weight_map_ = false;
  std::vector<IndexEntry> entries_;
};

bool IsShardName(absl::string_view name) {
  return name.find('/') == absl::string_view::npos && name.find('\0') == absl::string_view::npos &&
         name.size() <= 255 && name[0] != '.' && absl::EndsWith(name, ".safetensors");
}

bool LinkExists(const std::string& path) {
  struct stat facts = {};
  return lstat(path.c_str(), &facts) == 0;
}

/// What to say about a folder without model.safetensors and without an index.
absl::Status NoWeights(const std::string& folder) {
  std::string other;
  if (DIR* directory = opendir(folder.c_str())) {
    while (const dirent* entry = readdir(directory)) {
      const absl::string_view name = entry->d_name;
      if (absl::EndsWith(name, ".safetensors") || absl::EndsWith(name, ".bin") ||
          absl::EndsWith(name, ".gguf") || absl::EndsWith(name, ".pth")) {
        if (other.empty() || name < other) other = std::string(name);
      }
    }
    closedir(directory);
  }
  const std::string hint =
      other.empty() ? "a model's folder holds config.json and model.safetensors, or shards with "
                      "model.safetensors.index.json"
                    : absl::StrCat("the folder has ", PrintableName(other),
                                   ", which is not read: save the model as model.safetensors, or "
                                   "as shards with model.safetensors.index.json");
  return WithHint(absl::NotFoundError(absl::StrCat(folder, ": neither ", kSingleName, " nor ",
                                                   kIndexName, " is here")),
                  hint);
}

absl::StatusOr<std::string> ReadIndexText(const std::string& path) {
  MOEBIUS_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  if (file.size_bytes() > kMaxIndexBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        kIndexName, ": has ", file.size_bytes(), " bytes, at most ", kMaxIndexBytes, " are read"));
  }
  std::string text(file.size_bytes(), '\0');
  MOEBIUS_RETURN_IF_ERROR(
      file.Read(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size())));
  return text;
}

absl::Status Misplaced(absl::string_view tensor, absl::string_view reason) {
  return absl::InvalidArgumentError(
      absl::StrCat(kIndexName, ": tensor ", PrintableName(tensor), " ", reason));
}

/// Every listed tensor is in its file, and every tensor of the files is listed.
absl::Status ValidateAgainstIndex(const std::vector<IndexEntry>& index,
                                  const std::vector<TensorDirectory::Entry>& entries) {
  size_t position = 0;
  for (const TensorDirectory::Entry& entry : entries) {
    const std::string& name = entry.info->name;
    if (position < index.size() && index[position].tensor < name) {
      return Misplaced(index[position].tensor,
                       absl::StrCat("is not in ", index[position].file, " nor in another shard"));
    }
    if (position == index.size() || index[position].tensor != name) {
      return Misplaced(
          name, absl::StrCat("is in ", entry.file->base_name(), " but the index does not list it"));
    }
    if (index[position].file != entry.file->base_name()) {
      return Misplaced(name, absl::StrCat("is in ", entry.file->base_name(), ", the index says ",
                                          index[position].file));
    }
    ++position;
  }
  if (position < index.size()) {
    return Misplaced(index[position].tensor,
                     absl::StrCat("is not in ", index[position].file, " nor in another shard"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<IndexEntry>> ParseSafetensorsIndex(absl::string_view text,
                                                              absl::string_view source) {
  IndexEvents events(source);
  MOEBIUS_RETURN_IF_ERROR(ParseJsonEvents(text, source, events));
  if (!events.has_weight_map()) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": weight_map is absent"));
  }
  std::vector<IndexEntry> entries = events.TakeEntries();
  if (entries.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": weight_map is empty"));
  }
  std::sort(entries.begin(), entries.end(),
            [](const IndexEntry& a, const IndexEntry& b) { return a.tensor < b.tensor; });
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0 && entries[i].tensor == entries[i - 1].tensor) {
      return absl::InvalidArgumentError(absl::StrCat(
          source, ": duplicate key \"", PrintableName(entries[i].tensor), "\" in weight_map"));
    }
    if (entries[i].file.empty() || !IsShardName(entries[i].file)) {
      return absl::InvalidArgumentError(absl::StrCat(
          source, ": tensor ", PrintableName(entries[i].tensor), " is said to be in \"",
          PrintableName(entries[i].file), "\", which is no plain name of a .safetensors file"));
    }
  }
  return entries;
}

absl::StatusOr<std::unique_ptr<TensorDirectory>> TensorDirectory::Open(const std::string& folder) {
  const std::string index_path = absl::StrCat(folder, "/", kIndexName);
  const std::string single_path = absl::StrCat(folder, "/", kSingleName);
  std::vector<IndexEntry> index;
  std::vector<std::string> names;
  if (LinkExists(index_path)) {
    MOEBIUS_ASSIGN_OR_RETURN(const std::string text, ReadIndexText(index_path));
    MOEBIUS_ASSIGN_OR_RETURN(index, ParseSafetensorsIndex(text, kIndexName));
    for (const IndexEntry& entry : index) names.push_back(entry.file);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    if (names.size() > kMaxShards) {
      return absl::InvalidArgumentError(absl::StrCat(kIndexName, ": names ", names.size(),
                                                     " files, at most ", kMaxShards, " are read"));
    }
    if (LinkExists(single_path) && !std::binary_search(names.begin(), names.end(), kSingleName)) {
      return WithHint(
          absl::InvalidArgumentError(absl::StrCat(folder, ": has both ", kSingleName, " and ",
                                                  kIndexName, ", which does not name it")),
          "remove the one that does not belong to this model");
    }
  } else if (LinkExists(single_path)) {
    names.push_back(kSingleName);
  } else {
    return NoWeights(folder);
  }

  auto directory = std::unique_ptr<TensorDirectory>(new TensorDirectory());
  for (const std::string& name : names) {
    MOEBIUS_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(absl::StrCat(folder, "/", name)));
    for (const TensorInfo& info : file->tensors()) {
      directory->entries_.push_back({&info, file.get()});
      directory->total_bytes_ += info.size_bytes;
    }
    directory->files_.push_back(std::move(file));
    if (directory->entries_.size() > kMaxTensorsPerModel) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder, ": has more than ", kMaxTensorsPerModel, " tensors"));
    }
  }
  std::vector<Entry>& entries = directory->entries_;
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.info->name < b.info->name; });
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].info->name == entries[i - 1].info->name) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", PrintableName(entries[i].info->name), " is in two shards: ",
                       entries[i - 1].file->base_name(), " and ", entries[i].file->base_name()));
    }
  }
  if (!index.empty()) MOEBIUS_RETURN_IF_ERROR(ValidateAgainstIndex(index, entries));
  return directory;
}

const TensorDirectory::Entry* TensorDirectory::Find(absl::string_view name) const {
  const auto found = std::lower_bound(
      entries_.begin(), entries_.end(), name,
      [](const Entry& entry, absl::string_view wanted) { return entry.info->name < wanted; });
  return found != entries_.end() && found->info->name == name ? &*found : nullptr;
}

}  // namespace moebius
