// SPDX-License-Identifier: Apache-2.0
#include "node/local_cluster.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "attention_service/attention_participant.h"
#include "expert_service/expert_participant.h"
#include "moebius/base/clock.h"
#include "moebius/base/executor.h"
#include "moebius/base/status.h"
#include "moebius/kernels/kernels.h"
#include "moebius/model/checkpoint.h"
#include "moebius/service/data_plane.h"
#include "moebius/service/joiner.h"
#include "moebius/transport/loopback/loopback.h"
#include "router_service/config.h"
#include "router_service/router_core.h"
#include "router_service/router_weights.h"

namespace moebius {
namespace {

// Between two tries of the canary token.
constexpr absl::Duration kCanaryInterval = absl::Milliseconds(20);

Greeting GreetingOf(const Checkpoint& checkpoint, Role role, int32_t index) {
  ServiceFlags flags = ServiceFlags::For(role);
  flags.slot = index;
  ServiceConfig config;
  config.kernels = &BestKernels();
  return BuildGreeting(flags, config, checkpoint);
}

// What a member is made of, whatever it does.
struct MemberParts {
  const Checkpoint& checkpoint;
  LinkProvider& provider;
  std::vector<Address> routers;
  std::string name;
  Role role;
  int32_t index;
  int num_threads;
  int64_t kv_budget_bytes;
};

class ExpertPart {
 public:
  ExpertPart(const MemberParts& parts, Executor* executor)
      : participant_({}, parts.checkpoint, BestKernels(), executor, Clock::Monotonic()) {}
  Participant& participant() { return participant_; }
  void Bind(Transport& transport) { participant_.Bind(&transport); }
  void Stop() { participant_.Stop(); }

 private:
  ExpertParticipant participant_;
};

class AttentionPart {
 public:
  AttentionPart(const MemberParts& parts, Executor* executor)
      : participant_({&parts.checkpoint, &BestKernels(), executor, parts.kv_budget_bytes}) {}
  Participant& participant() { return participant_; }
  void Bind(Transport& transport) { participant_.SetTransport(transport); }
  void Stop() { participant_.Unload(); }

 private:
  AttentionParticipant participant_;
};

// A member of the cluster: executor, its part, joiner, data plane.
template <typename Part>
class LocalMember {
 public:
  static absl::StatusOr<std::unique_ptr<LocalMember>> Start(const MemberParts& parts) {
    auto member = std::make_unique<LocalMember>(parts);
    DataPlaneOptions plane;
    plane.name = parts.name;
    plane.greeting = member->greeting_;
    plane.limits = BuildClusterLimits(parts.checkpoint.config());
    if (parts.role == Role::kAttention) plane.listen = Address{"127.0.0.1", 0};
    MOEBIUS_ASSIGN_OR_RETURN(member->plane_,
                             DataPlane::Make(std::move(plane), parts.provider, member->joiner_));
    member->part_.Bind(member->plane_->transport());
    MOEBIUS_RETURN_IF_ERROR(member->joiner_.Start(member->plane_->transport()));
    return member;
  }

  explicit LocalMember(const MemberParts& parts)
      : executor_(parts.num_threads),
        greeting_(GreetingOf(parts.checkpoint, parts.role, parts.index)),
        part_(parts, &executor_),
        joiner_(OptionsOfJoiner(parts), part_.participant()) {}
  ~LocalMember() {
    joiner_.Stop();
    part_.Stop();
  }

 private:
  JoinerOptions OptionsOfJoiner(const MemberParts& parts) const {
    JoinerOptions options;
    options.own = greeting_;
    options.routers = parts.routers;
    return options;
  }

  Executor executor_;
  const Greeting greeting_;
  Part part_;
  Joiner joiner_;
  std::unique_ptr<DataPlane> plane_;
};

using LocalExpert = LocalMember<ExpertPart>;
using LocalAttention = LocalMember<AttentionPart>;

// What the parts of a cluster share.
struct ClusterParts {
  const LocalClusterOptions& options;
  const Checkpoint& checkpoint;
  const Placement& placement;
  LinkProvider& loopback;

  LinkProvider& ProviderOf(const std::string& name) const {
    return options.provider ? *options.provider(name) : loopback;
  }
  MemberParts Member(Role role, int32_t index, const std::string& name,
                     std::vector<Address> routers) const {
    return {checkpoint, ProviderOf(name),    std::move(routers),     name, role,
            index,      options.num_threads, options.kv_budget_bytes};
  }
};

// A router with the attention ranks that are its own.
class LocalRouter {
 public:
  LocalRouter(const ClusterParts& parts, int32_t index)
      : parts_(parts),
        prefix_(index == 0 ? "" : absl::StrCat("router-", index, "-")),
        name_(index == 0 ? "router" : absl::StrCat("router-", index)),
        executor_(parts.options.num_threads),
        attention_(static_cast<size_t>(parts.options.num_attention)) {}
  ~LocalRouter() {
    core_.reset();
    attention_.clear();
    plane_.reset();
  }

  /// Listens at `port`, 0: a free one, and starts its ranks.
  absl::Status Listen(uint16_t port) {
    if (auto tokenizer = parts_.checkpoint.MakeTokenizer(); tokenizer.ok()) {
      tokenizer_ = *std::move(tokenizer);
    }
    MOEBIUS_ASSIGN_OR_RETURN(weights_, RouterWeights::Load(parts_.checkpoint, BestKernels()));
    RosterOptions roster;
    roster.own = GreetingOf(parts_.checkpoint, Role::kRouter, -1);
    roster.num_attention = parts_.options.num_attention;
    roster.row_budget = parts_.options.row_budget;
    roster.hidden_size = parts_.checkpoint.config().hidden_size;
    roster_ = std::make_unique<Roster>(roster, parts_.placement);
    DataPlaneOptions plane;
    plane.name = name_;
    plane.greeting = roster.own;
    plane.limits = BuildClusterLimits(parts_.checkpoint.config());
    plane.listen = Address{"127.0.0.1", port};
    MOEBIUS_ASSIGN_OR_RETURN(plane_,
                             DataPlane::Make(std::move(plane), parts_.ProviderOf(name_), *roster_));
    MOEBIUS_RETURN_IF_ERROR(roster_->Start(plane_->transport(), plane_->reactor()));
    for (int32_t rank = 0; rank < parts_.options.num_attention; ++rank) {
      MOEBIUS_RETURN_IF_ERROR(StartAttention(rank));
    }
    return absl::OkStatus();
  }

  absl::Status StartAttention(int32_t index) {
    std::unique_ptr<LocalAttention>& rank = attention_[static_cast<size_t>(index)];
    if (rank != nullptr) return absl::OkStatus();
    MOEBIUS_ASSIGN_OR_RETURN(rank, LocalAttention::Start(parts_.Member(
                                       Role::kAttention, index,
                                       absl::StrCat(prefix_, "attention-", index), {address()})));
    return absl::OkStatus();
  }
  void KillAttention(int32_t index) { attention_[static_cast<size_t>(index)].reset(); }

  void StopCore() { core_.reset(); }
  /// Waits until all have joined and a canary token went round.
  absl::Status StartCore(absl::Duration limit) {
    const absl::Duration end = Clock::Monotonic().Now() + limit;
    RouterCore::Parts parts;
    parts.checkpoint = &parts_.checkpoint;
    parts.weights = &weights_;
    parts.kernels = &BestKernels();
    parts.executor = &executor_;
    parts.tokenizer = tokenizer_.get();
    parts.placement = &parts_.placement;
    parts.transport = &plane_->transport();
    parts.roster = roster_.get();
    parts.clock = &Clock::Monotonic();
    RouterCoreOptions core;
    core.row_budget = parts_.options.row_budget;
    core.chunk_rows = parts_.options.chunk_rows;
    core.num_attention = parts_.options.num_attention;
    core.attention_method = parts_.options.attention_method;
    core.capacity = parts_.options.capacity;
    while (true) {
      if (!roster_->WaitUntilComplete(end - Clock::Monotonic().Now())) {
        return absl::DeadlineExceededError(
            absl::StrCat("the cluster is not complete: ", absl::StrJoin(roster_->Missing(), "; ")));
      }
      auto started = RouterCore::Start(parts, core);
      if (started.ok()) {
        core_ = *std::move(started);
        return absl::OkStatus();
      }
      if (!absl::IsUnavailable(started.status()) || Clock::Monotonic().Now() > end) {
        return started.status();
      }
      absl::SleepFor(kCanaryInterval);
    }
  }

  Address address() const { return *plane_->address(); }
  Lead& lead() { return core_->lead(); }
  const Roster& roster() const { return *roster_; }

 private:
  // In the order of dependence; the end is the reverse.
  const ClusterParts& parts_;
  const std::string prefix_, name_;
  std::unique_ptr<Tokenizer> tokenizer_;
  RouterWeights weights_;
  Executor executor_;
  std::unique_ptr<Roster> roster_;
  std::unique_ptr<DataPlane> plane_;
  std::vector<std::unique_ptr<LocalAttention>> attention_;
  std::unique_ptr<RouterCore> core_;
};

}  // namespace

class LocalCluster::Impl {
 public:
  explicit Impl(const LocalClusterOptions& options)
      : options_(options),
        loopback_reactor_(Clock::Monotonic()),
        loopback_(loopback_reactor_),
        loopback_thread_(loopback_reactor_) {}

  absl::Status Start() {
    MOEBIUS_ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open(options_.model_path));
    RouterFlags router;
    router.num_experts = options_.num_experts;
    router.expert_replicas = options_.num_replicas;
    router.placement_file = options_.placement_file;
    MOEBIUS_ASSIGN_OR_RETURN(placement_, PlacementOf(checkpoint_->config(), router));
    parts_ = std::make_unique<const ClusterParts>(
        ClusterParts{options_, *checkpoint_, placement_, loopback_});
    for (int32_t i = 0; i < options_.num_routers; ++i) {
      routers_.push_back(std::make_unique<LocalRouter>(*parts_, i));
      MOEBIUS_RETURN_IF_ERROR(routers_.back()->Listen(0));
      addresses_.push_back(routers_.back()->address());
    }
    experts_.resize(static_cast<size_t>(options_.num_experts));
    for (int32_t i = 0; i < options_.num_experts; ++i) MOEBIUS_RETURN_IF_ERROR(StartExpert(i));
    for (const std::unique_ptr<LocalRouter>& each : routers_) {
      MOEBIUS_RETURN_IF_ERROR(each->StartCore(options_.start_limit));
    }
    return absl::OkStatus();
  }

  ~Impl() {
    for (const std::unique_ptr<LocalRouter>& router : routers_) {
      if (router != nullptr) router->StopCore();
    }
    experts_.clear();
    routers_.clear();
  }

  absl::Status StartExpert(int32_t index) {
    std::unique_ptr<LocalExpert>& expert = experts_[static_cast<size_t>(index)];
    if (expert != nullptr) return absl::OkStatus();
    MOEBIUS_ASSIGN_OR_RETURN(
        expert, LocalExpert::Start(parts_->Member(Role::kExpert, index,
                                                  absl::StrCat("expert-", index), addresses_)));
    return absl::OkStatus();
  }
  void KillExpert(int32_t index) { experts_[static_cast<size_t>(index)].reset(); }

  void KillRouter(int32_t index) { routers_[static_cast<size_t>(index)].reset(); }
  absl::Status RestartRouter(int32_t index) {
    std::unique_ptr<LocalRouter>& router = routers_[static_cast<size_t>(index)];
    if (router != nullptr) return absl::OkStatus();
    router = std::make_unique<LocalRouter>(*parts_, index);
    MOEBIUS_RETURN_IF_ERROR(router->Listen(addresses_[static_cast<size_t>(index)].port));
    return router->StartCore(options_.start_limit);
  }

  LocalRouter& router(int32_t index) { return *routers_[static_cast<size_t>(index)]; }

 private:
  // In the order of dependence; the end is the reverse.
  const LocalClusterOptions options_;
  Reactor loopback_reactor_;
  LoopbackProvider loopback_;
  ReactorThread loopback_thread_;
  std::unique_ptr<const Checkpoint> checkpoint_;
  Placement placement_;
  std::unique_ptr<const ClusterParts> parts_;
  std::vector<std::unique_ptr<LocalRouter>> routers_;  // null: killed
  std::vector<Address> addresses_;                     // of the routers
  std::vector<std::unique_ptr<LocalExpert>> experts_;
};

LocalCluster::LocalCluster(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LocalCluster::~LocalCluster() = default;

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Make(
    const LocalClusterOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  MOEBIUS_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<LocalCluster>(new LocalCluster(std::move(impl)));
}

absl::StatusOr<std::shared_ptr<GenerateStream>> LocalCluster::Submit(
    const GenerateRequest& request) {
  return SubmitTo(0, request);
}

absl::StatusOr<std::shared_ptr<GenerateStream>> LocalCluster::SubmitTo(
    int32_t router, const GenerateRequest& request) {
  return impl_->router(router).lead().Submit(request);
}

absl::Status LocalCluster::Generate(const GenerateRequest& request,
                                    absl::FunctionRef<bool(const GenerateEvent&)> on_event) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::shared_ptr<GenerateStream> stream, Submit(request));
  while (const std::optional<GenerateEvent> event = stream->Next()) {
    if (!on_event(*event)) stream->Cancel();
  }
  return stream->status();
}

void LocalCluster::KillExpert(int32_t service) { impl_->KillExpert(service); }
void LocalCluster::KillAttention(int32_t rank) { impl_->router(0).KillAttention(rank); }
absl::Status LocalCluster::RestartExpert(int32_t service) { return impl_->StartExpert(service); }
absl::Status LocalCluster::RestartAttention(int32_t rank) {
  return impl_->router(0).StartAttention(rank);
}
void LocalCluster::KillRouter(int32_t router) { impl_->KillRouter(router); }
absl::Status LocalCluster::RestartRouter(int32_t router) { return impl_->RestartRouter(router); }
const Roster& LocalCluster::roster() const { return impl_->router(0).roster(); }
LeadCounters LocalCluster::counters() const { return impl_->router(0).lead().counters(); }

}  // namespace moebius
