// SPDX-License-Identifier: Apache-2.0
#include "node/embedded.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "attention_service/attention_pipeline.h"
#include "expert_service/expert_pipeline.h"
#include "moebius/base/clock.h"
#include "moebius/base/error.h"
#include "moebius/base/executor.h"
#include "moebius/base/hash.h"
#include "moebius/base/host_memory.h"
#include "moebius/base/status.h"
#include "moebius/kernels/kernels.h"
#include "moebius/model/checkpoint.h"
#include "moebius/placement/placement.h"
#include "node/direct_ports.h"
#include "node/forced_run.h"
#include "node/weight_bytes.h"
#include "router_service/expert_load.h"
#include "router_service/lead.h"
#include "router_service/lead_front.h"
#include "router_service/metrics.h"
#include "router_service/request_log.h"
#include "router_service/row_pipeline.h"

namespace moebius {
namespace {

// How often an idle lead looks at deadlines and at readers that are behind.
constexpr absl::Duration kIdleWait = absl::Milliseconds(50);
// Steps between two moments at which others get the executor: handing it over takes as long as a
// layer of a small model.
constexpr int kStepsPerBody = 16;

absl::StatusOr<const Kernels*> ChooseKernels(std::optional<Tier> tier) {
  if (!tier.has_value()) return &BestKernels();
  if (const Kernels* kernels = FindKernels(*tier)) return kernels;
  std::string reason;
  for (const TierReport& report : TierReports()) {
    if (report.tier == *tier) reason = report.reason;
  }
  return AsHostError(WithHint(absl::FailedPreconditionError(absl::StrCat(
                                  "tier ", TierName(*tier), " cannot run on this host: ", reason)),
                              "leave the choice to Moebius; all tiers give the same bits"));
}

absl::StatusOr<std::unique_ptr<const Checkpoint>> OpenCheckpoint(const EmbeddedOptions& options) {
  CheckpointOptions checkpoint_options;
  checkpoint_options.config_file = options.config_file;
  checkpoint_options.convert_to_bf16 = options.convert_to_bf16;
  checkpoint_options.numerics.span = options.span;
  checkpoint_options.numerics.group_fill = options.group_fill;
  checkpoint_options.numerics.attention_sum = options.attention_sum;
  checkpoint_options.numerics.attention_layout = options.attention_layout;
  return Checkpoint::Open(options.model_path, checkpoint_options);
}

absl::StatusOr<Placement> MakePlacement(const ModelConfig& config, int num_services) {
  const PlacementShape shape =
      PlacementShape::Make(config.gate.num_experts, config.moe_layers, config.num_shared_experts,
                           config.NumDenseSlices());
  if (num_services == 1) return Placement::SingleService(shape);
  StaticPlacementOptions options;
  options.num_services = num_services;
  options.shared_slice_replicas = 1;  // one memory holds them all
  return Placement::Static(shape, options);
}

// Adds up the progress of parts that are loaded one after the other.
class LoadMeter {
 public:
  LoadMeter(const EmbeddedOptions& options, int64_t total_bytes)
      : report_(options.on_load), total_bytes_(total_bytes) {}
  void Report(int64_t part_bytes) {
    if (report_) report_({std::min(done_bytes_ + part_bytes, total_bytes_), total_bytes_});
  }
  void EndPart(int64_t part_bytes) {
    done_bytes_ += part_bytes;
    Report(0);
  }

 private:
  const std::function<void(const LoadProgress&)> report_;
  const int64_t total_bytes_;
  int64_t done_bytes_ = 0;
};

}  // namespace

class EmbeddedNode::Impl {
 public:
  static absl::StatusOr<std::unique_ptr<Impl>> Open(const EmbeddedOptions& options) {
    auto impl = std::make_unique<Impl>();
    MOEBIUS_ASSIGN_OR_RETURN(impl->kernels_, ChooseKernels(options.tier));
    MOEBIUS_ASSIGN_OR_RETURN(impl->checkpoint_, OpenCheckpoint(options));
    MOEBIUS_ASSIGN_OR_RETURN(impl->placement_,
                             MakePlacement(impl->config(), options.num_expert_pipelines));
    impl->executor_ = std::make_unique<Executor>(options.num_threads > 0 ? options.num_threads
                                                                         : DefaultNumThreads());
    if (auto tokenizer = impl->checkpoint_->MakeTokenizer(); tokenizer.ok()) {
      impl->tokenizer_ = *std::move(tokenizer);
    }
    MOEBIUS_RETURN_IF_ERROR(impl->Load(options));
    impl->Start(options);
    return impl;
  }

  ~Impl() {
    if (lead_ == nullptr) return;
    lead_->Shutdown();
    // Absent where the host refused the thread.
    if (stepping_thread_.joinable()) stepping_thread_.join();
  }

  const ModelConfig& config() const { return checkpoint_->config(); }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  Lead& lead() { return *lead_; }
  RouterFront& front() { return *front_; }

  void WriteMetrics(ExpertDetail detail, MetricWriter& writer) const {
    WriteLeadMetrics(*lead_, writer);
    WriteExpertLoadMetrics(load_->Read(), detail, writer);
  }

  EmbeddedInfo info() const {
    EmbeddedInfo info;
    info.tier = std::string(TierName(kernels_->tier));
    info.num_threads = executor_->num_threads();
    info.config_hash = FormatHash64(checkpoint_->config_hash());
    info.model_hash = FormatHash64(checkpoint_->model_hash());
    info.settings_not_applied = checkpoint_->generation_defaults().not_applied;
    info.weight_bytes = weight_bytes_;
    info.load = load_figures_;
    info.kv_budget_bytes = kv_budget_bytes_;
    const KvPool pool = rows_->kv_pool();
    info.kv_capacity_tokens = pool.num_blocks * pool.block_tokens;
    info.max_positions = std::min(config().max_positions, info.kv_capacity_tokens);
    return info;
  }

  absl::StatusOr<ForcedLogits> TeacherForced(absl::Span<const int64_t> token_ids,
                                             absl::Span<const int64_t> rows) {
    absl::StatusOr<ForcedLogits> forced = absl::UnknownError("not run");
    // One body: no step of the lead runs in between, and none of its KV can be taken.
    executor_->Run([&] { forced = RunForced(config(), *rows_, chunk_rows_, token_ids, rows); });
    return forced;
  }

 private:
  absl::Status Load(const EmbeddedOptions& options) {
    const HostMemory memory = ReadHostMemory();
    kv_budget_bytes_ =
        options.kv_budget_bytes > 0 ? options.kv_budget_bytes : DefaultKvBudgetBytes(memory);
    const int64_t expert_bytes = ExpertBytes(*checkpoint_, placement_);
    const int64_t other_bytes = BytesBesideExperts(*checkpoint_);
    MOEBIUS_RETURN_IF_ERROR(WithHint(
        CheckFits(memory, expert_bytes + other_bytes, kv_budget_bytes_),
        "give a smaller --kv-budget, raise the memory limit, or spread the experts over hosts"));

    LoadMeter meter(options, expert_bytes + other_bytes);
    PackedCache cache(options.packed_cache);
    MOEBIUS_ASSIGN_OR_RETURN(weights_, RouterWeights::Load(*checkpoint_, *kernels_));
    AttentionLoadOptions attention;
    attention.cache = &cache;
    MOEBIUS_ASSIGN_OR_RETURN(
        attention_, AttentionPipeline::Load(*checkpoint_, *kernels_, *executor_, kv_budget_bytes_,
                                            Sharding(), attention));
    meter.EndPart(other_bytes);
    load_figures_ = attention_->load_figures();
    weight_bytes_ = weights_.bytes() + attention_->weight_bytes();
    std::vector<ExpertPipeline*> pipelines;
    for (int32_t service = 0; service < placement_.num_services(); ++service) {
      MOEBIUS_ASSIGN_OR_RETURN(
          std::unique_ptr<ExpertPipeline> pipeline,
          ExpertPipeline::Load(
              *checkpoint_, placement_.HeldBy(ServiceId(service)), *kernels_, *executor_,
              [&meter](int64_t loaded, int64_t) { meter.Report(loaded); }, &cache));
      load_figures_.Add(pipeline->load_figures());
      meter.EndPart(pipeline->weight_bytes());
      weight_bytes_ += pipeline->weight_bytes();
      pipelines.push_back(pipeline.get());
      experts_.push_back(std::move(pipeline));
    }
    attention_port_ = std::make_unique<DirectAttention>(attention_.get());
    expert_port_ = std::make_unique<DirectExperts>(executor_.get(), std::move(pipelines));
    return absl::OkStatus();
  }

  void Start(const EmbeddedOptions& options) {
    RowPipeline::Parts parts;
    parts.config = &checkpoint_->config();
    parts.numerics = &checkpoint_->numerics();
    parts.weights = &weights_;
    parts.kernels = kernels_;
    parts.executor = executor_.get();
    parts.attention = attention_port_.get();
    parts.experts = expert_port_.get();
    parts.placement = &placement_;
    load_ = std::make_unique<ExpertLoad>(config().moe_layers, config().gate.num_experts,
                                         !options.capacity.dropless());
    parts.load = load_.get();
    parts.capacity = options.capacity;
    biases_ = MakeBiasControl(options.biases, *checkpoint_, weights_);
    parts.biases = biases_.get();
    rows_ = std::make_unique<RowPipeline>(parts);
    // A prompt that is seen whole goes in one step: no other bound of it would be of use here.
    const int64_t row_budget = config().attention.is_causal
                                   ? options.row_budget
                                   : std::max(options.row_budget, config().max_positions);
    chunk_rows_ = options.chunk_rows > 0 ? options.chunk_rows : row_budget;

    LeadOptions lead = BuildLeadOptions(*checkpoint_, row_budget, chunk_rows_);
    lead.capacity = options.capacity;
    lead_ = std::make_unique<Lead>(lead, rows_.get(), executor_.get(), tokenizer_.get(),
                                   Clock::Monotonic());
    lead_->SetLog(&log_);
    lead_->SetTracing(options.tracing);
    MakeFront(options, lead);
    stepping_thread_ = std::thread([this] { StepUntilShutdown(); });
  }

  void MakeFront(const EmbeddedOptions& options, const LeadOptions& lead) {
    LeadFront::Parts parts;
    parts.lead = lead_.get();
    parts.rows = rows_.get();
    parts.executor = executor_.get();
    parts.checkpoint = checkpoint_.get();
    parts.weights = &weights_;
    parts.placement = &placement_;
    parts.load = load_.get();
    parts.log = &log_;
    parts.biases = biases_.get();
    parts.tracing = options.tracing;
    parts.roster = [this] { return Roster(); };
    LeadFront::Facts facts;
    facts.options = lead;
    facts.model = DescribeModel(*checkpoint_, options.model_path, lead.sampling,
                                tokenizer_ == nullptr ? "" : tokenizer_->name());
    facts.version = MOEBIUS_VERSION;
    facts.topology = "embedded";
    facts.tier = std::string(TierName(kernels_->tier));
    front_ = std::make_unique<LeadFront>(std::move(parts), std::move(facts));
  }

  // Everything is in this process, and loaded.
  RosterFacts Roster() const {
    RosterFacts roster;
    roster.epoch = placement_.epoch().value();
    roster.services.push_back({"router", "router", "usable", "", ""});
    roster.services.push_back({"attention-0", "attention", "usable", "", ""});
    for (int32_t service = 0; service < placement_.num_services(); ++service) {
      roster.services.push_back(
          {absl::StrCat("expert-", service), "expert", "usable", "",
           absl::StrCat(placement_.HeldBy(ServiceId(service)).size(), " sets of weights")});
    }
    return roster;
  }

  // Whole steps are one body: all their phases and both direct ports run inline on the executor.
  void StepUntilShutdown() {
    while (!lead_->is_shut_down()) {
      bool stepped = false;
      executor_->Run([&] {
        for (int step = 0; step < kStepsPerBody; ++step) {
          stepped = lead_->RunOneStep();
          if (!stepped) break;
        }
      });
      if (!stepped) lead_->WaitForWork(kIdleWait);
    }
  }

  // In the order of dependence; the end is the reverse.
  const Kernels* kernels_ = nullptr;
  std::unique_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Placement placement_;
  std::unique_ptr<Executor> executor_;
  int64_t kv_budget_bytes_ = 0;
  int64_t weight_bytes_ = 0;
  WeightLoadFigures load_figures_;
  int64_t chunk_rows_ = 0;
  RouterWeights weights_;
  std::unique_ptr<AttentionPipeline> attention_;
  std::vector<std::unique_ptr<ExpertPipeline>> experts_;
  std::unique_ptr<DirectAttention> attention_port_;
  std::unique_ptr<DirectExperts> expert_port_;
  std::unique_ptr<ExpertLoad> load_;
  std::unique_ptr<BiasControl> biases_;
  std::unique_ptr<RowPipeline> rows_;
  RequestLog log_;
  std::unique_ptr<Lead> lead_;
  std::unique_ptr<LeadFront> front_;
  std::thread stepping_thread_;
};

EmbeddedNode::EmbeddedNode(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EmbeddedNode::~EmbeddedNode() = default;

absl::StatusOr<std::unique_ptr<EmbeddedNode>> EmbeddedNode::Open(const EmbeddedOptions& options) {
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl, Impl::Open(options));
  return std::unique_ptr<EmbeddedNode>(new EmbeddedNode(std::move(impl)));
}

const ModelConfig& EmbeddedNode::config() const { return impl_->config(); }
const Tokenizer* EmbeddedNode::tokenizer() const { return impl_->tokenizer(); }
EmbeddedInfo EmbeddedNode::info() const { return impl_->info(); }
RouterFront& EmbeddedNode::front() { return impl_->front(); }
LeadUsage EmbeddedNode::usage() const { return impl_->lead().usage(); }
LeadCounters EmbeddedNode::counters() const { return impl_->lead().counters(); }
void EmbeddedNode::WriteMetrics(ExpertDetail detail, MetricWriter& writer) const {
  impl_->WriteMetrics(detail, writer);
}

absl::StatusOr<std::shared_ptr<GenerateStream>> EmbeddedNode::Submit(
    const GenerateRequest& request) {
  return impl_->lead().Submit(request);
}

absl::Status EmbeddedNode::Generate(const GenerateRequest& request,
                                    absl::FunctionRef<bool(const GenerateEvent&)> on_event) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::shared_ptr<GenerateStream> stream, Submit(request));
  while (const std::optional<GenerateEvent> event = stream->Next()) {
    if (!on_event(*event)) stream->Cancel();
  }
  return stream->status();
}

absl::StatusOr<ForcedLogits> EmbeddedNode::TeacherForced(absl::Span<const int64_t> token_ids,
                                                         absl::Span<const int64_t> rows) {
  return impl_->TeacherForced(token_ids, rows);
}

}  // namespace moebius
