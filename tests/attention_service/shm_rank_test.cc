// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "gtest/gtest.h"

#include "moebius/base/check.h"
#include "moebius/transport/shm/shm_provider.h"
#include "tests/attention_service/rank_links.h"

namespace moebius::testing {
namespace {

RankLinks Shm() {
  const auto make = [](Reactor&) -> std::unique_ptr<LinkProvider> {
    auto provider = ShmLinkProvider::Make({});
    MOEBIUS_CHECK(provider.ok());
    return *std::move(provider);
  };
  return {"shm", make};
}

INSTANTIATE_TEST_SUITE_P(Shm, RankLinksTest, ::testing::Values(Shm()));

}  // namespace
}  // namespace moebius::testing
