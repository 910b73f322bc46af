// SPDX-License-Identifier: Apache-2.0
// moebius-attention: the attention weights and a share of the KV cache, for the router of a
// cluster.
#include <limits>

#include "attention_service/server.h"

namespace moebius {
namespace {

class AttentionProgram final : public ServiceProgram {
 public:
  AttentionProgram() : ServiceProgram(Role::kAttention) {}

  const char* examples() const override {
    return "moebius-attention: keeps a share of the KV cache for the router that it joins.\n"
           "\n"
           "  moebius-attention --model models/demo --join 127.0.0.1:7700\n"
           "  moebius-attention --model models/demo --join 127.0.0.1:7700 --kv-budget 512MiB\n"
           "  moebius-attention --model models/demo --join 127.0.0.1:7700 --mock "
           "--mock-delay-us 200";
  }

  void AddSettings(Settings* settings) override {
    settings->AddBytes({"Machine", "kv-budget", "BYTES",
                        "Memory of the KV pool; 0: a quarter of what this process may use"},
                       &kv_budget_bytes_);
    settings->AddSwitch(
        {"Measuring", "mock", "", "Load no weights; answer zeros; all ranks or none"}, &mock_);
    settings->AddInteger(
        {"Measuring", "mock-delay-us", "N", "With --mock: what each layer takes, in µs"}, 0,
        std::numeric_limits<int32_t>::max(), &mock_delay_us_);
  }

  absl::Status Validate(const ServiceConfig&) override {
    if (mock_delay_us_ == 0 || mock_) return absl::OkStatus();
    return absl::InvalidArgumentError("--mock-delay-us is nothing without --mock");
  }

  absl::StatusOr<std::unique_ptr<ServiceServer>> Start(const ServiceConfig& config,
                                                       ProcessNotices& notices) override {
    AttentionServerOptions options;
    options.flags = flags();
    options.config = config;
    options.kv_budget_bytes = kv_budget_bytes_;
    if (mock_) options.mock_delay = absl::Microseconds(mock_delay_us_);
    return StartAttentionServer(options, notices);
  }

 private:
  int64_t kv_budget_bytes_ = 0;
  bool mock_ = false;
  int64_t mock_delay_us_ = 0;
};

}  // namespace
}  // namespace moebius

int main(int argc, char** argv) {
  moebius::AttentionProgram program;
  return moebius::RunService(program, argc, argv);
}
