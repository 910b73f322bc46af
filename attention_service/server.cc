// SPDX-License-Identifier: Apache-2.0
#include "attention_service/server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "attention_service/attention_participant.h"
#include "attention_service/attention_pipeline.h"
#include "attention_service/attention_weights.h"
#include "attention_service/exchange_shape.h"
#include "attention_service/metrics.h"
#include "attention_service/rpc/attention_rpc.h"
#include "moebius/base/clock.h"
#include "moebius/base/error.h"
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

// A rank that drains goes when it has had no session at so many looks.
constexpr int kIdleLooks = 5;
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(50);

class AttentionServer final : public ServiceServer, public AttentionControl {
 public:
  AttentionServer(const AttentionServerOptions& options, ProcessNotices& notices,
                  std::unique_ptr<const Checkpoint> checkpoint)
      : options_(options),
        notices_(notices),
        checkpoint_(std::move(checkpoint)),
        executor_(options.config.num_threads),
        cache_({options.flags.packed_cache, options.flags.packed_cache_limit}),
        weights_(cache_),
        kv_budget_bytes_(options.kv_budget_bytes > 0 ? options.kv_budget_bytes
                                                     : DefaultKvBudgetBytes(ReadHostMemory())),
        participant_(
            {.checkpoint = checkpoint_.get(),
             .kernels = options.config.kernels,
             .executor = &executor_,
             .kv_budget_bytes = kv_budget_bytes_,
             .mock_delay = options.mock_delay,
             .measures_kernel = true,
             .cache = &cache_,
             .on_progress =
                 [this](int64_t loaded_bytes, int64_t total_bytes) {
                   weights_.LogProgress(loaded_bytes, total_bytes, notices_);
                 },
             .on_loaded =
                 [this](const WeightLoadFigures& figures) { weights_.Log(figures, notices_); }}),
        rpc_(*this),
        process_(OptionsOfProcess(), notices, participant_) {}

  ~AttentionServer() override {
    process_.Stop();
    participant_.Unload();
  }

  absl::Status Start() {
    // What no slot can mend: better said at once than after each one.
    const absl::Status room = AttentionPipeline::CheckKvBudget(
        AttentionFactsOf(*checkpoint_), *options_.config.kernels, kv_budget_bytes_);
    if (!room.ok()) {
      return WithHint(room, absl::StrCat(HintOf(room),
                                         " for this rank; moebius serve divides its --kv-budget "
                                         "among the ranks"));
    }
    if (options_.mock_delay.has_value()) {
      notices_.Log(absl::StrCat("MOCK: no weights are loaded; every layer is answered with zeros ",
                                "after ", absl::FormatDuration(*options_.mock_delay)));
    }
    return process_.Start([this](Transport& transport) { participant_.SetTransport(transport); });
  }

  // --- ServiceServer
  Endpoints endpoints() const override { return process_.endpoints(); }
  // The router begins no session from now on; those that have keys here go on until they end.
  void Drain(absl::Duration limit) override {
    process_.SetDraining();
    process_.LeaveSlot();
    const absl::Duration end = Clock::Monotonic().Now() + limit;
    // What the router took before it heard of this may begin between two looks.
    for (int idle_looks = 0; idle_looks < kIdleLooks;
         idle_looks = HasSessions() ? 0 : idle_looks + 1) {
      if (Clock::Monotonic().Now() >= end) {
        notices_.Log("some sessions have not ended in time: their keys are lost");
        return;
      }
      absl::SleepFor(kBetweenLooks);
    }
  }

  // --- AttentionControl
  AttentionDescription Describe() const override {
    AttentionDescription description;
    process_.Describe(&description);
    description.threads = executor_.num_threads();
    description.loaded_bytes = process_.join_state().loaded_bytes;
    if (const auto figures = participant_.figures()) {
      description.kv_block_tokens = figures->kv.block_tokens;
      description.kv_num_blocks = figures->kv.num_blocks;
      description.kv_used_blocks = figures->kv.used_blocks;
      description.sessions = figures->kv.num_sessions;
    }
    return description;
  }

 private:
  bool HasSessions() const {
    const auto figures = participant_.figures();
    return figures.has_value() && figures->kv.num_sessions > 0;
  }

  ParticipantProcess::Options OptionsOfProcess() {
    ParticipantProcess::Options process;
    process.flags = options_.flags;
    process.config = options_.config;
    process.greeting = BuildGreeting(options_.flags, options_.config, *checkpoint_);
    process.near_configs = NearConfigsOf(checkpoint_->numerics(), checkpoint_->model_hash());
    process.limits = ExchangeShape::Of(AttentionFactsOf(*checkpoint_), 1, kMaxRowBudget)
                         .Widen(BuildClusterLimits(checkpoint_->config()));
    process.dtype = AttentionWeightTypes(checkpoint_->match().parameters);
    process.write_metrics = [this](MetricWriter& writer) {
      weights_.WriteMetrics(writer);
      const auto figures = participant_.figures();
      if (!figures.has_value()) return;
      WriteKvMetrics(figures->kv, writer);
      WriteShardMetrics(figures->shard, writer);
    };
    process.admin_services = {&rpc_};
    return process;
  }

  // In the order of dependence; the end is the reverse.
  const AttentionServerOptions options_;
  ProcessNotices& notices_;
  const std::unique_ptr<const Checkpoint> checkpoint_;
  Executor executor_;
  PackedCache cache_;
  WeightReport weights_;
  const int64_t kv_budget_bytes_;
  AttentionParticipant participant_;
  AttentionRpc rpc_;
  ParticipantProcess process_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ServiceServer>> StartAttentionServer(
    const AttentionServerOptions& options, ProcessNotices& notices) {
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<const Checkpoint> checkpoint,
                           OpenServiceModel(options.flags, options.config));
  auto server = std::make_unique<AttentionServer>(options, notices, std::move(checkpoint));
  MOEBIUS_RETURN_IF_ERROR(server->Start());
  return std::unique_ptr<ServiceServer>(std::move(server));
}

}  // namespace moebius
