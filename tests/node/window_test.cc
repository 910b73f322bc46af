// SPDX-License-Identifier: Apache-2.0
// Models with sliding windows or without a causal mask: the fast path beside the fp32 reference,
// which has an attention of its own.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/model/checkpoint.h"
#include "node/embedded.h"
#include "node/reference_model.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

constexpr int64_t kTokens = 150;  // five spans of 32

std::vector<int64_t> TokenIds() {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < kTokens; ++i) ids.push_back((i * 37 + 11) % 97);
  return ids;
}

// Writes a checkpoint with these windows, [] for none.
void WriteWindows(const std::string& folder, int64_t window, const char* layer_types) {
  MiniCheckpoint mini;
  mini.config.Set("max_position_embeddings", Json::Integer(512));
  if (window > 0) {
    mini.config.Set("sliding_window", Json::Integer(window));
    mini.config.Set("use_sliding_window", Json::Boolean(true));
    mini.config.Set("layer_types", *Json::Parse(layer_types, "test"));
  }
  mini.Write(folder);
}

absl::StatusOr<ForcedLogits> RunFast(const std::string& folder, int64_t chunk_rows) {
  EmbeddedOptions options;
  options.model_path = folder;
  options.span = 32;
  options.chunk_rows = chunk_rows;
  options.num_threads = 2;
  options.kv_budget_bytes = int64_t{16} << 20;
  auto node = EmbeddedNode::Open(options);
  EXPECT_TRUE(node.ok()) << node.status();
  return (*node)->TeacherForced(TokenIds());
}

RowBatch<float> FastLogits(const std::string& folder, int64_t chunk_rows) {
  auto forced = RunFast(folder, chunk_rows);
  EXPECT_TRUE(forced.ok()) << forced.status();
  return std::move(forced->logits);
}

RowBatch<float> ReferenceLogits(const std::string& folder) {
  const auto checkpoint = Checkpoint::Open(folder);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  auto model = ReferenceModel::Load(**checkpoint);
  EXPECT_TRUE(model.ok()) << model.status();
  Executor executor(2);
  auto forced = ForwardReference(**model, executor, TokenIds(), {});
  EXPECT_TRUE(forced.ok()) << forced.status();
  return std::move(forced->logits);
}

// The median row's root mean square difference, as a part of the logits' root mean square: rows
// whose experts flip do not count.
double Distance(FloatRows a, FloatRows b) {
  std::vector<double> rows;
  for (int64_t r = 0; r < a.num_rows; ++r) {
    double difference = 0, size = 0;
    for (int64_t c = 0; c < a.width; ++c) {
      difference += std::pow(double{a.row(r)[c]} - double{b.row(r)[c]}, 2);
      size += std::pow(double{b.row(r)[c]}, 2);
    }
    rows.push_back(std::sqrt(difference / size));
  }
  std::nth_element(rows.begin(), rows.begin() + rows.size() / 2, rows.end());
  return rows[rows.size() / 2];
}

TEST(WindowTest, TheFastPathFollowsTheReference) {
  TemporaryFolder full;
  WriteWindows(full.path(), 0, "");
  const RowBatch<float> without = ReferenceLogits(full.path());
  for (const char* layers : {"[\"sliding_attention\", \"sliding_attention\"]",
                             "[\"full_attention\", \"sliding_attention\"]"}) {
    SCOPED_TRACE(layers);
    TemporaryFolder folder;
    WriteWindows(folder.path(), 8, layers);
    const RowBatch<float> reference = ReferenceLogits(folder.path());
    const RowBatch<float> fast = FastLogits(folder.path(), 0);
    EXPECT_LT(Distance(fast.rows(), reference.rows()), 0.02);
    EXPECT_GT(Distance(without.rows(), reference.rows()), 0.1);  // else the window is dropped
    const RowBatch<float> chunked = FastLogits(folder.path(), 7);
    for (int64_t r = 0; r < kTokens; ++r) {
      EXPECT_EQ(fast.rows().span(r), chunked.rows().span(r)) << "row " << r;
    }
  }
}

TEST(WholePromptTest, TheFastPathFollowsTheReferenceAndCutsNoPrompt) {
  TemporaryFolder causal, whole;
  WriteWindows(causal.path(), 0, "");
  MiniCheckpoint mini;
  mini.config.Set("max_position_embeddings", Json::Integer(512));
  mini.config.Set("is_causal", Json::Boolean(false));
  mini.Write(whole.path());
  const RowBatch<float> reference = ReferenceLogits(whole.path());
  EXPECT_LT(Distance(FastLogits(whole.path(), 0).rows(), reference.rows()), 0.02);
  EXPECT_GT(Distance(ReferenceLogits(causal.path()).rows(), reference.rows()), 0.1);
  const absl::Status refused = RunFast(whole.path(), kTokens - 1).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("goes in one step"), absl::string_view::npos) << refused;
}

}  // namespace
}  // namespace moebius
