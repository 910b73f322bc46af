// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/golden_run.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/model/config_parser.h"
#include "moebius/model/json.h"
#include "moebius/model/safetensors.h"

namespace moebius {
namespace {

constexpr char kData[] = "tests/golden/data/";

std::string SourcePath(absl::string_view path) {
  return absl::StrCat(MOEBIUS_SOURCE_DIR, "/", path);
}

GoldenCase CheckpointCase(const std::string& name, bool newer_form, double tolerance) {
  GoldenCase golden;
  golden.name = absl::StrCat(name, newer_form ? "_v5_config" : "");
  golden.model = absl::StrCat(kData, name);
  if (newer_form) golden.config_file = absl::StrCat(kData, name, "/config.v5.json");
  golden.reference = absl::StrCat(kData, name, "/reference");
  golden.tolerance = tolerance;
  return golden;
}

GoldenCase DemoCase(const std::string& prompt, double tolerance) {
  GoldenCase golden;
  golden.name = absl::StrCat("demo_", prompt);
  golden.model = "models/demo";
  golden.reference = absl::StrCat(kData, "demo/reference");
  golden.prompt = prompt;
  golden.tolerance = tolerance;
  return golden;
}

// One safetensors file whose names may begin with a prompt's.
class Record {
 public:
  Record(std::unique_ptr<SafetensorsFile> file, const std::string& prompt)
      : file_(std::move(file)), prefix_(prompt.empty() ? "" : absl::StrCat(prompt, ".")) {}

  const TensorInfo* Find(absl::string_view name) const {
    return file_->Find(absl::StrCat(prefix_, name));
  }

  /// Leaves `out` alone where the file has no such tensor.
  template <typename T>
  absl::Status Read(absl::string_view name, std::vector<T>& out) const {
    const TensorInfo* tensor = Find(name);
    if (tensor == nullptr) return absl::OkStatus();
    MOEBIUS_ASSIGN_OR_RETURN(out, file_->ReadAll<T>(*tensor));
    return absl::OkStatus();
  }

  absl::Status Read(absl::string_view name, std::vector<int64_t>& out) const {
    std::vector<int32_t> narrow;
    MOEBIUS_RETURN_IF_ERROR(Read(name, narrow));
    if (!narrow.empty()) out.assign(narrow.begin(), narrow.end());
    return absl::OkStatus();
  }

  absl::Status Read(absl::string_view name, RowBatch<float>& out) const {
    std::vector<float> values;
    MOEBIUS_RETURN_IF_ERROR(Read(name, values));
    if (values.empty()) return absl::OkStatus();
    out.Reset(Find(name)->shape[0], Find(name)->shape[1]);
    std::copy(values.begin(), values.end(), out.rows().data);
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<SafetensorsFile> file_;
  std::string prefix_;
};

absl::Status ReadLayers(const Record& record, std::vector<GoldenLayer>& layers) {
  constexpr int64_t kMaxLayers = 64;
  for (int64_t layer = 0; layer < kMaxLayers; ++layer) {
    const std::string prefix = absl::StrCat("layer", layer, ".");
    if (record.Find(absl::StrCat(prefix, "experts_fp32")) == nullptr) continue;
    const auto same_layer = [&](const GoldenLayer& known) { return known.layer == layer; };
    auto known = std::find_if(layers.begin(), layers.end(), same_layer);
    if (known == layers.end()) known = layers.insert(layers.end(), GoldenLayer{layer});
    MOEBIUS_RETURN_IF_ERROR(record.Read(absl::StrCat(prefix, "experts_fp32"), known->experts_fp32));
    MOEBIUS_RETURN_IF_ERROR(record.Read(absl::StrCat(prefix, "experts_bf16"), known->experts_bf16));
    MOEBIUS_RETURN_IF_ERROR(record.Read(absl::StrCat(prefix, "gap"), known->gap));
    MOEBIUS_RETURN_IF_ERROR(
        record.Read(absl::StrCat(prefix, "gate_logits_fp32"), known->gate_logits_fp32));
    MOEBIUS_RETURN_IF_ERROR(record.Read(absl::StrCat(prefix, "weights_fp32"), known->weights_fp32));
  }
  return absl::OkStatus();
}

absl::Status ReadRecord(const std::string& path, const std::string& prompt, GoldenRun& run) {
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
  const Record record(std::move(file), prompt);
  MOEBIUS_RETURN_IF_ERROR(record.Read("input_ids", run.token_ids));
  MOEBIUS_RETURN_IF_ERROR(record.Read("rows", run.rows));
  MOEBIUS_RETURN_IF_ERROR(record.Read("logits_fp32", run.logits_fp32));
  MOEBIUS_RETURN_IF_ERROR(record.Read("logits_bf16", run.logits_bf16));
  return ReadLayers(record, run.layers);
}

absl::StatusOr<std::vector<int64_t>> ReadGreedy(const std::string& path,
                                                const std::string& prompt) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  MOEBIUS_ASSIGN_OR_RETURN(const Json json, Json::Parse(text, path));
  const Json* facts = &json;
  if (!prompt.empty()) facts = facts->Find("prompts")->Find(prompt);
  MOEBIUS_CHECK(facts != nullptr && facts->Find("greedy") != nullptr);
  std::vector<int64_t> greedy;
  for (const Json& token : facts->Find("greedy")->elements()) greedy.push_back(token.integer());
  return greedy;
}

}  // namespace

std::vector<GoldenCase> ShortGoldenCases() {
  std::vector<GoldenCase> cases;
  for (const char* name : {"deepseek_v3", "deepseek_v3_noqlora_yarn", "deepseek_v3_negative_bias",
                           "qwen3_moe", "qwen3_moe_tied", "olmoe", "mixtral", "glm4_moe"}) {
    for (const bool newer_form : {false, true}) {
      cases.push_back(CheckpointCase(name, newer_form, 1e-5));
    }
  }
  GoldenCase zero_fill = CheckpointCase("deepseek_v3_negative_bias", false, 1e-5);
  zero_fill.name += "_zero_fill";
  zero_fill.reference += "_zero_fill";
  zero_fill.group_fill = GroupFill::kZero;
  cases.push_back(zero_fill);
  for (const char* prompt : {"cpp", "handbuch", "manual", "python", "scripture"}) {
    cases.push_back(DemoCase(prompt, 1e-5));
  }
  return cases;
}

std::vector<GoldenCase> LongGoldenCases() {
  std::vector<GoldenCase> cases;
  for (const char* name : {"deepseek_v3_long", "qwen3_moe_long"}) {
    for (const bool newer_form : {false, true}) {
      cases.push_back(CheckpointCase(name, newer_form, 2e-5));
    }
  }
  for (const char* prompt : {"all_texts", "long"}) cases.push_back(DemoCase(prompt, 2e-5));
  return cases;
}

absl::StatusOr<GoldenRun> ReadGoldenRun(const GoldenCase& golden) {
  GoldenRun run;
  const std::string path = SourcePath(golden.reference);
  const std::string base = path.substr(0, path.rfind('/')) + "/reference";
  if (base != path) {
    MOEBIUS_RETURN_IF_ERROR(ReadRecord(base + ".safetensors", golden.prompt, run));
    // These belong to the other fill.
    run.logits_bf16 = RowBatch<float>();
    for (GoldenLayer& layer : run.layers) {
      layer.experts_bf16.clear();
      layer.gate_logits_fp32.clear();
      layer.weights_fp32.clear();
      std::fill(layer.gap.begin(), layer.gap.end(), 1.0f);
    }
  }
  MOEBIUS_RETURN_IF_ERROR(ReadRecord(path + ".safetensors", golden.prompt, run));
  MOEBIUS_ASSIGN_OR_RETURN(run.greedy, ReadGreedy(path + ".json", golden.prompt));
  return run;
}

}  // namespace moebius
