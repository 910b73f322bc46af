// SPDX-License-Identifier: Apache-2.0
#include "expert_service/expert_pipeline.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "expert_service/expert_loader.h"
#include "moebius/base/check.h"
#include "moebius/base/clock.h"
#include "moebius/base/status.h"
#include "moebius/routing/assignments.h"
#include "moebius/routing/combine.h"

namespace moebius {
namespace {

// Reply elements of one task: some 50 µs of work, against some 5 µs for a fork and join.
constexpr int64_t kTaskElements = 1 << 15;
constexpr size_t kMaxNamedExperts = 8;

absl::Status CheckExists(const Checkpoint& checkpoint, const HeldExpert& held) {
  const ModelConfig& config = checkpoint.config();
  const int64_t layer = held.layer.value();
  const int64_t id = held.id.value();
  const bool exists = layer >= 0 && layer < config.num_layers && id >= 0 &&
                      (id >= config.gate.num_experts
                           ? id < config.gate.num_experts + checkpoint.NumSlices(held.layer)
                           : config.IsMoeLayer(layer));
  if (exists) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("expert %d of layer %d does not exist in this model", id, layer));
}

}  // namespace

ExpertPipeline::ExpertPipeline(const Kernels& kernels, Executor& executor, int64_t hidden_size)
    : kernels_(kernels), executor_(executor), hidden_size_(hidden_size) {}

absl::StatusOr<std::unique_ptr<ExpertPipeline>> ExpertPipeline::Load(
    const Checkpoint& checkpoint, absl::Span<const HeldExpert> held, const Kernels& kernels,
    Executor& executor, const OnLoaded& on_loaded, PackedCache* cache) {
  const ModelConfig& config = checkpoint.config();
  MOEBIUS_ASSIGN_OR_RETURN(const int64_t total_bytes, PackedBytes(checkpoint, held));
  const std::set<HeldExpert> distinct(held.begin(), held.end());

  std::unique_ptr<ExpertPipeline> pipeline(
      new ExpertPipeline(kernels, executor, config.hidden_size));
  pipeline->layers_.resize(static_cast<size_t>(config.num_layers));
  const std::vector<HeldExpert> experts(distinct.begin(), distinct.end());
  ExpertLoadOptions options;
  options.order = kernels.pair_order;
  options.num_threads = executor.num_threads();
  options.cache = cache;
  if (on_loaded) options.on_progress = [&](int64_t bytes) { on_loaded(bytes, total_bytes); };
  MOEBIUS_ASSIGN_OR_RETURN(PackedExperts packed, LoadExperts(checkpoint, experts, options));
  for (size_t i = 0; i < experts.size(); ++i) {
    pipeline->Hold(experts[i], std::move(packed.experts[i]));
  }
  pipeline->arena_ = std::move(packed.arena);
  pipeline->load_figures_ = packed.figures;
  return pipeline;
}

void ExpertPipeline::Hold(const HeldExpert& held, PackedExpert packed) {
  auto& layer = layers_[static_cast<size_t>(held.layer.value())];
  const auto id = static_cast<size_t>(held.id.value());
  if (layer.size() <= id) layer.resize(id + 1);
  weight_bytes_ += static_cast<int64_t>(packed.bytes());
  layer[id] = std::move(packed);
  ++num_held_;
}

absl::StatusOr<int64_t> ExpertPipeline::PackedBytes(const Checkpoint& checkpoint,
                                                    absl::Span<const HeldExpert> held) {
  for (const HeldExpert& each : held) MOEBIUS_RETURN_IF_ERROR(CheckExists(checkpoint, each));
  const std::set<HeldExpert> distinct(held.begin(), held.end());
  int64_t bytes = 0;
  for (const HeldExpert& each : distinct) {
    bytes += PackedExpert::BytesOf(ExpertShapeOf(checkpoint, each));
  }
  return bytes;
}

const PackedExpert* ExpertPipeline::Find(LayerId layer, ExpertId id) const {
  if (layer.value() < 0 || layer.value() >= static_cast<int64_t>(layers_.size())) return nullptr;
  const auto& experts = layers_[static_cast<size_t>(layer.value())];
  if (id.value() < 0 || id.value() >= static_cast<int64_t>(experts.size())) return nullptr;
  const PackedExpert& expert = experts[static_cast<size_t>(id.value())];
  return expert.bytes() > 0 ? &expert : nullptr;
}

bool ExpertPipeline::Holds(LayerId layer, ExpertId id) const { return Find(layer, id) != nullptr; }

absl::Status ExpertPipeline::CheckHeld(LayerId layer, const ServiceDispatch& dispatch) const {
  std::vector<int32_t> missing;  // allocates only on failure
  for (const ExpertSegment& segment : dispatch.experts) {
    if (!Holds(layer, segment.id)) missing.push_back(segment.id.value());
  }
  if (missing.empty()) return absl::OkStatus();
  std::string names;
  for (size_t i = 0; i < missing.size() && i < kMaxNamedExperts; ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", missing[i]);
  }
  if (missing.size() > kMaxNamedExperts) {
    absl::StrAppend(&names, " and ", missing.size() - kMaxNamedExperts, " more");
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("NOT_HELD: layer %d, expert %s", layer.value(), names));
}

absl::Status ExpertPipeline::Forward(LayerId layer, const ServiceDispatch& dispatch, Bf16Rows rows,
                                     MutableBf16Rows replies, const Pause& pause) {
  MOEBIUS_CHECK(!is_paused_ || pause == nullptr);
  if (dispatch.num_rows() == 0) return absl::OkStatus();
  if (rows.width != hidden_size_ || replies.width != hidden_size_ ||
      replies.num_rows != dispatch.num_reply_rows || dispatch.row_ids.back() >= rows.num_rows) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "layer %d: %d rows of %d and %d reply rows of %d for rows up to %d and %d replies of %d",
        layer.value(), rows.num_rows, rows.width, replies.num_rows, replies.width,
        dispatch.row_ids.back(), dispatch.num_reply_rows, hidden_size_));
  }
  MOEBIUS_RETURN_IF_ERROR(CheckHeld(layer, dispatch));
  // One expert whose every row is a reply of its own: its outputs are the replies.
  const bool outputs_are_replies =
      dispatch.experts.size() == 1 && dispatch.num_reply_rows == dispatch.num_assignments();
  ForwardScratch& scratch = scratch_[is_paused_ ? 1 : 0];
  if (!outputs_are_replies) scratch.outputs.Reset(dispatch.num_assignments(), hidden_size_);
  const MutableBf16Rows outputs = outputs_are_replies ? replies : scratch.outputs.rows();
  scratch.batches.clear();
  for (const ExpertSegment& segment : dispatch.experts) {
    ExpertBatch batch;
    batch.weights = Find(layer, segment.id);
    batch.row_indices = dispatch.expert_rows.subspan(
        static_cast<size_t>(segment.begin), static_cast<size_t>(segment.end - segment.begin));
    batch.out = outputs.Slice(segment.begin, segment.end);
    scratch.batches.push_back(batch);
  }
  RunBatches(rows, pause, scratch);
  if (!outputs_are_replies) WriteReplies(dispatch, replies, scratch);
  return absl::OkStatus();
}

void ExpertPipeline::RunBatches(Bf16Rows rows, const Pause& pause, ForwardScratch& scratch) {
  if (pause == nullptr) {
    ForwardExperts(executor_, kernels_, scratch.batches, rows, scratch.experts);
    return;
  }
  quanta_.Cut(scratch.batches);
  size_t quantum = 0;
  absl::Duration begin = Clock::Monotonic().Now();
  const auto after = [&](int64_t work, bool is_last) {
    quanta_.OnRun(work, Clock::Monotonic().Now() - begin);
    if (is_last && quantum + 1 == quanta_.num_quanta()) return;
    is_paused_ = true;
    pause();
    is_paused_ = false;
    begin = Clock::Monotonic().Now();
  };
  const ForwardPieces pieces{quanta_.max_work(), after};
  for (; quantum < quanta_.num_quanta(); ++quantum) {
    ForwardExperts(executor_, kernels_, quanta_.Quantum(quantum), rows, scratch.experts, &pieces);
  }
}

void ExpertPipeline::WriteReplies(const ServiceDispatch& dispatch, MutableBf16Rows replies,
                                  ForwardScratch& scratch) {
  std::vector<int64_t>& reply_begin = scratch.reply_begin;
  reply_begin.clear();
  for (int64_t a = 0; a < dispatch.num_assignments(); ++a) {
    if (dispatch.joins_previous[static_cast<size_t>(a)] == 0) reply_begin.push_back(a);
  }
  reply_begin.push_back(dispatch.num_assignments());
  const int64_t replies_per_task = std::max<int64_t>(1, kTaskElements / hidden_size_);
  const int64_t num_tasks = (replies.num_rows + replies_per_task - 1) / replies_per_task;
  executor_.ParallelFor(num_tasks, [&](int64_t task, int) {
    absl::InlinedVector<SumTerm, kMaxTopK> terms;
    const int64_t end = std::min((task + 1) * replies_per_task, replies.num_rows);
    for (int64_t reply = task * replies_per_task; reply < end; ++reply) {
      terms.clear();
      for (int64_t a = reply_begin[static_cast<size_t>(reply)];
           a < reply_begin[static_cast<size_t>(reply) + 1]; ++a) {
        const auto index = static_cast<size_t>(a);
        terms.push_back(SumTerm{dispatch.weights[index],
                                scratch.outputs.rows().row(dispatch.expert_position[index])});
      }
      if (terms.size() == 1) {
        std::copy_n(terms[0].values, hidden_size_, replies.row(reply));
      } else {
        SumTerms(kernels_, terms, replies.span(reply));
      }
    }
  });
}

}  // namespace moebius
