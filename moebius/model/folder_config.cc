// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/model/config_parser.h"
#include "moebius/model/file.h"

namespace moebius {
namespace {

/// True when something of that name is in the folder, a dangling link included.
bool EntryExists(const std::string& path) {
  struct stat facts = {};
  return lstat(path.c_str(), &facts) == 0;
}

absl::Status ValidateFolder(const std::string& folder) {
  struct stat facts = {};
  if (stat(folder.c_str(), &facts) != 0) {
    return WithHint(absl::NotFoundError(absl::StrCat(folder, ": no such folder")),
                    "give the folder that holds config.json, for instance models/demo");
  }
  if (!S_ISDIR(facts.st_mode)) {
    return WithHint(absl::InvalidArgumentError(absl::StrCat(folder, ": is a file, not a folder")),
                    "give the folder that holds config.json and the weights");
  }
  return absl::OkStatus();
}

/// generation_config.json's ids win, because that is where later corrections of a model go.
absl::Status MergeGenerationIds(FolderConfig& config) {
  ModelConfig& model = config.model;
  const GenerationDefaults& generation = config.generation;
  const auto outside = [&model](int64_t id) { return id >= model.vocab_size; };
  for (const int64_t id : generation.eos_token_ids) {
    if (outside(id)) {
      return absl::InvalidArgumentError(absl::StrCat("generation_config.json: eos_token_id ", id,
                                                     " is outside the vocabulary of ",
                                                     model.vocab_size));
    }
  }
  if (generation.bos_token_id.has_value() && outside(*generation.bos_token_id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("generation_config.json: bos_token_id ", *generation.bos_token_id,
                     " is outside the vocabulary of ", model.vocab_size));
  }
  if (!generation.eos_token_ids.empty()) {
    model.eos_token_ids = generation.eos_token_ids;
    model.eos_source = "generation_config.json";
  }
  if (generation.bos_token_id.has_value()) model.bos_token_id = generation.bos_token_id;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes) {
  MOEBIUS_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  if (file.size_bytes() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(BaseName(path), ": has ", file.size_bytes(),
                                                   " bytes, at most ", max_bytes, " are read"));
  }
  std::string text(file.size_bytes(), '\0');
  MOEBIUS_RETURN_IF_ERROR(
      file.Read(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size())));
  return text;
}

absl::StatusOr<FolderConfig> ReadFolderConfig(const std::string& folder,
                                              const std::string& config_file) {
  MOEBIUS_RETURN_IF_ERROR(ValidateFolder(folder));
  const std::string path = config_file.empty() ? absl::StrCat(folder, "/config.json") : config_file;
  if (!EntryExists(path)) {
    return WithHint(absl::NotFoundError(absl::StrCat(path, ": no such file")),
                    "a model's folder holds config.json beside its weights");
  }
  FolderConfig config;
  MOEBIUS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  MOEBIUS_ASSIGN_OR_RETURN(config.model, ParseModelConfig(text, BaseName(path)));
  if (const std::string file = absl::StrCat(folder, "/generation_config.json"); EntryExists(file)) {
    MOEBIUS_ASSIGN_OR_RETURN(const std::string generation, ReadTextFile(file));
    MOEBIUS_ASSIGN_OR_RETURN(config.generation, ParseGenerationConfig(generation));
    MOEBIUS_RETURN_IF_ERROR(MergeGenerationIds(config));
  }
  if (const std::string file = absl::StrCat(folder, "/moebius.json"); EntryExists(file)) {
    MOEBIUS_ASSIGN_OR_RETURN(const std::string settings, ReadTextFile(file));
    MOEBIUS_ASSIGN_OR_RETURN(config.settings, ParseFolderSettings(settings));
  }
  return config;
}

}  // namespace moebius
