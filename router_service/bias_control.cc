// SPDX-License-Identifier: Apache-2.0
#include "router_service/bias_control.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/base/hash.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr absl::string_view kModeNames[] = {"off", "shadow", "on"};

absl::Status CheckDemand(const BiasUpdate::Layer& window, int64_t num_experts) {
  if (static_cast<int64_t>(window.demand.size()) != num_experts) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", window.layer, ": demand has ",
                                                   window.demand.size(), " values for ",
                                                   num_experts, " experts"));
  }
  // So that sums over all experts and windows stay far from overflow.
  constexpr int64_t kMost = int64_t{1} << 40;
  for (const int64_t demand : window.demand) {
    if (demand >= 0 && demand <= kMost) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", window.layer, ": demand ", demand, " is not in [0, ", kMost, "]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view BiasModeName(BiasMode mode) { return kModeNames[static_cast<size_t>(mode)]; }

absl::StatusOr<BiasMode> ParseBiasMode(absl::string_view text) {
  for (size_t mode = 0; mode < std::size(kModeNames); ++mode) {
    if (kModeNames[mode] == text) return static_cast<BiasMode>(mode);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is none of ", absl::StrJoin(kModeNames, ", ")));
}

absl::Status ValidateBiasControl(const BiasControlOptions& options) {
  MOEBIUS_RETURN_IF_ERROR(ValidateBiasOptions(options.balancer));
  if (options.window >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("bias: window is ", options.window, "; it must be at least 0"));
}

std::unique_ptr<BiasControl> MakeBiasControl(const BiasControlOptions& options,
                                             const Checkpoint& checkpoint,
                                             const RouterWeights& weights) {
  const ModelConfig& config = checkpoint.config();
  std::vector<std::vector<float>> base(static_cast<size_t>(config.num_layers));
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.IsMoeLayer(layer)) continue;
    const auto index = static_cast<size_t>(layer);
    base[index] = weights.gates[index].bias;
    base[index].resize(static_cast<size_t>(config.gate.num_experts));  // zeros without one
  }
  return std::make_unique<BiasControl>(options, config.gate, std::move(base),
                                       FormatHash64(checkpoint.model_hash()));
}

BiasControl::BiasControl(const BiasControlOptions& options, const GateConfig& gate,
                         std::vector<std::vector<float>> base, std::string model_hash)
    : options_([&] {
        BiasControlOptions fitting = options;
        fitting.balancer.unit = BiasUnitOf(gate.score_function);
        return fitting;
      }()),
      num_layers_(static_cast<int64_t>(base.size())),
      num_experts_(gate.num_experts),
      model_hash_(std::move(model_hash)) {
  MOEBIUS_CHECK(ValidateBiasControl(options_).ok());
  MutexLock lock(mutex_);
  for (size_t layer = 0; layer < base.size(); ++layer) {
    if (base[layer].empty()) continue;
    MOEBIUS_CHECK_EQ(static_cast<int64_t>(base[layer].size()), num_experts_);
    layer_ids_.push_back(static_cast<int32_t>(layer));
    layers_.push_back({BiasBalancer(options_.balancer, std::move(base[layer]))});
  }
  Publish();
}

std::shared_ptr<const BiasSnapshot> BiasControl::Current() const {
  if (options_.mode == BiasMode::kOff) return nullptr;
  MutexLock lock(mutex_);
  return snapshot_;
}

void BiasControl::Publish() {
  auto snapshot = std::make_shared<BiasSnapshot>();
  snapshot->version = version_;
  snapshot->layers.resize(static_cast<size_t>(num_layers_));
  for (size_t index = 0; index < layers_.size(); ++index) {
    const absl::Span<const float> bias = layers_[index].balancer.bias();
    snapshot->layers[static_cast<size_t>(layer_ids_[index])].assign(bias.begin(), bias.end());
  }
  snapshot_ = std::move(snapshot);
}

void BiasControl::Observe(uint64_t version, absl::Span<const BiasObservation> step) {
  MutexLock lock(mutex_);
  if (options_.mode == BiasMode::kOff || version != version_) return;
  for (const BiasObservation& seen : step) {
    const absl::StatusOr<size_t> index = IndexOf(seen.layer.value());
    MOEBIUS_CHECK(index.ok());
    Layer& layer = layers_[*index];
    layer.balancer.Observe(seen.demand, seen.spread);
    layer.rows += seen.num_rows;
    layer.changed_rows += seen.changed_rows;
  }
  if (options_.window > 0 && ObservedPerExpert() >= options_.window) EndWindow();
}

// Rows that are not finite are no demand: layers may differ, and the fullest counts.
int64_t BiasControl::ObservedPerExpert() const {
  int64_t most = 0;
  for (const Layer& layer : layers_) most = std::max(most, layer.balancer.observed());
  return layers_.empty() ? 0 : most / num_experts_;
}

void BiasControl::EndWindow() {
  for (Layer& layer : layers_) {
    layer.balancer.EndWindow();
    layer.changed_ratio =
        layer.rows == 0 ? 0
                        : static_cast<double>(layer.changed_rows) / static_cast<double>(layer.rows);
    layer.rows = layer.changed_rows = 0;
  }
  ++version_;
  Publish();
}

uint64_t BiasControl::version() const {
  MutexLock lock(mutex_);
  return version_;
}

BiasTable BiasControl::Read() const {
  MutexLock lock(mutex_);
  BiasTable table;
  table.mode = std::string(BiasModeName(options_.mode));
  table.version = version_;
  table.gamma = options_.balancer.gamma;
  table.limit = options_.balancer.limit;
  table.window = options_.window;
  table.observed = ObservedPerExpert();
  table.model_hash = model_hash_;
  for (size_t index = 0; index < layers_.size(); ++index) {
    const BiasBalancer& balancer = layers_[index].balancer;
    LayerBias& layer = table.layers.emplace_back();
    layer.layer = layer_ids_[index];
    layer.base.assign(balancer.base().begin(), balancer.base().end());
    layer.bias.assign(balancer.bias().begin(), balancer.bias().end());
    layer.max_violation = balancer.max_violation();
    layer.max_delta = balancer.max_delta();
    layer.changed_ratio = layers_[index].changed_ratio;
  }
  return table;
}

absl::Status BiasControl::Update(const BiasUpdate& update) {
  if (options_.mode == BiasMode::kOff) {
    return WithHint(absl::FailedPreconditionError("this router has no bias balancer"),
                    "start it with --bias-balancer=shadow or --bias-balancer=on");
  }
  MutexLock lock(mutex_);
  if (update.expected_version.value_or(version_) != version_) {
    return absl::AbortedError(
        absl::StrCat("the biases have version ", version_, ", not ", *update.expected_version));
  }
  std::vector<Layer> changed = layers_;
  MOEBIUS_RETURN_IF_ERROR(Apply(update, changed));
  layers_ = std::move(changed);
  ++version_;
  Publish();
  return absl::OkStatus();
}

absl::Status BiasControl::Apply(const BiasUpdate& update, std::vector<Layer>& layers) const {
  const int kinds = static_cast<int>(!update.set.empty()) +
                    static_cast<int>(!update.windows.empty()) + static_cast<int>(update.reset);
  if (kinds != 1) {
    return absl::InvalidArgumentError(
        "an update sets biases, moves them by windows, or resets them: one of the three");
  }
  for (Layer& layer : layers) {
    layer.rows = layer.changed_rows = 0;
    // A window at hand was made under biases that are not any more.
    std::vector<float> bias(layer.balancer.bias().begin(), layer.balancer.bias().end());
    layer.balancer.Reset();
    if (update.reset) continue;
    MOEBIUS_RETURN_IF_ERROR(layer.balancer.Set(bias));
  }
  for (const BiasUpdate::Layer& set : update.set) {
    MOEBIUS_ASSIGN_OR_RETURN(const size_t index, IndexOf(set.layer));
    MOEBIUS_RETURN_IF_ERROR(
        WithContext(layers[index].balancer.Set(set.bias), absl::StrCat("layer ", set.layer)));
  }
  for (const BiasUpdate::Layer& window : update.windows) {
    MOEBIUS_ASSIGN_OR_RETURN(const size_t index, IndexOf(window.layer));
    MOEBIUS_RETURN_IF_ERROR(CheckDemand(window, num_experts_));
    // Nobody tells the scores: γ is taken as it is measured for the published gate.
    layers[index].balancer.Observe(window.demand, kUnitSpread);
    layers[index].balancer.EndWindow();
  }
  return absl::OkStatus();
}

absl::Status BiasControl::Restore(const BiasTable& saved) {
  if (options_.mode == BiasMode::kOff) return absl::OkStatus();
  if (saved.model_hash != model_hash_) {
    return WithHint(
        absl::FailedPreconditionError(absl::StrCat("the saved biases are of model ",
                                                   saved.model_hash, ", this is ", model_hash_)),
        "give --bias-file another name for each model");
  }
  BiasUpdate update;
  for (const LayerBias& layer : saved.layers) {
    BiasUpdate::Layer& set = update.set.emplace_back();
    set.layer = layer.layer;
    set.bias = layer.bias;
  }
  MOEBIUS_RETURN_IF_ERROR(Update(update));
  MutexLock lock(mutex_);
  version_ = saved.version;
  Publish();
  return absl::OkStatus();
}

absl::StatusOr<size_t> BiasControl::IndexOf(int32_t layer) const {
  const auto found = std::lower_bound(layer_ids_.begin(), layer_ids_.end(), layer);
  if (found == layer_ids_.end() || *found != layer) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layer, " has no gate; those with one: ", absl::StrJoin(layer_ids_, ", ")));
  }
  return static_cast<size_t>(found - layer_ids_.begin());
}

}  // namespace moebius
