// SPDX-License-Identifier: Apache-2.0
#include "router_service/server.h"

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

#include "moebius/base/check.h"
#include "moebius/base/clock.h"
#include "moebius/base/executor.h"
#include "moebius/base/mutex.h"
#include "moebius/base/status.h"
#include "moebius/service/data_plane.h"
#include "moebius/service/exit_status.h"
#include "moebius/service/http_endpoint.h"
#include "moebius/service/near_configs.h"
#include "moebius/telemetry/process_metrics.h"
#include "moebius/transport/metrics.h"
#include "router_service/attention_rule.h"
#include "router_service/client_gate.h"
#include "router_service/front_door.h"
#include "router_service/kept_biases.h"
#include "router_service/lead_front.h"
#include "router_service/metrics.h"
#include "router_service/rank_probe.h"
#include "router_service/ready_lines.h"
#include "router_service/roster.h"
#include "router_service/roster_facts.h"
#include "router_service/router_core.h"
#include "router_service/rpc_ports.h"
#include "router_service/status_board.h"
#include "router_service/tracing.h"

namespace moebius {
namespace {

// How often what is missing is looked at: progress of loading changes it many times a second.
constexpr absl::Duration kWaitingInterval = absl::Milliseconds(250);
// Between two tries of the canary token, and two looks at a cluster that is complete.
constexpr absl::Duration kPause = absl::Milliseconds(200);
// Between two looks at the list of clients.
constexpr absl::Duration kReloadInterval = absl::Seconds(5);
constexpr char kTopology[] = "split";

class RouterServer final : public ServiceServer {
 public:
  RouterServer(const RouterServerOptions& options, ProcessNotices& notices,
               std::unique_ptr<const Checkpoint> checkpoint, Placement placement)
      : options_(options),
        notices_(notices),
        checkpoint_(std::move(checkpoint)),
        placement_(std::move(placement)),
        executor_(options.config.num_threads),
        greeting_(BuildGreeting(options.flags, options.config, *checkpoint_)),
        roster_(OptionsOfRoster(), placement_),
        health_(Clock::Monotonic()),
        capacity_(*ParseCapacity(options.router.capacity)),  // validated at the start
        load_(checkpoint_->config().moe_layers, checkpoint_->config().gate.num_experts,
              !capacity_.dropless()),
        tracing_(*TracingOptionsOf(options.router),  // validated at the start
                 {"moebius-router", options.config.name, greeting_.version}, notices.logger()),
        lines_(options.config.name, notices) {
    MOEBIUS_CHECK(ParseExpertDetail(options_.router.metrics_expert_detail, &detail_));
  }

  ~RouterServer() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.SignalAll();
    }
    if (starting_.joinable()) starting_.join();
    // Calls end before what answers them.
    rpc_ports_.reset();
    std::unique_ptr<RouterCore> core;
    {
      MutexLock lock(mutex_);
      core = std::move(core_);
    }
    core.reset();
    if (biases_ != nullptr) biases_->SaveIfChanged();  // the last window's
  }

  absl::Status Start() {
    if (auto tokenizer = checkpoint_->MakeTokenizer(); tokenizer.ok()) {
      tokenizer_ = *std::move(tokenizer);
    }
    for (const std::string& setting : checkpoint_->generation_defaults().not_applied) {
      notices_.Log(absl::StrCat("generation_config.json: ", setting, " is not applied"));
    }
    health_.AddReadinessCheck([this] { return Missing(); });
    if (Logger* const logger = notices_.logger()) {
      log_.SetOnEnded([logger](const Explanation& ended) { WriteLogLine(ended, *logger); });
    }
    const LeadOptions lead =
        BuildLeadOptions(*checkpoint_, options_.router.row_budget, options_.router.chunk_rows);
    door_ =
        std::make_unique<FrontDoor>(DescribeModel(*checkpoint_, options_.flags.model, lead.sampling,
                                                  tokenizer_ == nullptr ? "" : tokenizer_->name()),
                                    [this] { return InfoBeforeReady(); });
    board_ = std::make_unique<StatusBoard>(StatusBoard::Parts{
        options_.config.name, door_.get(), &load_, [this] { return CountersOfLead(); }});
    MOEBIUS_RETURN_IF_ERROR(ServeHttp());
    const FrameLimits limits = BuildClusterLimits(checkpoint_->config());
    MOEBIUS_ASSIGN_OR_RETURN(provider_, MakeLinkProvider(options_.flags.transport, options_.config,
                                                         limits, NotingOfPeers()));
    DataPlaneOptions plane;
    plane.name = options_.config.name;
    plane.greeting = greeting_;
    plane.greeting.http_address = endpoints_.http;
    plane.limits = limits;
    plane.listen = options_.config.listen;
    plane.advertise = options_.config.advertise;
    MOEBIUS_ASSIGN_OR_RETURN(plane_, DataPlane::Make(std::move(plane), *provider_, roster_));
    endpoints_.data = FormatAddress(*plane_->address());
    health_.WatchLoop("reactor", [pulse = plane_->pulse()] { return pulse->Look(); });
    health_.WatchLoop(
        "step", [this] { return ProgressOfSteps(); }, Health::WaitsFor::kOthers);
    MOEBIUS_RETURN_IF_ERROR(roster_.Start(plane_->transport(), plane_->reactor()));
    collector_ = registry_.AddCollector([this](MetricWriter& writer) { WriteMetrics(writer); });
    MOEBIUS_RETURN_IF_ERROR(ServeRpcs());
    ports_collector_ =
        registry_.AddCollector([this](MetricWriter& writer) { rpc_ports_->WriteMetrics(writer); });
    starting_ = std::thread([this] { BecomeReady(); });
    return absl::OkStatus();
  }

  Endpoints endpoints() const override { return endpoints_; }

  void Drain(absl::Duration limit) override {
    health_.SetDraining();
    door_->SetDraining();
    const absl::Duration end = Clock::Monotonic().Now() + limit;
    // Who spreads requests over routers needs a moment to see that it is not ready.
    absl::SleepFor(std::min(absl::Seconds(options_.router.drain_grace_seconds), limit));
    door_->Close();
    {
      MutexLock lock(mutex_);
      while (core_ != nullptr && HasWork(*core_) && Clock::Monotonic().Now() < end) {
        changed_.WaitWithTimeout(mutex_, kPause);
      }
    }
    // What was computed may still be on its way to its reader; one that never reads holds nobody.
    rpc_ports_->ShutdownPublic(std::max(absl::ZeroDuration(), end - Clock::Monotonic().Now()));
  }

 private:
  RosterOptions OptionsOfRoster() {
    RosterOptions roster;
    roster.own = greeting_;
    roster.near = NearConfigsOf(checkpoint_->numerics(), checkpoint_->model_hash());
    roster.num_attention = static_cast<int32_t>(options_.router.num_attention);
    roster.row_budget = options_.router.row_budget;
    roster.hidden_size = checkpoint_->config().hidden_size;
    roster.on_notice = NotingOfPeers();
    return roster;
  }

  std::function<void(const std::string&)> Noting() {
    return [this](const std::string& notice) { notices_.Log(notice); };
  }

  std::function<void(const LogSource&, const std::string&)> NotingOfPeers() {
    return [this](const LogSource& source, const std::string& notice) {
      notices_.LogOf(source, notice);
    };
  }

  void Warn(const std::string& sentence) {
    if (Logger* const logger = notices_.logger()) return logger->Warning(sentence);
    notices_.Log(sentence);
  }

  static bool HasWork(RouterCore& core) {
    const LeadUsage usage = core.lead().usage();
    return usage.queued_requests > 0 || usage.running_sessions > 0;
  }

  LoopProgress ProgressOfSteps() {
    MutexLock lock(mutex_);
    if (core_ == nullptr) return {};
    return {static_cast<uint64_t>(core_->lead().counters().steps), HasWork(*core_)};
  }

  absl::Status ServeHttp() {
    if (!options_.config.http_listen.has_value()) return absl::OkStatus();
    MOEBIUS_ASSIGN_OR_RETURN(
        http_, HttpEndpoint::Start(*options_.config.http_listen, registry_, health_,
                                   [this](HttpServer& http) { board_->AddTo(http); }));
    endpoints_.http = FormatAddress(http_->address());
    return absl::OkStatus();
  }

  // All but those of the gRPC ports.
  void WriteMetrics(MetricWriter& writer) {
    WriteProcessFacts({"router", greeting_.version, greeting_.config_hash, greeting_.numeric_class,
                       "bf16", greeting_.tier},
                      writer);
    if (const Logger* logger = notices_.logger()) logger->WriteMetrics(writer);
    tracing_.WriteMetrics(writer);
    WriteTransportMetrics(plane_->transport(), provider_->name(), writer);
    provider_->WriteMetrics(writer);
    WriteReplicaMetrics(roster_.FewestReplicas(), writer);
    WriteRefusalMetrics(roster_.num_refused(), provider_->name(), writer);
    writer.WriteGauge(Metric::kPlacementEpoch, static_cast<double>(placement_.epoch().value()));
    MutexLock lock(mutex_);
    if (biases_ != nullptr) biases_->WriteMetrics(writer);
    if (core_ != nullptr) core_->WriteMetrics(writer);
    WriteExpertLoadMetrics(load_.Read(), detail_, writer);
  }

  absl::Status ServeRpcs() {
    RpcPorts::Options ports;
    ports.config = options_.config;
    ports.public_listen = options_.router.grpc_listen;
    ports.reflection = options_.router.reflection;
    ports.max_forward_rows = options_.router.row_budget;
    ports.on_refusal = NotingOfPeers();
    if (!options_.router.api_keys.empty()) {
      gate_ = std::make_unique<ClientGate>(options_.router.api_keys, Clock::Monotonic(), Noting());
      gate_->SetOnStranger(NotingOfPeers());
      MOEBIUS_RETURN_IF_ERROR(gate_->Load());
      ports.gate = gate_.get();
    }
    MOEBIUS_ASSIGN_OR_RETURN(rpc_ports_, RpcPorts::Start(ports, *door_, health_));
    for (const std::string& warning : rpc_ports_->warnings()) Warn(warning);
    endpoints_.grpc = rpc_ports_->public_address();
    endpoints_.admin = rpc_ports_->admin_address();
    return absl::OkStatus();
  }

  LeadCounters CountersOfLead() {
    MutexLock lock(mutex_);
    return core_ == nullptr ? LeadCounters() : core_->lead().counters();
  }

  RosterFacts FactsOfRoster() {
    return DescribeRoster(roster_, {options_.config.name, endpoints_.data, endpoints_.http},
                          placement_.epoch(), Missing());
  }

  ServerInfo InfoBeforeReady() {
    const RosterFacts roster = FactsOfRoster();
    ServerInfo info;
    info.version = MOEBIUS_VERSION;
    info.topology = kTopology;
    info.missing = roster.missing;
    info.epoch = roster.epoch;
    info.tier = greeting_.tier;
    info.threads = executor_.num_threads();
    info.services = roster.services;
    return info;
  }

  std::vector<std::string> Missing() {
    {
      MutexLock lock(mutex_);
      // Once it serves, only what no other replica can do makes it unready.
      if (core_ != nullptr) return roster_.Unserved();
    }
    std::vector<std::string> missing = roster_.Missing();
    if (missing.empty()) missing.push_back("no canary token went round yet");
    return missing;
  }

  // --- The way to readiness, on a thread of its own.

  void BecomeReady() {
    const absl::Duration begin = Clock::Monotonic().Now();
    health_.SetStarting("loading the router's weights");
    auto weights = RouterWeights::Load(*checkpoint_, *options_.config.kernels);
    if (!weights.ok()) return notices_.Fail(WithExitCode(weights.status(), kExitModel));
    weights_ = *std::move(weights);
    auto biases = KeptBiases::Restore(options_.router, *checkpoint_, weights_, Noting());
    if (!biases.ok()) return notices_.Fail(WithExitCode(biases.status(), kExitHost));
    {
      MutexLock lock(mutex_);
      biases_ = *std::move(biases);
    }
    health_.SetStarted();
    while (WaitForMembers()) {
      const absl::Status started = StartCore();
      if (!started.ok()) {
        lines_.Waiting(std::string(started.message()));
        Pause();
        continue;
      }
      lines_.Ready(LoadedBytes(), Clock::Monotonic().Now() - begin);
      while (roster_.Missing().empty() && !IsStopping()) {
        LookAround();
        Pause();
      }
    }
  }

  // What the starting thread does now and then, ready or not.
  void LookAround() {
    const absl::Duration now = Clock::Monotonic().Now();
    board_->KeepHistory(now);
    biases_->SaveIfChanged();
    if (gate_ == nullptr || now < next_reload_) return;
    next_reload_ = now + kReloadInterval;
    gate_->ReloadIfChanged();
  }

  // Once; members come and go.
  absl::Status StartCore() {
    {
      MutexLock lock(mutex_);
      if (core_ != nullptr) return absl::OkStatus();
    }
    MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<RouterCore> core,
                             RouterCore::Start(PartsOfCore(), OptionsOfCore()));
    OpenFront(*core);
    MutexLock lock(mutex_);
    core_ = std::move(core);
    return absl::OkStatus();
  }

  void OpenFront(RouterCore& core) {
    LeadFront::Parts parts;
    parts.lead = &core.lead();
    parts.rows = &core.rows();
    parts.executor = &executor_;
    parts.checkpoint = checkpoint_.get();
    parts.weights = &weights_;
    parts.placement = &placement_;
    parts.load = &load_;
    parts.log = &log_;
    parts.biases = biases_->control();
    parts.tracing = tracing_.rule();
    parts.bias_file = biases_->path();
    parts.roster = [this] { return FactsOfRoster(); };
    LeadFront::Facts facts;
    facts.options = core.lead_options();
    facts.model = door_->model_info();
    facts.version = MOEBIUS_VERSION;
    facts.topology = kTopology;
    facts.tier = greeting_.tier;
    front_ = std::make_unique<LeadFront>(std::move(parts), std::move(facts));
    door_->Open(front_.get());
  }

  int64_t LoadedBytes() const {
    int64_t bytes = weights_.bytes();
    for (const Member& member : roster_.members()) bytes += member.slot.ready.loaded_bytes;
    return bytes;
  }

  void Pause() {
    MutexLock lock(mutex_);
    if (!stopping_) changed_.WaitWithTimeout(mutex_, kPause);
  }

  // False when the process ends.
  bool WaitForMembers() {
    while (true) {
      if (roster_.WaitUntilComplete(kWaitingInterval)) return !IsStopping();
      if (IsStopping()) return false;
      LookAround();
      lines_.Waiting(absl::StrJoin(roster_.Missing(), "; "));
    }
  }

  bool IsStopping() {
    MutexLock lock(mutex_);
    return stopping_;
  }

  RouterCore::Parts PartsOfCore() {
    RouterCore::Parts parts;
    parts.checkpoint = checkpoint_.get();
    parts.weights = &weights_;
    parts.kernels = options_.config.kernels;
    parts.executor = &executor_;
    parts.tokenizer = tokenizer_.get();
    parts.placement = &placement_;
    parts.transport = &plane_->transport();
    parts.roster = &roster_;
    parts.clock = &Clock::Monotonic();
    parts.load = &load_;
    parts.log = &log_;
    parts.biases = biases_->control();
    parts.tracing = tracing_.rule();
    if (Logger* const logger = notices_.logger()) {
      parts.on_slow_step = [logger](const SlowStep& slow) { WriteLogLine(slow, *logger); };
    }
    return parts;
  }

  // What auto counts with: given, or measured now. Without an answer the defaults do.
  std::optional<RankRates> RatesOfRanks() {
    // Both validated at the start.
    const auto given = *ParseRankRates(options_.router.attention_rates);
    const bool has_choice = options_.router.num_attention > 1 &&
                            !ParseAttentionRule(options_.router.attention_method)->has_value();
    if (given.has_value() || !has_choice) return given;
    std::vector<PeerId> ranks;
    for (int32_t rank = 0; rank < options_.router.num_attention; ++rank) {
      if (const auto peer = roster_.AttentionPeer(rank)) ranks.push_back(*peer);
    }
    const absl::StatusOr<RankRates> rates = MeasureRankRates(plane_->transport(), ranks);
    if (rates.ok() && rates->flops > 0) {
      notices_.Log(absl::StrCat("attention ranks measured: ", DescribeRankRates(*rates)));
      return *rates;
    }
    notices_.Log(
        absl::StrCat("attention ranks are not measured, usual rates count: ",
                     rates.ok() ? "they know no rate of their kernels" : rates.status().message()));
    return std::nullopt;
  }

  RouterCoreOptions OptionsOfCore() {
    RouterCoreOptions core;
    core.row_budget = options_.router.row_budget;
    core.chunk_rows = options_.router.chunk_rows;
    const int64_t slow_step_ms = options_.router.slow_step_ms;
    core.slow_step = slow_step_ms > 0 ? absl::Milliseconds(slow_step_ms) : absl::InfiniteDuration();
    core.num_attention = static_cast<int32_t>(options_.router.num_attention);
    // Validated at the start.
    core.attention_method = *ParseAttentionRule(options_.router.attention_method);
    core.rank_rates = RatesOfRanks();
    core.capacity = capacity_;
    return core;
  }

  // In the order of dependence; the end is the reverse.
  const RouterServerOptions options_;
  ProcessNotices& notices_;
  const std::unique_ptr<const Checkpoint> checkpoint_;
  const Placement placement_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Executor executor_;
  RouterWeights weights_;
  const Greeting greeting_;
  Endpoints endpoints_;
  Roster roster_;
  Registry registry_;
  Health health_;
  ExpertDetail detail_ = ExpertDetail::kAuto;
  const CapacityPolicy capacity_;
  ExpertLoad load_;
  RouterTracing tracing_;
  RequestLog log_;
  std::unique_ptr<FrontDoor> door_;
  std::unique_ptr<StatusBoard> board_;
  std::unique_ptr<HttpEndpoint> http_;
  std::unique_ptr<LinkProvider> provider_;
  std::unique_ptr<DataPlane> plane_;
  ReadyLines lines_;            // of the starting thread
  absl::Duration next_reload_;  // of the list of clients; of the starting thread

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ MOEBIUS_GUARDED_BY(mutex_) = false;
  // Made and saved by the starting thread, changed by steps and calls.
  std::unique_ptr<KeptBiases> biases_;
  std::unique_ptr<RouterCore> core_ MOEBIUS_GUARDED_BY(mutex_);
  std::unique_ptr<LeadFront> front_;  // of core_; set once, before the door opens
  Registry::Handle collector_;
  std::unique_ptr<ClientGate> gate_;
  std::unique_ptr<RpcPorts> rpc_ports_;
  Registry::Handle ports_collector_;
  std::thread starting_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ServiceServer>> StartRouterServer(const RouterServerOptions& options,
                                                                 ProcessNotices& notices) {
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<const Checkpoint> checkpoint,
                           OpenServiceModel(options.flags, options.config));
  MOEBIUS_ASSIGN_OR_RETURN(Placement placement, PlacementOf(checkpoint->config(), options.router));
  auto server =
      std::make_unique<RouterServer>(options, notices, std::move(checkpoint), std::move(placement));
  MOEBIUS_RETURN_IF_ERROR(server->Start());
  return std::unique_ptr<ServiceServer>(std::move(server));
}

}  // namespace moebius
