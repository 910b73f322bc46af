// SPDX-License-Identifier: Apache-2.0
#include "router_service/router_core.h"

#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "moebius/attention/session_spans.h"
#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/model/config_parser.h"
#include "router_service/attention_rule.h"
#include "router_service/metrics.h"
#include "router_service/remote_attention.h"
#include "router_service/remote_experts.h"

namespace moebius {
namespace {

// How often an idle lead looks at deadlines and at readers that are behind.
constexpr absl::Duration kIdleWait = absl::Milliseconds(50);
// The canary's step and session; the lead counts steps from the next one.
constexpr uint64_t kCoreCanaryStep = 0;
constexpr SessionId kCanarySession{~uint64_t{0} >> 1};

KvPool PoolOfRanks(const Roster& roster, const SpanGeometry& geometry) {
  std::vector<KvPool> pools;
  for (const Member& member : roster.members()) {
    if (member.role != Role::kAttention) continue;
    KvPool pool;
    pool.block_tokens = member.slot.ready.kv_block_tokens;
    pool.num_blocks = member.slot.ready.kv_num_blocks;
    pools.push_back(pool);
  }
  return SharedKvPool(pools, geometry);
}

}  // namespace

PlacementShape BuildPlacementShape(const ModelConfig& config) {
  return PlacementShape::Make(config.gate.num_experts, config.moe_layers, config.num_shared_experts,
                              config.NumDenseSlices());
}

absl::StatusOr<Placement> BuildServicePlacement(const ModelConfig& config, int64_t num_experts,
                                                int64_t replicas) {
  if (num_experts < 1 || num_experts > kMaxSlots || replicas < 1 || replicas > num_experts) {
    return absl::InvalidArgumentError(
        absl::StrCat(replicas, " replicas on ", num_experts, " expert services"));
  }
  StaticPlacementOptions options;
  options.num_services = static_cast<int32_t>(num_experts);
  options.expert_replicas = static_cast<int32_t>(replicas);
  return Placement::Static(BuildPlacementShape(config), options);
}

class RouterCore::Impl {
 public:
  Impl(const Parts& parts, const RouterCoreOptions& options)
      : parts_(parts),
        experts_(ExpertOptions(), *parts.placement, parts.transport, parts.roster, *parts.clock),
        attention_(AttentionOptions(options), *parts.transport, *parts.roster, *parts.clock),
        rows_(PipelineParts(options)),
        lead_options_(OptionsOfLead(options)),
        lead_(lead_options_, &rows_, parts.executor, parts.tokenizer, *parts.clock) {
    if (parts.log != nullptr) lead_.SetLog(parts.log);
    lead_.SetTracing(parts.tracing);
    lead_.SetOnSlowStep(parts.on_slow_step);
  }

  ~Impl() {
    experts_.Shutdown();
    lead_.Shutdown();
    if (stepping_thread_.joinable()) stepping_thread_.join();
  }

  absl::Status RunCanary() {
    StepRequest request;
    request.plan.step = kCoreCanaryStep;
    request.plan.num_rows = 1;
    SessionRows row;
    row.session = kCanarySession;
    row.num_rows = 1;
    row.prompt_length = 1;
    request.plan.sessions = {row};
    request.token_ids = {0};
    request.logit_rows = {0};
    request.purpose = StepPurpose::kDryRun;  // nobody's load
    StepResult result;
    absl::Status status = rows_.RunStep(request, &result);
    rows_.EndSession(kCanarySession);
    return status;
  }

  void StartStepping() {
    stepping_thread_ = std::thread([this] {
      while (!lead_.is_shut_down()) {
        if (!lead_.RunOneStep()) lead_.WaitForWork(kIdleWait);
      }
    });
  }

  Lead& lead() { return lead_; }
  RowPipeline& rows() { return rows_; }
  const LeadOptions& lead_options() const { return lead_options_; }
  void WriteMetrics(MetricWriter& writer) const {
    WriteLeadMetrics(lead_, writer);
    experts_.WriteMetrics(writer);
  }

 private:
  RemoteExpertsOptions ExpertOptions() const {
    RemoteExpertsOptions options;
    options.hidden_size = parts_.checkpoint->config().hidden_size;
    return options;
  }

  RemoteAttention::Options AttentionOptions(const RouterCoreOptions& core) const {
    static_assert(kSegmentBlocks == SessionSpans::kSegmentBlocks);
    const NumericsConfig& numerics = parts_.checkpoint->numerics();
    RemoteAttention::Options options;
    options.num_ranks = core.num_attention;
    options.hidden_size = parts_.checkpoint->config().hidden_size;
    const bool is_causal = parts_.checkpoint->config().attention.is_causal;
    options.geometry =
        SpanGeometry(numerics.span, numerics.key_block, *ParseAttentionSum(numerics.attention_sum),
                     core.num_attention, *ParseAttentionLayout(numerics.attention_layout),
                     is_causal ? PromptMask::kCausal : PromptMask::kWhole);
    options.pool = PoolOfRanks(*parts_.roster, options.geometry);
    options.term = core.term;
    options.method.forced = core.attention_method;
    if (core.rank_rates.has_value()) options.method.rates = *core.rank_rates;
    options.method.heads = HeadsOf(parts_.checkpoint->config().attention);
    return options;
  }

  RowPipeline::Parts PipelineParts(const RouterCoreOptions& core) {
    RowPipeline::Parts parts;
    parts.config = &parts_.checkpoint->config();
    parts.numerics = &parts_.checkpoint->numerics();
    parts.weights = parts_.weights;
    parts.kernels = parts_.kernels;
    parts.executor = parts_.executor;
    parts.attention = &attention_;
    parts.experts = &experts_;
    parts.placement = parts_.placement;
    parts.max_rows_per_service = core.row_budget;  // what each service has room for
    parts.load = parts_.load;
    parts.capacity = core.capacity;
    parts.biases = parts_.biases;
    return parts;
  }

  LeadOptions OptionsOfLead(const RouterCoreOptions& core) const {
    LeadOptions options = BuildLeadOptions(*parts_.checkpoint, core.row_budget, core.chunk_rows);
    options.slow_step = core.slow_step;
    options.first_step = kCoreCanaryStep + 1;
    options.capacity = core.capacity;
    if (options.per_degree.num_ranks > 0) options.per_degree.num_ranks = core.num_attention;
    return options;
  }

  const Parts parts_;
  RemoteExperts experts_;
  RemoteAttention attention_;
  RowPipeline rows_;
  const LeadOptions lead_options_;
  Lead lead_;
  std::thread stepping_thread_;
};

RouterCore::RouterCore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RouterCore::~RouterCore() = default;

absl::StatusOr<std::unique_ptr<RouterCore>> RouterCore::Start(const Parts& parts,
                                                              const RouterCoreOptions& options) {
  auto impl = std::make_unique<Impl>(parts, options);
  if (const absl::Status canary = impl->RunCanary(); !canary.ok()) {
    return WithContext(canary, "the canary token");
  }
  impl->StartStepping();
  return std::unique_ptr<RouterCore>(new RouterCore(std::move(impl)));
}

Lead& RouterCore::lead() { return impl_->lead(); }
RowPipeline& RouterCore::rows() { return impl_->rows(); }
const LeadOptions& RouterCore::lead_options() const { return impl_->lead_options(); }
void RouterCore::WriteMetrics(MetricWriter& writer) const { impl_->WriteMetrics(writer); }

}  // namespace moebius
