// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/replica_choice.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/check.h"

namespace moebius {
namespace {

// Experts that a message names before it only counts.
constexpr int kMaxNamedExperts = 8;
// Weights that a core reads while a message goes to a service and back: 40 µs at 20 GB/s.
constexpr int64_t kMessageBytes = 800'000;

bool IsUsable(const DispatchLimits& limits, ServiceId service) {
  return limits.usable_services.empty() ||
         limits.usable_services[static_cast<size_t>(service.value())] != 0;
}

absl::Status NoReplica(LayerId layer, absl::Span<const int32_t> ids) {
  std::string message = absl::StrFormat("layer %d: no usable service has expert%s", layer.value(),
                                        ids.size() > 1 ? "s" : "");
  for (size_t i = 0; i < ids.size() && i < kMaxNamedExperts; ++i) {
    absl::StrAppend(&message, i == 0 ? " " : ", ", ids[i]);
  }
  if (ids.size() > kMaxNamedExperts) {
    absl::StrAppend(&message, " and ", ids.size() - kMaxNamedExperts, " more");
  }
  return absl::UnavailableError(message);
}

}  // namespace

int32_t MessageRows(int64_t expert_bytes, int32_t balance_rows) {
  MOEBIUS_CHECK(expert_bytes >= 1 && balance_rows >= 1);
  return static_cast<int32_t>(
      std::min<int64_t>(balance_rows * kMessageBytes / expert_bytes, INT32_MAX));
}

absl::Status ReplicaChoice::Choose(LayerId layer, const Placement& placement,
                                   const DispatchLimits& limits,
                                   absl::Span<const int64_t> rows_of_id, int64_t num_rows) {
  num_rows_ = num_rows;
  replicas_of_id_.assign(rows_of_id.size(), Replicas());
  services_.clear();
  load_.assign(static_cast<size_t>(placement.num_services()), 0);
  SortIdsByRows(rows_of_id);
  CountReach(layer, placement, limits);
  std::vector<int32_t> missing;  // allocates only on failure
  for (const int32_t id : ids_by_rows_) {
    const auto begin = static_cast<int32_t>(services_.size());
    for (const ServiceId service : placement.Services(layer, ExpertId(id))) {
      if (IsUsable(limits, service)) services_.push_back(service.value());
    }
    if (services_.size() == static_cast<size_t>(begin)) {
      missing.push_back(id);
      continue;
    }
    replicas_of_id_[static_cast<size_t>(id)] =
        Keep(rows_of_id[static_cast<size_t>(id)], begin, limits);
  }
  if (missing.empty()) return absl::OkStatus();
  std::sort(missing.begin(), missing.end());
  return NoReplica(layer, missing);
}

void ReplicaChoice::CountReach(LayerId layer, const Placement& placement,
                               const DispatchLimits& limits) {
  reach_.assign(load_.size(), 0);
  if (limits.message_rows == 0) return;
  for (const int32_t id : ids_by_rows_) {
    for (const ServiceId service : placement.Services(layer, ExpertId(id))) {
      ++reach_[static_cast<size_t>(service.value())];
    }
  }
}

void ReplicaChoice::SortIdsByRows(absl::Span<const int64_t> rows_of_id) {
  ids_by_rows_.clear();
  for (size_t id = 0; id < rows_of_id.size(); ++id) {
    if (rows_of_id[id] > 0) ids_by_rows_.push_back(static_cast<int32_t>(id));
  }
  std::sort(ids_by_rows_.begin(), ids_by_rows_.end(), [&](int32_t a, int32_t b) {
    const int64_t rows_a = rows_of_id[static_cast<size_t>(a)];
    const int64_t rows_b = rows_of_id[static_cast<size_t>(b)];
    return rows_a != rows_b ? rows_a > rows_b : a < b;
  });
}

ReplicaChoice::Replicas ReplicaChoice::Keep(int64_t rows, int32_t begin,
                                            const DispatchLimits& limits) {
  const auto load = [this](int32_t service) -> int64_t& {
    return load_[static_cast<size_t>(service)];
  };
  const auto goes_before = [&](int32_t a, int32_t b) {
    const int64_t cost_a = load(a) > 0 ? load(a) : limits.message_rows;
    const int64_t cost_b = load(b) > 0 ? load(b) : limits.message_rows;
    if (cost_a != cost_b) return cost_a < cost_b;
    return reach_[static_cast<size_t>(a)] > reach_[static_cast<size_t>(b)];
  };
  const absl::Span<int32_t> usable = absl::MakeSpan(services_).subspan(static_cast<size_t>(begin));
  const int64_t balance_rows = std::max(1, limits.balance_rows);
  auto count = static_cast<int64_t>(usable.size());
  if (limits.forced_replica.has_value()) {
    usable[0] = usable[static_cast<uint32_t>(*limits.forced_replica) % usable.size()];
    count = 1;
  } else {
    count = std::clamp<int64_t>(rows / balance_rows, 1, count);
    for (int64_t i = 0; i < count; ++i) {
      int32_t* const first = usable.data() + i;
      int32_t* const end = usable.data() + usable.size();
      int32_t* const least = std::min_element(first, end, goes_before);
      std::rotate(first, least, least + 1);  // the others keep their order of preference
    }
    std::sort(usable.begin(), usable.begin() + count);
  }
  for (int64_t i = 0; i < count; ++i)
    load(usable[static_cast<size_t>(i)]) += std::max(balance_rows, rows / count);
  services_.resize(static_cast<size_t>(begin + count));
  return Replicas{begin, static_cast<int32_t>(count)};
}

}  // namespace moebius
