// SPDX-License-Identifier: Apache-2.0
#include "expert_service/expert_participant.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "moebius/base/brief_work.h"
#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/kernels/tier.h"

namespace moebius {
namespace {

PlacementShape ShapeOf(const ModelConfig& config) {
  return PlacementShape::Make(config.gate.num_experts, config.moe_layers, config.num_shared_experts,
                              config.NumDenseSlices());
}

// Rows whose experts are read in no time: none of a model of large experts.
int64_t BriefRowsOf(const ModelConfig& config) {
  const int64_t ids_per_row =
      std::max<int64_t>(config.gate.top_k + config.num_shared_experts, config.NumDenseSlices());
  return BriefRows(std::max<int64_t>(1, ids_per_row * config.ExpertWeightBytes()));
}

absl::Status AnswerZeros(absl::Duration delay, MutableBf16Rows replies) {
  std::this_thread::sleep_for(absl::ToChronoNanoseconds(delay));
  for (int64_t row = 0; row < replies.num_rows; ++row) {
    std::fill_n(replies.row(row), replies.width, ToBf16(0));
  }
  return absl::OkStatus();
}

}  // namespace

ExpertParticipant::ExpertParticipant(const ExpertParticipantOptions& options,
                                     const Checkpoint& checkpoint, const Kernels& kernels,
                                     Executor* executor, const Clock& clock)
    : options_(options),
      checkpoint_(checkpoint),
      kernels_(kernels),
      executor_(*executor),
      clock_(clock) {}

ExpertParticipant::~ExpertParticipant() { Stop(); }

void ExpertParticipant::Stop() {
  std::shared_ptr<DispatchServer> server;  // ends outside the lock: it waits for a dispatch
  MutexLock lock(mutex_);
  server = std::move(server_);
  slot_.reset();
}

bool ExpertParticipant::Drain(absl::Duration timeout) {
  std::shared_ptr<DispatchServer> server;
  {
    MutexLock lock(mutex_);
    is_draining_ = true;
    server = server_;
  }
  return server == nullptr || server->Drain(timeout);
}

absl::StatusOr<SlotReady> ExpertParticipant::Load(const SlotAssignment& slot,
                                                  const Progress& progress) {
  MOEBIUS_ASSIGN_OR_RETURN(std::shared_ptr<ExpertPipeline> pipeline, LoadExperts(slot, progress));
  const int64_t bytes = pipeline == nullptr ? 0 : pipeline->weight_bytes();
  MOEBIUS_RETURN_IF_ERROR(Serve(slot, std::move(pipeline)));
  SlotReady ready;
  ready.loaded_bytes = bytes;
  ready.total_bytes = bytes;
  ready.tier = options_.mock_delay.has_value() ? "mock" : std::string(TierName(kernels_.tier));
  ready.threads = executor_.num_threads();
  return ready;
}

// The weights that the slot needs: those that are there when they are the same. Null for a mock.
absl::StatusOr<std::shared_ptr<ExpertPipeline>> ExpertParticipant::LoadExperts(
    const SlotAssignment& slot, const Progress& progress) {
  if (options_.mock_delay.has_value()) return std::shared_ptr<ExpertPipeline>();
  {
    MutexLock lock(mutex_);
    if (slot_.has_value() && slot_->held == slot.held) return pipeline_;
  }
  MOEBIUS_ASSIGN_OR_RETURN(const int64_t bytes,
                           ExpertPipeline::PackedBytes(checkpoint_, slot.held));
  MOEBIUS_RETURN_IF_ERROR(WithHint(
      CheckFits(options_.memory, bytes, 0),
      "start more expert services, give the router --expert-replicas 1, or raise the memory "
      "limit"));
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<ExpertPipeline> loaded,
                           ExpertPipeline::Load(
                               checkpoint_, slot.held, kernels_, executor_,
                               [&](int64_t loaded_bytes, int64_t total_bytes) {
                                 progress(loaded_bytes, total_bytes);
                                 if (options_.on_progress)
                                   options_.on_progress(loaded_bytes, total_bytes);
                               },
                               options_.cache));
  if (options_.on_loaded) options_.on_loaded(loaded->load_figures());
  return std::shared_ptr<ExpertPipeline>(std::move(loaded));
}

// Replaces what is served. The server goes on where its room is enough, so that no dispatch of
// another router is lost: a transport has room for one server of dispatches at a time.
absl::Status ExpertParticipant::Serve(const SlotAssignment& slot,
                                      std::shared_ptr<ExpertPipeline> pipeline) {
  MOEBIUS_CHECK(transport_ != nullptr);
  std::shared_ptr<DispatchServer> before;
  {
    MutexLock lock(mutex_);
    if (server_ != nullptr && slot_->row_budget >= slot.row_budget) {
      slot_->held = slot.held;
      pipeline_ = std::move(pipeline);
      return absl::OkStatus();
    }
    before = std::move(server_);
    pipeline_ = std::move(pipeline);
    slot_.reset();  // until the new server has room
  }
  before.reset();
  DispatchServerOptions options;
  options.shape = ShapeOf(checkpoint_.config());
  options.hidden_size = checkpoint_.config().hidden_size;
  options.row_budget = slot.row_budget;
  options.queue = options_.queue;
  options.instruments = &instruments_;
  options.on_not_held = options_.on_not_held;
  if (!options_.mock_delay.has_value()) options.brief_rows = BriefRowsOf(checkpoint_.config());
  MOEBIUS_ASSIGN_OR_RETURN(
      std::unique_ptr<DispatchServer> server,
      DispatchServer::Start(options, transport_, &executor_, BuildForward(), clock_));
  MutexLock lock(mutex_);
  slot_ = slot;
  server_ = std::move(server);
  if (is_draining_) server_->Drain(absl::ZeroDuration());
  return absl::OkStatus();
}

// Of what is held when a dispatch is served.
DispatchServer::Forward ExpertParticipant::BuildForward() const {
  if (options_.mock_delay.has_value()) {
    return [delay = *options_.mock_delay](LayerId, const ServiceDispatch&, Bf16Rows,
                                          MutableBf16Rows replies, const ExpertPipeline::Pause&) {
      return AnswerZeros(delay, replies);
    };
  }
  return [this](LayerId layer, const ServiceDispatch& dispatch, Bf16Rows rows,
                MutableBf16Rows replies, const ExpertPipeline::Pause& pause) {
    std::shared_ptr<ExpertPipeline> pipeline;
    {
      MutexLock lock(mutex_);
      pipeline = pipeline_;
    }
    return pipeline->Forward(layer, dispatch, rows, replies, pause);
  };
}

void ExpertParticipant::OnRouterDown(const PeerInfo& router) {
  PeerInfo dead = router;
  dead.state = PeerState::kDead;
  MutexLock lock(mutex_);  // so that the server's end is never on this thread
  if (server_ != nullptr) server_->OnPeerState(dead);
}

std::vector<HeldExpert> ExpertParticipant::held() const {
  MutexLock lock(mutex_);
  return slot_.has_value() ? slot_->held : std::vector<HeldExpert>();
}

ExpertParticipantFigures ExpertParticipant::figures() const {
  MutexLock lock(mutex_);
  ExpertParticipantFigures figures;
  if (pipeline_ != nullptr) {
    figures.num_held = pipeline_->num_held();
    figures.weight_bytes = pipeline_->weight_bytes();
  }
  if (server_ != nullptr) figures.dispatches = server_->figures();
  return figures;
}

}  // namespace moebius
