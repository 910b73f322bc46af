// SPDX-License-Identifier: Apache-2.0
#include "node/reference_model.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/executor.h"
#include "moebius/model/checkpoint.h"

namespace moebius {
namespace {

using testing::HasSubstr;

class ReferenceSequenceTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto checkpoint =
        Checkpoint::Open(absl::StrCat(MOEBIUS_SOURCE_DIR, "/tests/golden/data/deepseek_v3"));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    auto model = ReferenceModel::Load(**checkpoint);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    for (int64_t i = 0; i < 40; ++i) token_ids_.push_back((i * 37 + 11) % 320);
  }

  Executor executor_{2};
  std::unique_ptr<const ReferenceModel> model_;
  std::vector<int64_t> token_ids_;
};

TEST_F(ReferenceSequenceTest, GivesTheSameBitsInPiecesAndAtOnce) {
  const auto whole = ForwardReference(*model_, executor_, token_ids_, {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->layers.size(), 2u);
  EXPECT_EQ(whole->layers[0].layer, 1);  // layer 0 is dense
  ReferenceSequence sequence(*model_, executor_);
  for (size_t begin = 0; begin < token_ids_.size(); begin += 7) {
    const auto piece =
        sequence.Append(absl::MakeConstSpan(token_ids_).subspan(begin, 7), /*rows=*/{});
    ASSERT_TRUE(piece.ok()) << piece.status();
    for (size_t i = 0; i < piece->rows.size(); ++i) {
      const int64_t row = static_cast<int64_t>(begin + i);
      EXPECT_EQ(piece->logits.rows().span(static_cast<int64_t>(i)), whole->logits.rows().span(row))
          << "token " << row;
    }
  }
  EXPECT_EQ(sequence.num_tokens(), 40);
}

TEST_F(ReferenceSequenceTest, KeepsTheLogitsOfTheWantedRowsAlone) {
  const auto whole = ForwardReference(*model_, executor_, token_ids_, {});
  const std::vector<int64_t> rows = {3, 17, 39};
  const auto some = ForwardReference(*model_, executor_, token_ids_, rows);
  ASSERT_TRUE(whole.ok() && some.ok());
  EXPECT_EQ(some->rows, rows);
  ASSERT_EQ(some->logits.num_rows(), 3);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(some->logits.rows().span(static_cast<int64_t>(i)),
              whole->logits.rows().span(rows[i]));
  }
}

TEST_F(ReferenceSequenceTest, RefusesWhatIsNoPromptAndAppendsNothing) {
  ReferenceSequence sequence(*model_, executor_);
  for (const int64_t id : {int64_t{-1}, int64_t{320}, int64_t{1} << 40}) {
    const auto refused = sequence.Append({7, id}, {});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.status().ToString(), HasSubstr(absl::StrCat("token 1 is ", id)));
  }
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>{2}, std::vector<int64_t>{-1}, std::vector<int64_t>{1, 1}}) {
    EXPECT_EQ(sequence.Append({7, 8}, rows).status().code(), absl::StatusCode::kInvalidArgument);
  }
  const std::vector<int64_t> too_long(513, 1);
  EXPECT_THAT(sequence.Append(too_long, {}).status().ToString(), HasSubstr("512 positions"));
  EXPECT_EQ(sequence.num_tokens(), 0);
}

}  // namespace
}  // namespace moebius
