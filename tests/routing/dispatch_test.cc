// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/dispatch.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A dispatch as a frame would carry it: rows 1 and 4, experts 3 and 0 joined, then 3 alone.
struct Arrays {
  std::vector<int32_t> row_ids = {1, 4};
  std::vector<int64_t> row_begin = {0, 2, 3};
  std::vector<int32_t> expert_ids = {3, 0, 3};
  std::vector<float> weights = {0.5f, 0.25f, 0.125f};
  std::vector<uint8_t> joins = {0, 1, 0};

  ServiceDispatch view() const {
    ServiceDispatch dispatch;
    dispatch.row_ids = row_ids;
    dispatch.row_begin = row_begin;
    dispatch.expert_ids = expert_ids;
    dispatch.weights = weights;
    dispatch.joins_previous = joins;
    return dispatch;
  }
};

TEST(DispatchOrderTest, DerivesTheSameOrderFromWhatTravels) {
  const Arrays arrays;
  ServiceDispatch dispatch = arrays.view();
  ASSERT_TRUE(ValidateServiceDispatch(dispatch, 5, 4).ok());
  DispatchOrder order;
  order.Derive(4, dispatch);
  EXPECT_THAT(dispatch.experts,
              ElementsAre(ExpertSegment{ExpertId(0), 0, 1}, ExpertSegment{ExpertId(3), 1, 3}));
  EXPECT_THAT(dispatch.expert_rows, ElementsAre(1, 1, 4));
  EXPECT_THAT(dispatch.expert_position, ElementsAre(1, 0, 2));
  EXPECT_EQ(dispatch.num_reply_rows, 2);
}

TEST(DispatchOrderTest, ADispatchWithoutRowsHasNoExperts) {
  Arrays arrays;
  arrays = Arrays{{}, {0}, {}, {}, {}};
  ServiceDispatch dispatch = arrays.view();
  ASSERT_TRUE(ValidateServiceDispatch(dispatch, 0, 4).ok());
  DispatchOrder order;
  order.Derive(4, dispatch);
  EXPECT_TRUE(dispatch.experts.empty());
  EXPECT_EQ(dispatch.num_reply_rows, 0);
}

TEST(ServiceDispatchTest, RefusesWhatAFrameMayNotSay) {
  const auto refusal = [](const std::function<void(Arrays&)>& change) {
    Arrays arrays;
    change(arrays);
    const absl::Status status = ValidateServiceDispatch(arrays.view(), 5, 4);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](Arrays& a) { a.weights.pop_back(); }), HasSubstr("2 weights"));
  EXPECT_THAT(refusal([](Arrays& a) { a.joins.push_back(0); }), HasSubstr("4 joins"));
  EXPECT_THAT(refusal([](Arrays& a) { a.row_begin.pop_back(); }), HasSubstr("one offset more"));
  EXPECT_THAT(refusal([](Arrays& a) { a.row_begin.clear(); }), HasSubstr("one offset more"));
  EXPECT_THAT(refusal([](Arrays& a) { a.row_begin[0] = 1; }), HasSubstr("offsets run from 1"));
  EXPECT_THAT(refusal([](Arrays& a) { a.row_begin[2] = 4; }), HasSubstr("to 4, not"));
  EXPECT_THAT(refusal([](Arrays& a) { a.row_begin[1] = 3; }), HasSubstr("from 3 to 3"));
  EXPECT_THAT(refusal([](Arrays& a) { a.row_begin[1] = -1; }), HasSubstr("from 0 to -1"));
  EXPECT_THAT(refusal([](Arrays& a) { a.row_begin[1] = int64_t{1} << 40; }),
              HasSubstr("from 1099"));
  EXPECT_THAT(refusal([](Arrays& a) { a.row_ids[1] = 5; }), HasSubstr("row 5 is not in [0, 5)"));
  EXPECT_THAT(refusal([](Arrays& a) { a.row_ids[0] = -1; }), HasSubstr("row -1"));
  EXPECT_THAT(refusal([](Arrays& a) { a.row_ids[1] = 1; }), HasSubstr("row 1 follows row 1"));
  EXPECT_THAT(refusal([](Arrays& a) { a.expert_ids[2] = 4; }), HasSubstr("expert 4 of row 4"));
  EXPECT_THAT(refusal([](Arrays& a) { a.expert_ids[2] = -1; }), HasSubstr("expert -1"));
  EXPECT_THAT(refusal([](Arrays& a) { a.expert_ids[1] = 3; }), HasSubstr("expert 3 twice"));
  EXPECT_THAT(refusal([](Arrays& a) { a.weights[1] = std::numeric_limits<float>::infinity(); }),
              HasSubstr("not finite"));
  EXPECT_THAT(refusal([](Arrays& a) { a.joins[0] = 1; }), HasSubstr("join 1 at expert 3"));
  EXPECT_THAT(refusal([](Arrays& a) { a.joins[1] = 2; }), HasSubstr("join 2"));
}

}  // namespace
}  // namespace moebius
