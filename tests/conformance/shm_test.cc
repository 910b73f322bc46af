// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "gtest/gtest.h"

#include "moebius/base/check.h"
#include "moebius/transport/shm/shm_provider.h"
#include "tests/conformance/transport_world.h"

namespace moebius {
namespace {

class ShmMedium final : public Medium {
 public:
  ShmMedium() {
    ShmOptions options;
    options.max_payload_bytes = 64 << 10;
    // A thousand of the peers of a test are silent.
    options.max_connections = 2048;
    auto provider = ShmLinkProvider::Make(options);
    MOEBIUS_CHECK(provider.ok());
    provider_ = *std::move(provider);
  }
  LinkProvider& provider() override { return *provider_; }
  bool takes_real_time() const override { return true; }

 private:
  std::unique_ptr<ShmLinkProvider> provider_;
};

MediumFactory Shm() {
  return {"shm", [](Reactor&) { return std::make_unique<ShmMedium>(); }};
}

INSTANTIATE_TEST_SUITE_P(Shm, TransportConformance, ::testing::Values(Shm()));

}  // namespace
}  // namespace moebius
