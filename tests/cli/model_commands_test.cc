// SPDX-License-Identifier: Apache-2.0
#include "cli/model_commands.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "cli/model_inspect.h"
#include "cli/model_verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/model/json.h"
#include "moebius/model/sha256.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Demo() { return absl::StrCat(MOEBIUS_SOURCE_DIR, "/models/demo"); }

ModelInspection InspectDemo(const InspectionPlan& plan) {
  const auto checkpoint = Checkpoint::Open(Demo());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto inspection = InspectModel(**checkpoint, plan);
  EXPECT_TRUE(inspection.ok()) << inspection.status();
  return *inspection;
}

TEST(ModelInspectTest, CountsParametersByKind) {
  const ModelInspection inspection = InspectDemo({});
  int64_t sum = 0;
  for (const KindSummary& kind : inspection.kinds) {
    sum += kind.num_parameters;
    if (kind.kind == "routed experts") {
      // 5 sparse layers × 32 experts × 3 matrices of 96 × 192.
      EXPECT_EQ(kind.num_tensors, 480);
      EXPECT_EQ(kind.num_parameters, 5 * 32 * 3 * 96 * 192);
      EXPECT_EQ(kind.stored_bytes, 2u * 5 * 32 * 3 * 96 * 192);
    }
    if (kind.kind == "embedding") {
      EXPECT_EQ(kind.num_parameters, 259 * 192);
    }
  }
  EXPECT_EQ(sum, inspection.num_parameters);
  EXPECT_EQ(inspection.num_parameters - inspection.num_active_parameters,
            5 * (32 - 4) * 3 * 96 * 192);
  EXPECT_EQ(inspection.expert_stored_bytes, 2 * 3 * 96 * 192);
}

TEST(ModelInspectTest, SaysWhatEachHostNeeds) {
  InspectionPlan plan;
  plan.kv_tokens = 1000;
  plan.num_experts = 4;
  plan.num_replicas = 2;
  plan.num_attention = 2;
  const ModelInspection inspection = InspectDemo(plan);
  // A latent of 64 and a key of 16, padded to 96 elements of 2 bytes, in 6 layers.
  EXPECT_EQ(inspection.kv_bytes_per_token, 96 * 2 * 6);
  ASSERT_EQ(inspection.needs.size(), 4u);
  const int64_t expert = 2 * 3 * 96 * 192;
  const int64_t slices = 5 * expert + 6 * expert;  // one shared in 5 layers, 6 dense slices
  EXPECT_EQ(inspection.needs[0].kv_bytes, 96 * 2 * 6 * 1000);
  EXPECT_EQ(inspection.needs[2].role, "attention");
  EXPECT_EQ(inspection.needs[2].kv_bytes, 96 * 2 * 6 * 500);
  EXPECT_EQ(inspection.needs[3].role, "expert");
  EXPECT_EQ(inspection.needs[3].weight_bytes, 5 * 16 * expert + slices);
}

TEST(ModelInspectTest, GivesTheSameFactsToPeopleAndPrograms) {
  const ModelInspection inspection = InspectDemo({});
  const std::string text = FormatInspection(inspection);
  EXPECT_THAT(text, HasSubstr("deepseek_v3, 10.5 M parameters"));
  EXPECT_THAT(text, HasSubstr("32 routed, top-4 in 2 of 4 groups, 1 shared, width 96, sigmoid + "
                              "bias, renormalised, weights × 2.5"));
  EXPECT_THAT(text, HasSubstr("ends at 257 (generation_config.json)"));
  const auto json = Json::Parse(FormatInspectionJson(inspection), "inspect");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->Find("family")->string(), "deepseek_v3");
  EXPECT_EQ(json->Find("num_parameters")->integer(), inspection.num_parameters);
  EXPECT_EQ(json->Find("needs")->elements().size(), 4u);
}

TEST(ModelInspectTest, RefusesPlansThatAreNone) {
  ModelInspectOptions options;
  options.model = Demo();
  for (const auto& [experts, replicas] : std::vector<std::pair<const char*, const char*>>{
           {"0", ""}, {"-1", ""}, {"x", ""}, {"2", "3"}, {"1e3", ""}}) {
    options.experts = experts;
    options.replicas = replicas;
    const absl::Status status = RunModelInspect(options);
    EXPECT_FALSE(status.ok()) << experts;
    EXPECT_TRUE(IsUsageError(status)) << status;
  }
  options.model = "/nonexistent";
  options.experts = "4";
  options.replicas = "";
  EXPECT_FALSE(IsUsageError(RunModelInspect(options)));
}

ModelVerification VerifyMini(const MiniCheckpoint& mini, const std::string& folder) {
  mini.Write(folder);
  const auto verification = VerifyModel(folder);
  EXPECT_TRUE(verification.ok()) << verification.status();
  return *verification;
}

TEST(ModelVerifyTest, FindsNothingInASoundFolder) {
  const TemporaryFolder folder;
  const ModelVerification verification = VerifyMini(MiniCheckpoint(), folder.path());
  EXPECT_THAT(verification.faults, IsEmpty());
  EXPECT_EQ(verification.num_files, 2);
  EXPECT_EQ(verification.num_tensors, 45);
  EXPECT_EQ(verification.num_sums_compared, 0);
}

TEST(ModelVerifyTest, CountsValuesThatAreNotFiniteAndNamesZeroMatrices) {
  for (const std::string dtype : {"BF16", "F16", "F32"}) {
    const TemporaryFolder folder;
    MiniCheckpoint mini;
    mini.dtype = dtype;
    mini.edit_tensors = [&](std::vector<MiniTensor>& tensors) {
      for (MiniTensor& tensor : tensors) {
        if (tensor.name == "model.norm.weight") {
          // All ones in the high bits of the first two elements: NaN.
          const size_t element = dtype == "F32" ? 4 : 2;
          for (size_t i = 0; i < 2 * element; ++i) tensor.bytes[i] = '\xFF';
        }
        if (tensor.name == "model.layers.0.self_attn.o_proj.weight") {
          tensor.bytes.assign(tensor.bytes.size(), '\0');
        }
      }
    };
    EXPECT_THAT(VerifyMini(mini, folder.path()).faults,
                ElementsAre(HasSubstr("model.layers.0.self_attn.o_proj.weight is all zeros"),
                            HasSubstr("model.norm.weight has 2 values that are NaN or infinite")));
  }
}

std::string Sum(const std::string& path) {
  const std::string bytes = ReadFileBytes(path);
  Sha256 sum;
  sum.Update(bytes.data(), bytes.size());
  return sum.HexDigest();
}

TEST(ModelVerifyTest, ComparesWithAManifest) {
  const TemporaryFolder folder;
  MiniCheckpoint mini;
  mini.Write(folder.path());
  const std::string first = folder.File("model-00001-of-00002.safetensors");
  const std::string second = folder.File("model-00002-of-00002.safetensors");
  WriteFile(folder.File("SHA256SUMS"),
            absl::StrCat(Sum(first), "  model-00001-of-00002.safetensors\n", Sum(second),
                         " *./model-00002-of-00002.safetensors\n"));
  const auto sound = VerifyModel(folder.path());
  ASSERT_TRUE(sound.ok()) << sound.status();
  EXPECT_EQ(sound->num_sums_compared, 2);
  EXPECT_THAT(sound->faults, IsEmpty());
  // One bit of the last tensor: only the sum can see it.
  std::string bytes = ReadFileBytes(second);
  bytes.back() ^= 1;
  WriteFile(second, bytes);
  const auto damaged = VerifyModel(folder.path());
  ASSERT_TRUE(damaged.ok()) << damaged.status();
  EXPECT_THAT(damaged->faults,
              ElementsAre(HasSubstr("model-00002-of-00002.safetensors: SHA-256 is")));
  EXPECT_NE(damaged->content_hash, sound->content_hash);
  WriteFile(folder.File("SHA256SUMS"), "nonsense\n");
  EXPECT_THAT(std::string(VerifyModel(folder.path()).status().message()),
              HasSubstr("SHA256SUMS: line 1"));
}

TEST(ModelVerifyTest, ComparesWithTheNameOfALinkedBlob) {
  const TemporaryFolder folder;
  MiniCheckpoint mini;
  mini.num_shards = 1;
  mini.Write(folder.File("m"));
  const std::string sum = Sum(folder.File("m/model.safetensors"));
  std::filesystem::rename(folder.File("m/model.safetensors"), folder.File(sum));
  std::filesystem::create_symlink("../" + sum, folder.File("m/model.safetensors"));
  const auto verification = VerifyModel(folder.File("m"));
  ASSERT_TRUE(verification.ok()) << verification.status();
  EXPECT_EQ(verification->num_sums_compared, 1);
  EXPECT_THAT(verification->faults, IsEmpty());
}

TEST(ModelVerifyTest, ReportsProgressToTheEnd) {
  uint64_t last = 0;
  uint64_t end = 0;
  ASSERT_TRUE(VerifyModel(Demo(), [&](uint64_t done, uint64_t total) {
                EXPECT_GE(done, last);
                last = done;
                end = total;
              }).ok());
  EXPECT_GT(last, 20'000'000u);
  EXPECT_LE(last, end);
}

TEST(ModelMakeTest, MakesWhatTheFlagsSay) {
  const TemporaryFolder folder;
  ModelMakeOptions options;
  options.out = folder.File("m");
  options.family = "deepseek_v3";
  options.experts = "16";
  options.groups = "4";
  options.kept_groups = "2";
  options.top_k = "4";
  options.layers = "3";
  options.shards = "2";
  options.quiet = true;
  ASSERT_TRUE(RunModelMake(options).ok());
  const auto checkpoint = Checkpoint::Open(folder.File("m"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->config().gate.num_groups, 4);
  EXPECT_EQ((*checkpoint)->config().num_layers, 3);
  EXPECT_EQ((*checkpoint)->directory().files().size(), 2u);
}

TEST(ModelMakeTest, RefusesFlagsThatCannotBeRead) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::function<void(ModelMakeOptions&)>& edit) {
    ModelMakeOptions options;
    options.out = folder.File("m");
    options.quiet = true;
    edit(options);
    const absl::Status status = RunModelMake(options);
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(std::filesystem::exists(folder.File("m")));
    return status;
  };
  EXPECT_TRUE(IsUsageError(refusal([](auto& o) { o.family = "llama"; })));
  EXPECT_TRUE(IsUsageError(refusal([](auto& o) { o.layers = "two"; })));
  EXPECT_TRUE(IsUsageError(refusal([](auto& o) { o.hidden = "0"; })));
  EXPECT_TRUE(IsUsageError(refusal([](auto& o) { o.seed = "-1"; })));
  EXPECT_TRUE(IsUsageError(refusal([](auto& o) { o.dtype = "fp4"; })));
  EXPECT_TRUE(IsUsageError(refusal([](auto& o) { o.weight_block = "128x128"; })));
  for (const char* block : {"128", "x128", "128x", "0x16", "16x-1", "99999999x1"}) {
    EXPECT_TRUE(IsUsageError(refusal([block](auto& o) {
      o.dtype = "fp8";
      o.weight_block = block;
    }))) << block;
  }
  // Sizes that contradict each other are the configuration's to refuse, by field.
  const absl::Status contradiction = refusal([](auto& o) { o.top_k = "9"; });
  EXPECT_TRUE(IsUsageError(contradiction));
  EXPECT_THAT(std::string(contradiction.message()), HasSubstr("num_experts_per_tok is 9"));
}

// A folder that `moebius model make` wrote in FP8.
void MakeFp8(const std::string& folder) {
  ModelMakeOptions options;
  options.out = folder;
  options.dtype = "fp8";
  options.weight_block = "48x40";
  options.quiet = true;
  const absl::Status made = RunModelMake(options);
  ASSERT_TRUE(made.ok()) << made;
}

TEST(ModelInspectTest, ShowsFp8WithItsBlocksAndBytes) {
  const TemporaryFolder folder;
  MakeFp8(folder.File("m"));
  const auto checkpoint = Checkpoint::Open(folder.File("m"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto inspection = InspectModel(**checkpoint, {});
  ASSERT_TRUE(inspection.ok()) << inspection.status();
  ASSERT_EQ(inspection->types.size(), 3u);
  EXPECT_THAT(FormatInspection(*inspection), HasSubstr("F8_E4M3 "));
  // An expert of width 32 and hidden size 64: codes, and 1 × 2 or 2 × 1 scales for each matrix.
  EXPECT_EQ(inspection->expert_stored_bytes, 3 * 32 * 64 + 3 * 2 * 4);
  EXPECT_THAT(FormatInspection(*inspection), HasSubstr(" in blocks of 48 × 40"));
  const auto json = Json::Parse(FormatInspectionJson(*inspection), "test");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->Find("weight_block_size")->elements()[1].integer(), 40);
  EXPECT_EQ(json->Find("numerics")->Find("dtype")->string(), "fp8");
}

TEST(ModelVerifyTest, CountsFp8CodesAndScalesThatAreNone) {
  const TemporaryFolder folder;
  MakeFp8(folder.File("m"));
  EXPECT_THAT(VerifyModel(folder.File("m"))->faults, IsEmpty());
  const std::string file = folder.File("m") + "/model.safetensors";
  const auto checkpoint = Checkpoint::Open(folder.File("m"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::string name = "model.layers.1.mlp.experts.0.up_proj.weight";
  std::string bytes = ReadFileBytes(file);
  const auto offset = [&](const std::string& tensor) {
    return (*checkpoint)->directory().Find(tensor)->info->file_offset;
  };
  bytes[offset(name) + 3] = '\x7F';
  bytes[offset(name) + 9] = '\xFF';
  bytes[offset(name + "_scale_inv") + 3] |= '\x80';  // negative
  WriteFile(file, bytes);
  EXPECT_THAT(VerifyModel(folder.File("m"))->faults,
              ElementsAre(HasSubstr(name + " has 2 values that are NaN or infinite"),
                          HasSubstr(name + "_scale_inv has 1 scales that are no positive number")));
}

TEST(ModelInspectTest, RefusesADtypeThatItDoesNotKnow) {
  ModelInspectOptions options;
  options.model = "unread";
  options.dtype = "f99";
  EXPECT_TRUE(IsUsageError(RunModelInspect(options)));
}

}  // namespace
}  // namespace moebius
