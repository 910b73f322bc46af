// SPDX-License-Identifier: Apache-2.0
#include "expert_service/expert_loader.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/clock.h"
#include "moebius/base/status.h"
#include "moebius/kernels/packed_matrix.h"
#include "moebius/model/quantization.h"

namespace moebius {
namespace {

absl::Duration Now() { return Clock::Monotonic().Now(); }

// "0:0-31 1:0-31,64": by layer, the ids in their order, runs of neighbours as ranges.
std::string ContentsText(absl::Span<const HeldExpert> experts) {
  std::string text;
  for (size_t i = 0; i < experts.size();) {
    size_t end = i + 1;
    while (end < experts.size() && experts[end].layer == experts[i].layer &&
           experts[end].id.value() == experts[end - 1].id.value() + 1) {
      ++end;
    }
    const bool is_new_layer = i == 0 || experts[i].layer != experts[i - 1].layer;
    if (is_new_layer) {
      absl::StrAppend(&text, i == 0 ? "" : " ", experts[i].layer.value(), ":");
    } else {
      text += ',';
    }
    absl::StrAppend(&text, experts[i].id.value());
    if (end > i + 1) absl::StrAppend(&text, "-", experts[end - 1].id.value());
    i = end;
  }
  return text;
}

absl::Status PackExpert(const Checkpoint& checkpoint, const HeldExpert& held, PairOrder order,
                        absl::Span<uint8_t> storage, LoadPhases& phases) {
  const absl::Duration begin = Now();
  MOEBIUS_ASSIGN_OR_RETURN(const ExpertWeights weights,
                           checkpoint.ExpertSlice(held.layer, held.id));
  const absl::Duration read = Now();
  PackedExpert::Pack(weights.gate.rows(), weights.up.rows(), weights.down.rows(), order, storage);
  phases.AddRead(read - begin);
  phases.AddPack(Now() - read);
  return absl::OkStatus();
}

}  // namespace

ExpertShape ExpertShapeOf(const Checkpoint& checkpoint, const HeldExpert& held) {
  const auto& [gate_up, down] = checkpoint.BlocksOf(held.layer, held.id);
  return {.intermediate_size = checkpoint.SliceWidth(held.layer, held.id),
          .hidden_size = checkpoint.config().hidden_size,
          .gate_up = gate_up,
          .down = down};
}

absl::StatusOr<PackedExperts> LoadExperts(const Checkpoint& checkpoint,
                                          absl::Span<const HeldExpert> experts,
                                          const ExpertLoadOptions& options) {
  std::vector<int64_t> sizes;
  for (const HeldExpert& held : experts) {
    sizes.push_back(PackedExpert::BytesOf(ExpertShapeOf(checkpoint, held)));
  }
  int64_t total_bytes = 0;
  const std::vector<WeightPart> parts = LayOutParts(sizes, &total_bytes);
  const std::string types = WithBlockSize(FeedForwardWeightTypes(checkpoint.match().parameters),
                                          checkpoint.config().quantization);
  const PackedKey key = {"experts", PackedLayoutName(types, options.order), ContentsText(experts)};
  PackedExperts packed;
  MOEBIUS_ASSIGN_OR_RETURN(packed.arena, WeightArena::Make(total_bytes));
  const WeightLoad load = {.checkpoint = checkpoint,
                           .key = key,
                           .parts = parts,
                           .cache = options.cache,
                           .num_threads = options.num_threads,
                           .on_progress = options.on_progress};
  MOEBIUS_ASSIGN_OR_RETURN(
      packed.figures,
      LoadWeights(load, *packed.arena,
                  [&](size_t part, absl::Span<uint8_t> storage, LoadPhases& phases) {
                    return PackExpert(checkpoint, experts[part], options.order, storage, phases);
                  }));
  for (size_t i = 0; i < experts.size(); ++i) {
    packed.experts.push_back(
        PackedExpert::View(ExpertShapeOf(checkpoint, experts[i]), options.order,
                           packed.arena->Range(parts[i].begin, parts[i].size_bytes)));
  }
  return packed;
}

}  // namespace moebius
