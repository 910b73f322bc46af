// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>
#include <utility>

#include "gtest/gtest.h"

#include "moebius/base/check.h"
#include "moebius/transport/grpc/grpc_provider.h"
#include "tests/attention_service/rank_links.h"

namespace moebius::testing {
namespace {

RankLinks Grpc() {
  const auto make = [](Reactor&) -> std::unique_ptr<LinkProvider> {
    GrpcOptions options;
    options.max_polling_threads = 1;  // as in services
    auto provider = GrpcLinkProvider::Make(options, std::nullopt);
    MOEBIUS_CHECK(provider.ok());
    return *std::move(provider);
  };
  return {"grpc", make};
}

INSTANTIATE_TEST_SUITE_P(Grpc, RankLinksTest, ::testing::Values(Grpc()));

}  // namespace
}  // namespace moebius::testing
