// SPDX-License-Identifier: Apache-2.0
#include "expert_service/server.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "expert_service/expert_participant.h"
#include "expert_service/metrics.h"
#include "expert_service/rpc/expert_rpc.h"
#include "moebius/base/clock.h"
#include "moebius/base/executor.h"
#include "moebius/base/host_memory.h"
#include "moebius/base/status.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/packed_cache.h"
#include "moebius/model/quantization.h"
#include "moebius/service/near_configs.h"
#include "moebius/service/participant_process.h"
#include "moebius/service/weight_report.h"

namespace moebius {
namespace {

class ExpertServer final : public ServiceServer, public ExpertControl {
 public:
  ExpertServer(const ExpertServerOptions& options, ProcessNotices& notices,
               std::unique_ptr<const Checkpoint> checkpoint)
      : options_(options),
        notices_(notices),
        checkpoint_(std::move(checkpoint)),
        executor_(options.config.num_threads),
        cache_({options.flags.packed_cache, options.flags.packed_cache_limit}),
        weights_(cache_),
        participant_(OptionsOfParticipant(), *checkpoint_, *options.config.kernels, &executor_,
                     Clock::Monotonic()),
        rpc_(*this),
        process_(OptionsOfProcess(), notices, participant_) {}

  ~ExpertServer() override {
    process_.Stop();
    participant_.Stop();
  }

  absl::Status Start() {
    if (options_.mock_delay.has_value()) {
      notices_.Log(absl::StrCat("MOCK: no weights are loaded; every dispatch is answered with ",
                                "zeros after ", absl::FormatDuration(*options_.mock_delay)));
    }
    return process_.Start([this](Transport& transport) { participant_.Bind(&transport); });
  }

  // --- ServiceServer
  Endpoints endpoints() const override { return process_.endpoints(); }

  void Drain(absl::Duration limit) override {
    if (!StopTaking(limit)) notices_.Log("some dispatches were not answered in time");
  }

  // --- ExpertControl
  ExpertDescription Describe() const override {
    const ExpertParticipantFigures figures = participant_.figures();
    ExpertDescription description;
    process_.Describe(&description);
    description.threads = executor_.num_threads();
    description.loaded_bytes = figures.weight_bytes;
    description.held = participant_.held();
    return description;
  }

  ComputedLoad Load() const override {
    const ModelConfig& config = checkpoint_->config();
    return ComputedLoadOf(participant_.figures().dispatches, config.moe_layers,
                          config.gate.num_experts);
  }

  absl::Status DrainWithin(absl::Duration timeout) override {
    if (StopTaking(timeout)) return absl::OkStatus();
    return absl::DeadlineExceededError("dispatches are under way; it goes on draining");
  }

 private:
  bool StopTaking(absl::Duration limit) {
    process_.SetDraining();
    process_.LeaveSlot();
    return participant_.Drain(limit);
  }

  ExpertParticipantOptions OptionsOfParticipant() {
    ExpertParticipantOptions participant;
    participant.mock_delay = options_.mock_delay;
    participant.memory = ReadHostMemory();
    participant.cache = &cache_;
    participant.on_progress = [this](int64_t loaded_bytes, int64_t total_bytes) {
      weights_.LogProgress(loaded_bytes, total_bytes, notices_);
    };
    participant.on_loaded = [this](const WeightLoadFigures& figures) {
      weights_.Log(figures, notices_);
    };
    participant.on_not_held = [this](const absl::Status& status) {
      notices_.LogOf(
          {"", "not held"},
          absl::StrCat("a router asked for experts that are not here: ", status.message()));
    };
    return participant;
  }

  ParticipantProcess::Options OptionsOfProcess() {
    ParticipantProcess::Options process;
    process.flags = options_.flags;
    process.config = options_.config;
    process.greeting = BuildGreeting(options_.flags, options_.config, *checkpoint_);
    process.near_configs = NearConfigsOf(checkpoint_->numerics(), checkpoint_->model_hash());
    process.dtype = FeedForwardWeightTypes(checkpoint_->match().parameters);
    process.limits = BuildClusterLimits(checkpoint_->config());
    process.write_metrics = [this](MetricWriter& writer) { WriteMetrics(writer); };
    process.admin_services = {&rpc_};
    return process;
  }

  void WriteMetrics(MetricWriter& writer) {
    const ExpertParticipantFigures figures = participant_.figures();
    writer.WriteGauge(Metric::kExpertsHeld, static_cast<double>(figures.num_held));
    writer.WriteGauge(Metric::kExpertWeightsResidentBytes,
                      static_cast<double>(figures.weight_bytes));
    weights_.WriteMetrics(writer);
    WriteDispatchMetrics(figures.dispatches, participant_.instruments(), writer);
  }

  // In the order of dependence; the end is the reverse.
  const ExpertServerOptions options_;
  ProcessNotices& notices_;
  const std::unique_ptr<const Checkpoint> checkpoint_;
  Executor executor_;
  PackedCache cache_;
  WeightReport weights_;
  ExpertParticipant participant_;
  ExpertRpc rpc_;
  ParticipantProcess process_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ServiceServer>> StartExpertServer(const ExpertServerOptions& options,
                                                                 ProcessNotices& notices) {
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<const Checkpoint> checkpoint,
                           OpenServiceModel(options.flags, options.config));
  auto server = std::make_unique<ExpertServer>(options, notices, std::move(checkpoint));
  MOEBIUS_RETURN_IF_ERROR(server->Start());
  return std::unique_ptr<ServiceServer>(std::move(server));
}

}  // namespace moebius
