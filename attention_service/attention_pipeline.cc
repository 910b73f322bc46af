// SPDX-License-Identifier: Apache-2.0
#include "attention_service/attention_pipeline.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "attention_service/attention_weights.h"
#include "attention_service/held_kv.h"
#include "attention_service/kv_cache.h"
#include "attention_service/kv_layout.h"
#include "attention_service/packed_attention.h"
#include "attention_service/projections.h"
#include "attention_service/sharded_sum.h"
#include "attention_service/span_compute.h"
#include "attention_service/span_sum.h"
#include "moebius/base/brief_work.h"
#include "moebius/base/clock.h"
#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/kernels/block_gemm.h"
#include "moebius/kernels/packed_matrix.h"
#include "moebius/model/quantization.h"
#include "moebius/model/weight_load.h"
#include "moebius/tensor/weight_arena.h"

namespace moebius {
namespace {

absl::Status CheckSharding(const Sharding& sharding) {
  const Shard& shard = sharding.shard;
  if (shard.is_alone() == (sharding.exchange == nullptr)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("attention rank ", shard.rank, " of ", shard.num_ranks,
                   sharding.exchange == nullptr ? " without" : " with", " an exchange"));
}

// One layer read and packed into its part of an arena.
absl::Status PackLayer(const Checkpoint& checkpoint, const AttentionFacts& facts, int64_t layer,
                       PairOrder order, absl::Span<uint8_t> storage, LoadPhases& phases) {
  const Clock& clock = Clock::Monotonic();
  const absl::Duration begin = clock.Now();
  MOEBIUS_ASSIGN_OR_RETURN(const AttentionLayerWeights weights,
                           LoadAttentionLayer(checkpoint, layer));
  const absl::Duration read = clock.Now();
  const auto packed = PackedAttentionLayer::Pack(facts, weights, order, storage);
  phases.AddRead(read - begin);
  phases.AddPack(clock.Now() - read);
  return packed.status();
}

}  // namespace

class AttentionPipeline::Impl {
 public:
  // The attention of the layers with one window: what a step computes is the same in all of them.
  struct Sums {
    Sums(KeyWindow window, SpanCompute& compute) : window(window), local(compute, window) {}
    bool is_local() const { return sharded == nullptr || sharded->is_empty(); }

    KeyWindow window;
    SpanSum local;
    std::unique_ptr<ShardedSum> sharded;  // with an exchange
  };

  Impl(const AttentionFacts& facts, const KvLayout& layout, int64_t num_blocks,
       const Kernels& kernels, Executor& executor, const Sharding& sharding)
      : facts(facts),
        kernels(kernels),
        executor(executor),
        shard(sharding.shard),
        exchange(sharding.exchange),
        geometry(GeometryOf(facts, sharding.shard.num_ranks)),
        position_bytes(KvCache::BlockBytes(layout, 1) / facts.key_block),
        cache(layout, geometry, facts.num_layers, num_blocks, shard),
        projections(facts, layout, kernels, executor),
        compute(facts, geometry, layout, kernels, executor),
        held(compute, layout, cache, layers, shard) {
    for (int64_t layer = 0; layer < facts.num_layers; ++layer) {
      sums_of.push_back(&SumsWith(facts.WindowOf(layer), layout));
      if (exchange != nullptr) held.ShareHeads(sums_of.back()->sharded->heads());
    }
    if (exchange != nullptr) exchange->Attach(&held);
  }
  ~Impl() {
    EndExchange();
    if (exchange != nullptr) exchange->Attach(nullptr);
  }

  absl::Status LoadLayers(const Checkpoint& checkpoint, const AttentionLoadOptions& options) {
    int64_t total_bytes = 0;
    std::vector<AttentionBlocks> blocks;
    std::vector<int64_t> sizes;
    for (int64_t layer = 0; layer < facts.num_layers; ++layer) {
      blocks.push_back(AttentionBlocksOf(checkpoint, layer));
      sizes.push_back(PackedAttentionLayer::BytesOf(facts, blocks.back()));
    }
    const std::vector<WeightPart> parts = LayOutParts(sizes, &total_bytes);
    MOEBIUS_ASSIGN_OR_RETURN(arena, WeightArena::Make(total_bytes));
    const std::string types = WithBlockSize(AttentionWeightTypes(checkpoint.match().parameters),
                                            checkpoint.config().quantization);
    const PackedKey key = {"attention", PackedLayoutName(types, kernels.pair_order), "all layers"};
    WeightLoad load = {.checkpoint = checkpoint, .key = key, .parts = parts};
    load.cache = options.cache;
    load.num_threads = executor.num_threads();
    if (options.on_loaded) {
      load.on_progress = [&](int64_t bytes) { options.on_loaded(bytes, total_bytes); };
    }
    const auto pack = [&](size_t part, absl::Span<uint8_t> storage, LoadPhases& phases) {
      const auto layer = static_cast<int64_t>(part);
      return WithContext(PackLayer(checkpoint, facts, layer, kernels.pair_order, storage, phases),
                         absl::StrCat("layer ", layer));
    };
    MOEBIUS_ASSIGN_OR_RETURN(load_figures, LoadWeights(load, *arena, pack));
    for (int64_t layer = 0; layer < facts.num_layers; ++layer) {
      const WeightPart& part = parts[static_cast<size_t>(layer)];
      MOEBIUS_ASSIGN_OR_RETURN(const AttentionLayerWeights vectors,
                               LoadAttentionLayer(checkpoint, layer, AttentionParts::kVectors));
      auto packed =
          PackedAttentionLayer::View(facts, vectors, blocks[static_cast<size_t>(layer)],
                                     kernels.pair_order, arena->Range(part.begin, part.size_bytes));
      if (!packed.ok()) return WithContext(packed.status(), absl::StrCat("layer ", layer));
      layers.push_back(*std::move(packed));
    }
    return absl::OkStatus();
  }

  void BeginStep(const StepPlan& new_plan) {
    plan = new_plan;
    FillOwnedRows(plan, geometry, shard, owned);
    is_brief = false;
    if (mock_delay.has_value()) return;
    executor.Run([&] {
      projections.BeginStep(owned.rows, cache);
      for (const auto& of : sums) {
        FindRows(/*of_others_too=*/false, of->window, found);
        of->local.BeginStep(found);
      }
    });
    is_brief = ReadsLittle();
    if (exchange == nullptr) return;
    for (const auto& of : sums) {
      FindRows(/*of_others_too=*/true, of->window, found);
      of->sharded->BeginStep(plan, found);
      is_brief = is_brief && of->is_local();
    }
    CountMethods();
    held.BeginStep(plan);
    exchange->BeginStep(plan);
    in_exchange = true;
    // Who has no rows has nothing to store: others need not wait for it.
    for (int64_t layer = 0; owned.num_rows == 0 && layer < facts.num_layers; ++layer) {
      exchange->Publish(layer);
    }
  }

  absl::Status RunLayer(int64_t layer, Bf16Rows normed, MutableBf16Rows out) {
    Sums& of = *sums_of[static_cast<size_t>(layer)];
    SpanCompute::Layer inputs{.weights = &layers[static_cast<size_t>(layer)],
                              .kv = {.cache = &cache, .layer = layer},
                              .window = of.window};
    const bool is_local = of.is_local();
    if (!is_local) of.sharded->BeginLayer();
    executor.Run([&] {
      inputs.queries = projections.Run(*inputs.weights, layer, normed, cache);
      if (exchange != nullptr) exchange->Publish(layer);
      heads.Reset(normed.num_rows, inputs.weights->output.depth());
      if (!is_local) return;
      of.local.Run(inputs, heads.rows());
      ParallelMatMulBf16(executor, kernels, heads.rows(), inputs.weights->output, {}, out);
    });
    if (is_local) return absl::OkStatus();
    MOEBIUS_RETURN_IF_ERROR(of.sharded->Start(inputs));
    executor.Run([&] { of.local.Run(inputs, heads.rows()); });
    MOEBIUS_RETURN_IF_ERROR(of.sharded->Run(inputs, heads.rows()));
    executor.Run([&] {
      ParallelMatMulBf16(executor, kernels, heads.rows(), inputs.weights->output, {}, out);
    });
    return absl::OkStatus();
  }

  static absl::Status AnswerZeros(absl::Duration delay, MutableBf16Rows out) {
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(delay));
    for (int64_t row = 0; row < out.num_rows; ++row) {
      std::fill_n(out.row(row), out.width, ToBf16(0));
    }
    return absl::OkStatus();
  }

  // Nobody reads the cache for others any more when it returns.
  void EndExchange() {
    if (in_exchange) exchange->EndStep();
    in_exchange = false;
  }

  // The sums of the layers with this window.
  Sums& SumsWith(KeyWindow window, const KvLayout& layout) {
    for (const auto& of : sums) {
      if (of->window == window) return *of;
    }
    sums.push_back(std::make_unique<Sums>(window, compute));
    if (exchange != nullptr) {
      sums.back()->sharded =
          std::make_unique<ShardedSum>(compute, layout, window, shard, *exchange, counters);
    }
    return *sums.back();
  }

  // All ranks' rows of the step: what they ask this one for is part of its work.
  bool ReadsLittle() const {
    int64_t bytes = 0;
    for (const PackedAttentionLayer& layer : layers) bytes = std::max(bytes, layer.bytes());
    for (const SessionRows& session : plan.sessions) {
      if (session.num_rows > 0) bytes += session.position_end() * position_bytes;
    }
    return plan.num_rows <= kMaxBriefRows && bytes <= kMaxBriefBytes;
  }

  void CountMethods() {
    for (const SessionRows& session : plan.sessions) {
      const bool has_prompt_rows =
          session.num_rows > 0 && session.position_begin < session.prompt_length;
      if (has_prompt_rows) ++counters.methods[static_cast<size_t>(session.method)];
    }
  }

  // Rows that cannot be computed here alone under a window, or the rest of this rank's rows.
  void FindRows(bool of_others_too, KeyWindow window, std::vector<RoleRows>& rows) const {
    rows.clear();
    for (const RoleRows& part : owned.rows) {
      const SpanRange seen = SeenSpansOf(part, geometry, window);
      const SessionRows& session = plan.sessions[static_cast<size_t>(part.session_index)];
      const bool by_heads = part.role == TokenRole::kPrompt && SharesHeads(session);
      const bool sees_foreign = NumOwnedSpans(seen, session.first_rank, shard) < seen.size();
      if ((sees_foreign || by_heads) == of_others_too) rows.push_back(part);
    }
  }

  AttentionFacts facts;
  const Kernels& kernels;
  Executor& executor;
  const Shard shard;
  KvExchange* const exchange;  // null: a rank alone
  const SpanGeometry geometry;
  const int64_t position_bytes;        // KV of a position in one layer
  std::unique_ptr<WeightArena> arena;  // of the layers, where they were loaded
  WeightLoadFigures load_figures;
  std::vector<PackedAttentionLayer> layers;
  KvCache cache;
  Projections projections;
  SpanCompute compute;
  ShardCounters counters;
  std::vector<std::unique_ptr<Sums>> sums;  // one for each window that a layer has
  std::vector<Sums*> sums_of;               // by layer
  HeldKv held;
  StepPlan plan;                // of the open step
  OwnedRows owned;              // its rows of this rank
  std::vector<RoleRows> found;  // of FindRows
  RowBatch<Bf16> heads;         // [owned rows, heads * v_head_dim]: attention outputs
  bool is_brief = false;        // the open step
  bool in_exchange = false;
  std::optional<absl::Duration> mock_delay;
};

AttentionPipeline::AttentionPipeline(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AttentionPipeline::~AttentionPipeline() = default;

absl::StatusOr<std::unique_ptr<AttentionPipeline>> AttentionPipeline::Load(
    const Checkpoint& checkpoint, const Kernels& kernels, Executor& executor,
    int64_t kv_budget_bytes, const Sharding& sharding, const AttentionLoadOptions& options) {
  MOEBIUS_RETURN_IF_ERROR(CheckSharding(sharding));
  const AttentionFacts facts = AttentionFactsOf(checkpoint);
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl,
                           MakeImpl(facts, kernels, executor, kv_budget_bytes, sharding));
  MOEBIUS_RETURN_IF_ERROR(impl->LoadLayers(checkpoint, options));
  return std::unique_ptr<AttentionPipeline>(new AttentionPipeline(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<AttentionPipeline>> AttentionPipeline::Make(
    const AttentionFacts& facts, AttentionLayerSource source, const Kernels& kernels,
    Executor& executor, int64_t kv_budget_bytes, const Sharding& sharding) {
  MOEBIUS_RETURN_IF_ERROR(CheckSharding(sharding));
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl,
                           MakeImpl(facts, kernels, executor, kv_budget_bytes, sharding));
  for (int64_t layer = 0; layer < facts.num_layers; ++layer) {
    MOEBIUS_ASSIGN_OR_RETURN(const AttentionLayerWeights weights, source(layer));
    auto packed = PackedAttentionLayer::Pack(facts, weights, kernels.pair_order);
    if (!packed.ok()) return WithContext(packed.status(), absl::StrCat("layer ", layer));
    impl->layers.push_back(*std::move(packed));
  }
  return std::unique_ptr<AttentionPipeline>(new AttentionPipeline(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<AttentionPipeline>> AttentionPipeline::MakeMock(
    const AttentionFacts& facts, absl::Duration delay, const Kernels& kernels, Executor& executor,
    int64_t kv_budget_bytes, const Shard& shard) {
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl,
                           MakeImpl(facts, kernels, executor, kv_budget_bytes, {shard, nullptr}));
  impl->mock_delay = delay;
  return std::unique_ptr<AttentionPipeline>(new AttentionPipeline(std::move(impl)));
}

// Everything but weights.
absl::StatusOr<std::unique_ptr<AttentionPipeline::Impl>> AttentionPipeline::MakeImpl(
    const AttentionFacts& facts, const Kernels& kernels, Executor& executor,
    int64_t kv_budget_bytes, const Sharding& sharding) {
  const Shard shard = sharding.shard;
  if (shard.num_ranks < 1 || shard.rank < 0 || shard.rank >= shard.num_ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no attention rank ", shard.rank, " of ", shard.num_ranks));
  }
  MOEBIUS_RETURN_IF_ERROR(CheckKvBudget(facts, kernels, kv_budget_bytes));
  const KvLayout layout(facts, kernels.pair_order);
  const int64_t block_bytes = KvCache::BlockBytes(layout, facts.num_layers);
  return std::make_unique<Impl>(facts, layout, kv_budget_bytes / block_bytes, kernels, executor,
                                sharding);
}

absl::Status AttentionPipeline::CheckKvBudget(const AttentionFacts& facts, const Kernels& kernels,
                                              int64_t kv_budget_bytes) {
  MOEBIUS_RETURN_IF_ERROR(ValidateAttentionFacts(facts));
  const int64_t block_bytes =
      KvCache::BlockBytes(KvLayout(facts, kernels.pair_order), facts.num_layers);
  if (kv_budget_bytes >= block_bytes) return absl::OkStatus();
  return WithHint(absl::ResourceExhaustedError(absl::StrCat(
                      "a KV budget of ", kv_budget_bytes, " bytes holds no block: ",
                      facts.key_block, " positions of this model take ", block_bytes, " bytes")),
                  absl::StrCat("give --kv-budget ", block_bytes, " or more"));
}

absl::Status AttentionPipeline::BeginStep(const StepPlan& plan) {
  AbortStep();
  absl::Status status = ValidateStepPlan(plan);
  if (status.ok() && !impl_->facts.config.is_causal) status = CheckWholePrompts(plan);
  const int32_t num_ranks = impl_->shard.num_ranks;
  if (const int32_t parts = UlyssesRanksOf(plan); status.ok() && num_ranks % parts != 0) {
    status = absl::InvalidArgumentError(
        absl::StrCat("groups of ", parts, " attention ranks do not divide ", num_ranks));
  }
  if (status.ok()) status = impl_->cache.BeginStep(plan);
  if (!status.ok()) {
    if (impl_->exchange != nullptr) impl_->exchange->RefuseStep(plan, status);
    return status;
  }
  impl_->BeginStep(plan);
  return absl::OkStatus();
}

absl::Status AttentionPipeline::RunLayer(int64_t layer, Bf16Rows normed, MutableBf16Rows out) {
  if (!impl_->cache.has_open_step()) {
    return absl::FailedPreconditionError("attention has no open step");
  }
  if (layer < 0 || layer >= impl_->facts.num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, " is not in [0, ", impl_->facts.num_layers, ")"));
  }
  const int64_t num_rows = impl_->owned.num_rows;
  const int64_t hidden_size = impl_->facts.hidden_size;
  if (normed.num_rows != num_rows || normed.width != hidden_size || out.num_rows != num_rows ||
      out.width != hidden_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention rows are [", normed.num_rows, ", ", normed.width, "] in and [", out.num_rows,
        ", ", out.width, "] out, the step has [", num_rows, ", ", hidden_size, "]"));
  }
  const bool takes_part = !impl_->sums_of[static_cast<size_t>(layer)]->is_local();
  if (num_rows == 0 && !takes_part) return absl::OkStatus();
  if (impl_->mock_delay.has_value()) return Impl::AnswerZeros(*impl_->mock_delay, out);
  return impl_->RunLayer(layer, normed, out);
}

absl::Status AttentionPipeline::CommitStep() {
  if (!impl_->cache.has_open_step()) {
    return absl::FailedPreconditionError("attention has no open step");
  }
  impl_->EndExchange();
  impl_->cache.CommitStep();
  return absl::OkStatus();
}

void AttentionPipeline::AbortStep() {
  impl_->EndExchange();
  impl_->cache.AbortStep();
}

void AttentionPipeline::EndSession(SessionId session) {
  const std::vector<SessionRows>& rows = impl_->plan.sessions;
  const bool in_step = std::any_of(rows.begin(), rows.end(), [&](const SessionRows& part) {
    return part.session == session && part.num_rows > 0;
  });
  if (impl_->cache.has_open_step() && in_step) AbortStep();
  impl_->cache.EndSession(session);
}

bool AttentionPipeline::has_open_step() const { return impl_->cache.has_open_step(); }

bool AttentionPipeline::is_brief() const { return impl_->cache.has_open_step() && impl_->is_brief; }

int64_t AttentionPipeline::num_own_rows() const {
  return impl_->cache.has_open_step() ? impl_->owned.num_rows : 0;
}

ShardFigures AttentionPipeline::shard_figures() const { return impl_->counters.Read(); }

int64_t AttentionPipeline::SessionLength(SessionId session) const {
  return impl_->cache.SessionLength(session);
}

KvUsage AttentionPipeline::usage() const { return impl_->cache.usage(); }

const WeightLoadFigures& AttentionPipeline::load_figures() const { return impl_->load_figures; }

int64_t AttentionPipeline::weight_bytes() const {
  int64_t bytes = 0;
  for (const PackedAttentionLayer& layer : impl_->layers) bytes += layer.bytes();
  return bytes;
}

}  // namespace moebius
