// SPDX-License-Identifier: Apache-2.0
// moebius-router: owns requests and token rows; leads the expert and attention services that join.
#include "router_service/config.h"
#include "router_service/server.h"

namespace moebius {
namespace {

class RouterProgram final : public ServiceProgram {
 public:
  RouterProgram() : ServiceProgram(Role::kRouter) {}

  const char* examples() const override {
    return "moebius-router: answers requests with the expert and attention services that join it.\n"
           "\n"
           "  moebius-router --model models/demo --experts 4 --attention 2\n"
           "  moebius-router --model models/demo --listen 10.0.0.1:7410 --tls-ca ca.pem \\\n"
           "    --tls-cert router.pem --tls-key router.key\n"
           "\n"
           "Then, on this host or others, M and N times:\n"
           "  moebius-expert --model models/demo --join 127.0.0.1:7410\n"
           "  moebius-attention --model models/demo --join 127.0.0.1:7410";
  }

  void AddSettings(Settings* settings) override { AddRouterSettings(&router_, settings); }
  absl::Status Validate(const ServiceConfig&) override { return ValidateRouterFlags(router_); }

  absl::StatusOr<std::unique_ptr<ServiceServer>> Start(const ServiceConfig& config,
                                                       ProcessNotices& notices) override {
    return StartRouterServer({flags(), config, router_}, notices);
  }

 private:
  RouterFlags router_;
};

}  // namespace
}  // namespace moebius

int main(int argc, char** argv) {
  moebius::RouterProgram program;
  return moebius::RunService(program, argc, argv);
}
