// SPDX-License-Identifier: Apache-2.0
// moebius-expert: the feed-forward weights of a share of the experts, for routers of a cluster.
#include <limits>

#include "expert_service/server.h"

namespace moebius {
namespace {

class ExpertProgram final : public ServiceProgram {
 public:
  ExpertProgram() : ServiceProgram(Role::kExpert) {}

  const char* examples() const override {
    return "moebius-expert: computes a share of a model's experts for the routers that it joins.\n"
           "\n"
           "  moebius-expert --model models/demo --join 127.0.0.1:7700\n"
           "  moebius-expert --model models/demo --join 10.0.0.1:7410 --join 10.0.0.2:7410\n"
           "  moebius-expert --model models/demo --join 127.0.0.1:7700 --mock --mock-delay-us 200";
  }

  void AddSettings(Settings* settings) override {
    settings->AddSwitch({"Measuring", "mock", "", "Load no weights; answer zeros"}, &mock_);
    settings->AddInteger(
        {"Measuring", "mock-delay-us", "N", "With --mock: what a dispatch takes, in µs"}, 0,
        std::numeric_limits<int32_t>::max(), &mock_delay_us_);
  }

  absl::Status Validate(const ServiceConfig&) override {
    if (mock_delay_us_ == 0 || mock_) return absl::OkStatus();
    return absl::InvalidArgumentError("--mock-delay-us is nothing without --mock");
  }

  absl::StatusOr<std::unique_ptr<ServiceServer>> Start(const ServiceConfig& config,
                                                       ProcessNotices& notices) override {
    ExpertServerOptions options;
    options.flags = flags();
    options.config = config;
    if (mock_) options.mock_delay = absl::Microseconds(mock_delay_us_);
    return StartExpertServer(options, notices);
  }

 private:
  bool mock_ = false;
  int64_t mock_delay_us_ = 0;
};

}  // namespace
}  // namespace moebius

int main(int argc, char** argv) {
  moebius::ExpertProgram program;
  return moebius::RunService(program, argc, argv);
}
