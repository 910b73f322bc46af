// SPDX-License-Identifier: Apache-2.0
// A model in FP8 with block scales, shaped as DeepSeek-V3: the bits of one process, of clusters and
// of every tier, beside the dequantised reference.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/base/executor.h"
#include "moebius/kernels/tier.h"
#include "moebius/model/random_checkpoint.h"
#include "node/reference_model.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

// Blocks that fit nothing: not the heads of kv_b, nor the slices of dense and shared FFNs.
RandomCheckpointOptions SmallFp8() {
  RandomCheckpointOptions options;
  options.num_layers = 3;
  options.hidden_size = 104;
  options.moe_intermediate_size = 56;
  options.dense_intermediate_size = 150;
  options.num_shared_experts = 2;
  options.num_groups = 2;
  options.num_kept_groups = 1;
  options.head_dim = 20;
  options.span = 64;
  options.dtype = DType::kF8E4M3;
  options.block_rows = 48;
  options.block_columns = 40;
  options.seed = 5;
  return options;
}

class Fp8ClusterTest : public testing::Test {
 protected:
  Fp8ClusterTest() {
    const absl::Status written = WriteRandomCheckpoint(folder_.File("model"), SmallFp8());
    EXPECT_TRUE(written.ok()) << written;
  }

  std::unique_ptr<EmbeddedNode> Open(std::optional<Tier> tier = std::nullopt) const {
    EmbeddedOptions options;
    options.model_path = folder_.File("model");
    options.tier = tier;
    options.num_threads = 2;
    options.kv_budget_bytes = int64_t{16} << 20;
    auto node = EmbeddedNode::Open(options);
    EXPECT_TRUE(node.ok()) << node.status();
    return node.ok() ? *std::move(node) : nullptr;
  }

  // A prompt over two spans, and generated rows in the absorbed form.
  static GenerateRequest Request() {
    GenerateRequest request;
    for (int64_t i = 0; i < 70; ++i) request.token_ids.push_back((i * 37 + 11) % 256);
    request.max_tokens = 12;
    return request;
  }

  TemporaryFolder folder_;
};

TEST_F(Fp8ClusterTest, SevenProcessesGiveTheBitsOfOne) {
  const auto node = Open();
  ASSERT_NE(node, nullptr);
  const CaseAnswer alone = Ask(*node, Request());
  EXPECT_TRUE(alone.exact);
  LocalClusterOptions options;
  options.model_path = folder_.File("model");
  options.num_experts = 4;
  options.num_attention = 2;
  const auto cluster = LocalCluster::Make(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const CaseAnswer shared = AskCluster(**cluster, Request());
  EXPECT_EQ(shared.token_ids, alone.token_ids);
  EXPECT_EQ(shared.logits_hash, alone.logits_hash);
  EXPECT_TRUE(shared.exact);
}

TEST_F(Fp8ClusterTest, EveryTierGivesTheSameBits) {
  const auto best = Open();
  ASSERT_NE(best, nullptr);
  const CaseAnswer expected = Ask(*best, Request());
  for (const Tier tier : HostTiers()) {
    const auto node = Open(tier);
    ASSERT_NE(node, nullptr);
    EXPECT_EQ(Ask(*node, Request()).logits_hash, expected.logits_hash) << TierName(tier);
  }
}

TEST_F(Fp8ClusterTest, IsCloseToTheDequantisedReference) {
  const auto node = Open();
  ASSERT_NE(node, nullptr);
  const GenerateRequest request = Request();
  const std::vector<int64_t> rows = {0, 31, 69};
  const auto fast = node->TeacherForced(request.token_ids, rows);
  ASSERT_TRUE(fast.ok()) << fast.status();
  CheckpointOptions as_stored;
  as_stored.reads_as_stored = true;
  const auto checkpoint = Checkpoint::Open(folder_.File("model"), as_stored);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  Executor executor(2);
  const auto model = ReferenceModel::Load(**checkpoint);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto slow = ForwardReference(**model, executor, request.token_ids, rows);
  ASSERT_TRUE(slow.ok()) << slow.status();
  for (int64_t r = 0; r < static_cast<int64_t>(rows.size()); ++r) {
    double error = 0;
    double size = 0;
    for (int64_t n = 0; n < fast->logits.width(); ++n) {
      const double reference = slow->logits.rows().row(r)[n];
      error += std::pow(fast->logits.rows().row(r)[n] - reference, 2);
      size += reference * reference;
    }
    // Activations are rounded to bf16 some dozen times; weights are the same numbers.
    EXPECT_LT(std::sqrt(error / size), 0.05) << r;
  }
}

}  // namespace
}  // namespace moebius
