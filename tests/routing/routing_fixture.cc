// SPDX-License-Identifier: Apache-2.0
#include "tests/routing/routing_fixture.h"

#include <algorithm>

#include "moebius/base/check.h"
#include "moebius/kernels/math.h"

namespace moebius {

Bf16 ExpertOutput(int64_t row, int32_t id, int64_t column) {
  const uint64_t bits = RandomBits(static_cast<uint64_t>(row) * 4096 + static_cast<uint64_t>(id),
                                   static_cast<uint64_t>(column));
  // Sign and mantissa random, exponents from 2^-4 to 2^3.
  const auto exponent = static_cast<uint16_t>(123 + (bits >> 20) % 8);
  return Bf16{static_cast<uint16_t>((bits & 0x807F) | (exponent << 7))};
}

Assignments RandomAssignments(Random& random, int64_t num_rows, int32_t num_experts, int32_t top_k,
                              uint64_t drop_one_in, uint64_t refuse_one_in) {
  Assignments assignments;
  assignments.Reset(num_rows, top_k);
  std::vector<int32_t> ids(static_cast<size_t>(num_experts));
  for (int32_t e = 0; e < num_experts; ++e) ids[static_cast<size_t>(e)] = e;
  for (int64_t row = 0; row < num_rows; ++row) {
    const bool refused = refuse_one_in > 0 && random.Below(refuse_one_in) == 0;
    if (refused) assignments.refused_rows.push_back(row);
    for (int32_t choice = 0; choice < top_k; ++choice) {
      const auto place = static_cast<size_t>(row * top_k + choice);
      const auto left = static_cast<uint64_t>(num_experts - choice);
      std::swap(ids[static_cast<size_t>(choice)],
                ids[static_cast<size_t>(choice) + random.Below(left)]);
      const int32_t id = ids[static_cast<size_t>(choice)];
      const bool dropped = drop_one_in > 0 && random.Below(drop_one_in) == 0;
      assignments.expert_ids[place] = refused ? kNoExpert : dropped ? MarkDropped(id) : id;
      assignments.weights[place] = refused ? 0.0f : random.Unit();
    }
  }
  return assignments;
}

Placement RandomPlacement(Random& random, const PlacementShape& shape, int32_t num_services,
                          int32_t max_replicas) {
  Placement::Table table(shape.layers.size());
  std::vector<int32_t> order(static_cast<size_t>(num_services));
  for (int32_t s = 0; s < num_services; ++s) order[static_cast<size_t>(s)] = s;
  for (int32_t layer = 0; layer < static_cast<int32_t>(shape.layers.size()); ++layer) {
    for (int32_t id = 0; id < shape.NumIds(LayerId(layer)); ++id) {
      std::vector<ServiceId> services;
      const auto most = static_cast<uint64_t>(std::min(max_replicas, num_services));
      const size_t replicas = shape.Has(LayerId(layer), ExpertId(id)) ? 1 + random.Below(most) : 0;
      for (size_t r = 0; r < replicas; ++r) {
        std::swap(order[r], order[r + random.Below(order.size() - r)]);
        services.emplace_back(order[r]);
      }
      table[static_cast<size_t>(layer)].push_back(services);
    }
  }
  absl::StatusOr<Placement> placement = Placement::Make(Epoch(5), shape, num_services, table);
  MOEBIUS_CHECK(placement.ok());
  return *placement;
}

std::vector<RowBatch<Bf16>> Replies(const DispatchPlan& plan, const Kernels& kernels,
                                    int64_t hidden_size) {
  std::vector<RowBatch<Bf16>> replies;
  for (const ServiceDispatch& dispatch : plan.services()) {
    RowBatch<Bf16> service_replies(dispatch.num_reply_rows, hidden_size);
    int64_t reply = 0;
    for (size_t row = 0; row < dispatch.row_ids.size(); ++row) {
      int64_t a = dispatch.row_begin[row];
      while (a < dispatch.row_begin[row + 1]) {
        std::vector<std::vector<Bf16>> outputs;
        std::vector<float> weights;
        do {
          std::vector<Bf16> output;
          for (int64_t column = 0; column < hidden_size; ++column) {
            output.push_back(ExpertOutput(dispatch.row_ids[row],
                                          dispatch.expert_ids[static_cast<size_t>(a)], column));
          }
          outputs.push_back(std::move(output));
          weights.push_back(dispatch.weights[static_cast<size_t>(a)]);
          ++a;
        } while (a < dispatch.row_begin[row + 1] &&
                 dispatch.joins_previous[static_cast<size_t>(a)] != 0);
        const absl::Span<Bf16> out = service_replies.rows().span(reply++);
        if (outputs.size() == 1) {
          std::copy(outputs[0].begin(), outputs[0].end(), out.begin());
          continue;
        }
        std::vector<SumTerm> terms;
        for (size_t i = 0; i < outputs.size(); ++i) {
          terms.push_back(SumTerm{weights[i], outputs[i].data()});
        }
        SumTerms(kernels, terms, out);
      }
    }
    MOEBIUS_CHECK_EQ(reply, dispatch.num_reply_rows);
    replies.push_back(std::move(service_replies));
  }
  return replies;
}

RowBatch<Bf16> CombineReplies(const DispatchPlan& plan, const Kernels& kernels,
                              int64_t hidden_size) {
  std::vector<RowBatch<Bf16>> replies = Replies(plan, kernels, hidden_size);
  std::vector<MutableBf16Rows> views;
  for (RowBatch<Bf16>& service : replies) views.push_back(service.rows());
  RowBatch<Bf16> out(plan.num_rows(), hidden_size);
  Combine(kernels, plan, views, out.rows());
  return out;
}

RowBatch<Bf16> ReferenceOutput(const RoutingCase& layer) {
  const Assignments& assignments = layer.assignments;
  RowBatch<Bf16> out(assignments.num_rows, layer.hidden_size);
  for (int64_t row = 0; row < assignments.num_rows; ++row) {
    const bool refused =
        std::count(assignments.refused_rows.begin(), assignments.refused_rows.end(), row) > 0;
    for (int64_t column = 0; column < layer.hidden_size; ++column) {
      float total = 0;
      for (int32_t group = 0; group < layer.rule.num_combine_groups && !refused; ++group) {
        float chain = 0;
        bool reached = false;
        for (int32_t choice = 0; choice < assignments.top_k; ++choice) {
          const int32_t id = assignments.RowIds(row)[static_cast<size_t>(choice)];
          if (id < 0 ||
              int64_t{layer.rule.num_combine_groups} * id / layer.rule.num_experts != group) {
            continue;
          }
          reached = true;
          chain = FusedMultiplyAdd(assignments.RowWeights(row)[static_cast<size_t>(choice)],
                                   ToFloat(ExpertOutput(row, id, column)), chain);
        }
        if (reached) total += ToFloat(ToBf16(chain));
      }
      for (int32_t slice = 0; slice < layer.rule.num_slices && !refused; ++slice) {
        total += ToFloat(ExpertOutput(row, layer.rule.num_experts + slice, column));
      }
      out.rows().row(row)[column] = ToBf16(total);
    }
  }
  return out;
}

std::vector<uint16_t> BitsOf(const RowBatch<Bf16>& rows) {
  std::vector<uint16_t> bits;
  for (int64_t row = 0; row < rows.num_rows(); ++row) {
    for (int64_t column = 0; column < rows.width(); ++column) {
      bits.push_back(rows.rows().row(row)[column].bits);
    }
  }
  return bits;
}

}  // namespace moebius
