// SPDX-License-Identifier: Apache-2.0
#include "cli/route_picture.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/route_capacity.h"
#include "cli/terminal.h"

#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr int kBarCells = 8;
constexpr size_t kMostLoads = 5;  // experts that the line of loads names

bool IsZero(int64_t value) { return value == 0; }

size_t IndexOf(int64_t index) { return static_cast<size_t>(index); }

std::string Pad(const std::string& text, int width) {
  return text + std::string(IndexOf(std::max(0, width - DisplayWidth(text))), ' ');
}

// `part` of `most` as cells; something is never nothing.
std::string Cells(int64_t part, int64_t most, const char* cell, int width) {
  if (part == 0 || most == 0) return "";
  const int64_t count = std::max<int64_t>(1, part * width / most);
  std::string out;
  for (int64_t i = 0; i < count; ++i) out += cell;
  return out;
}

// By expert: the service that holds it; -1 where several do, since the plan chooses then.
std::vector<int64_t> OnlyHolders(const RouteAnswer& answer) {
  std::vector<int64_t> holder(IndexOf(answer.num_experts), -2);
  for (size_t service = 0; service < answer.services.size(); ++service) {
    for (const int32_t expert : answer.services[service].experts) {
      if (expert < 0 || expert >= answer.num_experts) continue;
      int64_t& known = holder[IndexOf(expert)];
      known = known == -2 ? static_cast<int64_t>(service) : -1;
    }
  }
  return holder;
}

std::string FormatHeading(const RouteAnswer& answer, const ModelInfo& model) {
  std::string line =
      absl::StrFormat("layer %d of %d   %s tokens × top-%d of %d", answer.layer, model.num_layers,
                      FormatCount(answer.num_tokens()), answer.top_k, answer.num_experts);
  if (answer.num_groups > 1) {
    absl::StrAppendFormat(&line, ", at most %d of %d groups", answer.num_kept_groups,
                          answer.num_groups);
  }
  absl::StrAppend(&line, "   ", model.score_function, model.has_correction_bias ? " + bias" : "");
  if (model.routed_scaling_factor != 1) {
    absl::StrAppend(&line, ", weights × ", FormatNumber(model.routed_scaling_factor));
  }
  const bool exact = std::all_of(answer.dropped.begin(), answer.dropped.end(), IsZero) &&
                     std::all_of(answer.rerouted.begin(), answer.rerouted.end(), IsZero);
  return line + (exact ? "   exact: yes\n" : "   exact: no\n");
}

class TokenTable {
 public:
  TokenTable(const RouteAnswer& answer, const Tokenizer* tokenizer, const RouteView& view)
      : answer_(answer),
        tokenizer_(tokenizer),
        shown_(std::min(answer.num_tokens(), view.max_tokens)),
        num_nodes_(view.num_nodes),
        holders_(OnlyHolders(answer)),
        one_holder_(std::find(holders_.begin(), holders_.end(), -1) == holders_.end()) {}

  std::string Format() const {
    const int choices_width = std::max(31, answer_.top_k * 10 - 1);  // the heading has 31
    std::string out =
        Line(" token", "expert(weight), strongest first", "groups", "services", choices_width);
    for (int64_t token = 0; token < shown_; ++token) {
      const std::set<int64_t> groups = GroupsOf(token);
      out += Line(absl::StrFormat("%3d %s", token, Describe(token)), Choices(token),
                  absl::StrJoin(groups, " "), ServicesOf(token), choices_width);
    }
    const int64_t left = answer_.num_tokens() - shown_;
    const std::string more =
        left > 0 ? absl::StrCat("  … ", FormatCount(left), " more: --all, --json") : "";
    out += Line(more, "", Averages(), "", choices_width);
    return out;
  }

 private:
  std::string Line(const std::string& token, const std::string& choices, const std::string& groups,
                   const std::string& services, int choices_width) const {
    std::string line = Pad(token, 12) + Pad(choices, choices_width + 4);
    if (DisplayWidth(token) > 12) line = Pad(token, 12 + choices_width + 4);
    if (answer_.num_groups > 1 || services.empty()) line += Pad(groups, services.empty() ? 0 : 8);
    line += services;
    while (!line.empty() && line.back() == ' ') line.pop_back();
    return line + "\n";
  }

  std::string Describe(int64_t token) const {
    const int64_t id = answer_.token_ids[IndexOf(token)];
    return tokenizer_ == nullptr ? absl::StrCat(id) : tokenizer_->Describe(id);
  }

  int32_t Expert(int64_t token, int32_t choice) const {
    return answer_.expert_ids[IndexOf(token * answer_.top_k + choice)];
  }

  std::string Choices(int64_t token) const {
    std::string out;
    for (int32_t choice = 0; choice < answer_.top_k; ++choice) {
      const float weight = answer_.weights[IndexOf(token * answer_.top_k + choice)];
      out += Pad(absl::StrFormat("%3d(%.2f)", Expert(token, choice), weight), 10);
    }
    return out;
  }

  std::set<int64_t> GroupsOf(int64_t token) const {
    std::set<int64_t> groups;
    for (int32_t choice = 0; choice < answer_.top_k; ++choice) {
      groups.insert(int64_t{Expert(token, choice)} * answer_.num_groups / answer_.num_experts);
    }
    return groups;
  }

  std::string ServicesOf(int64_t token) const {
    if (!one_holder_) return "";
    std::set<int64_t> services;
    for (int32_t choice = 0; choice < answer_.top_k; ++choice) {
      services.insert(holders_[IndexOf(Expert(token, choice))]);
    }
    return absl::StrCat(services.size(), " of ", answer_.services.size());
  }

  std::string Averages() const {
    int64_t groups = 0;
    for (int64_t token = 0; token < answer_.num_tokens(); ++token) {
      groups += static_cast<int64_t>(GroupsOf(token).size());
    }
    const double tokens = static_cast<double>(answer_.num_tokens());
    std::string out = "on average ";
    if (answer_.num_groups > 1) {
      absl::StrAppendFormat(&out, "%.1f groups, ", static_cast<double>(groups) / tokens);
    }
    absl::StrAppendFormat(&out, "%.1f services", static_cast<double>(answer_.rows_sent()) / tokens);
    if (num_nodes_ > 0 && one_holder_) {
      absl::StrAppendFormat(&out, ", %.1f of %d nodes",
                            static_cast<double>(NodesReached()) / tokens, num_nodes_);
    }
    return out;
  }

  // Distinct nodes, summed over tokens; services [s·N/S…) of S are on one of N nodes.
  int64_t NodesReached() const {
    int64_t reached = 0;
    for (int64_t token = 0; token < answer_.num_tokens(); ++token) {
      std::set<int64_t> nodes;
      for (int32_t choice = 0; choice < answer_.top_k; ++choice) {
        nodes.insert(holders_[IndexOf(Expert(token, choice))] * num_nodes_ /
                     static_cast<int64_t>(answer_.services.size()));
      }
      reached += static_cast<int64_t>(nodes.size());
    }
    return reached;
  }

  const RouteAnswer& answer_;
  const Tokenizer* const tokenizer_;
  const int64_t shown_;
  const int32_t num_nodes_;
  const std::vector<int64_t> holders_;
  const bool one_holder_;
};

std::string FormatMatrix(const RouteAnswer& answer) {
  int64_t most = 0;
  int width = 14;
  for (const RoutedService& service : answer.services) {
    most = std::max({most, service.rows_sent, service.reply_rows});
    width = std::max(width, static_cast<int>(service.name.size()) + 2);
  }
  std::string names = Pad("rows sent", 14);
  std::string out_rows = Pad("  router →", 14);
  std::string back_rows = Pad("  ← replies", 14);
  for (const RoutedService& service : answer.services) {
    names += Pad(service.name, width);
    out_rows += Pad(
        absl::StrFormat("%d %s", service.rows_sent, Cells(service.rows_sent, most, "▓", kBarCells)),
        width);
    back_rows += Pad(absl::StrFormat("%d %s", service.reply_rows,
                                     Cells(service.reply_rows, most, "▒", kBarCells)),
                     width);
  }
  while (names.back() == ' ') names.pop_back();
  const int64_t naive = answer.num_tokens() * answer.top_k;
  std::string out = absl::StrCat(names, "\n", out_rows, FormatCount(answer.rows_sent()),
                                 " rows = ", FormatBytes(answer.rows_sent() * answer.row_bytes),
                                 " (one per assignment: ", FormatCount(naive), " = ",
                                 FormatBytes(naive * answer.row_bytes), ")\n", back_rows,
                                 FormatCount(answer.reply_rows()),
                                 " rows = ", FormatBytes(answer.reply_rows() * answer.row_bytes),
                                 " (one per assignment: ", FormatCount(naive), ")\n");
  if (answer.shared_rows_sent > 0 || answer.shared_reply_rows > 0) {
    absl::StrAppend(&out, "  shared experts add ", FormatCount(answer.shared_rows_sent),
                    " rows out, ", FormatCount(answer.shared_reply_rows), " back\n");
  }
  return out;
}

std::string FormatLoads(const RouteAnswer& answer) {
  std::vector<std::pair<int64_t, int64_t>> loads;  // (-load, expert)
  int64_t idle = 0;
  for (size_t expert = 0; expert < answer.load.size(); ++expert) {
    if (answer.load[expert] == 0) {
      ++idle;
    } else {
      loads.emplace_back(-answer.load[expert], static_cast<int64_t>(expert));
    }
  }
  std::sort(loads.begin(), loads.end());
  std::string out = "load";
  const int64_t most = loads.empty() ? 0 : -loads.front().first;
  for (size_t index = 0; index < std::min(kMostLoads, loads.size()); ++index) {
    const auto& [negative_load, expert] = loads[index];
    absl::StrAppend(&out, index == 0 ? "  e" : "   e", expert, " ",
                    Cells(-negative_load, most, "█", kBarCells), " ", -negative_load);
  }
  if (loads.size() > kMostLoads) out += "   …";
  const double mean = static_cast<double>(answer.num_tokens() * answer.top_k) /
                      static_cast<double>(answer.num_experts);
  absl::StrAppendFormat(&out, "   idle %d   max/mean %.1f\n", idle,
                        static_cast<double>(most) / mean);
  return out;
}

// What the router's own capacity does, or else what one of this factor would.
std::string FormatCapacity(const RouteAnswer& answer, double factor) {
  const auto sum = [](const std::vector<int64_t>& values) {
    return std::accumulate(values.begin(), values.end(), int64_t{0});
  };
  const int64_t dropped = sum(answer.dropped), rerouted = sum(answer.rerouted);
  if (dropped > 0 || rerouted > 0) {
    return absl::StrCat("capacity in force: ", FormatCount(dropped), " dropped, ",
                        FormatCount(rerouted), " sent to another expert\n");
  }
  return factor > 0 ? FormatPreview(answer, PreviewCapacity(answer, factor)) : "";
}

std::string FormatChoiceNotes(const RouteAnswer& answer) {
  std::vector<std::string> notes;
  if (answer.num_groups > 1) {
    notes.push_back(absl::StrCat("group fill −inf or 0.0 would differ for ",
                                 answer.group_fill_mismatches, " of ",
                                 FormatCount(answer.num_tokens()), " tokens"));
  }
  if (answer.closest_tie.has_value()) {
    const ClosestTie& tie = *answer.closest_tie;
    notes.push_back(absl::StrFormat("closest tie: token %d, experts %d and %d, gap %.4f",
                                    tie.token_index, tie.chosen_expert, tie.next_expert, tie.gap));
  }
  return notes.empty() ? "" : absl::StrJoin(notes, "; ") + "\n";
}

template <typename T>
Json IntegersJson(const std::vector<T>& values) {
  std::vector<Json> elements;
  elements.reserve(values.size());
  for (const T value : values) elements.push_back(Json::Integer(value));
  return Json::Array(std::move(elements));
}

Json BytesJson(int64_t out, int64_t back) {
  Json json = Json::Object({});
  json.Set("out", Json::Integer(out));
  json.Set("back", Json::Integer(back));
  return json;
}

Json TokenJson(const RouteAnswer& answer, int64_t token) {
  const auto begin = token * answer.top_k;
  std::vector<Json> weights;
  for (int64_t index = begin; index < begin + answer.top_k; ++index) {
    weights.push_back(Json::Number(answer.weights[IndexOf(index)]));
  }
  Json json = Json::Object({});
  json.Set("token_id", Json::Integer(answer.token_ids[IndexOf(token)]));
  json.Set("experts",
           IntegersJson(std::vector<int32_t>(answer.expert_ids.begin() + begin,
                                             answer.expert_ids.begin() + begin + answer.top_k)));
  json.Set("weights", Json::Array(std::move(weights)));
  return json;
}

}  // namespace

std::string FormatRoutePicture(const RouteAnswer& answer, const ModelInfo& model,
                               const Tokenizer* tokenizer, const RouteView& view) {
  return absl::StrCat(FormatHeading(answer, model), TokenTable(answer, tokenizer, view).Format(),
                      FormatMatrix(answer), FormatLoads(answer),
                      FormatCapacity(answer, view.capacity_factor), FormatChoiceNotes(answer));
}

std::string FormatRouteJson(const RouteAnswer& answer, double capacity_factor) {
  std::vector<Json> tokens;
  for (int64_t token = 0; token < answer.num_tokens(); ++token) {
    tokens.push_back(TokenJson(answer, token));
  }
  std::vector<Json> services;
  std::vector<int64_t> rows_sent;
  for (const RoutedService& service : answer.services) {
    Json entry = Json::Object({});
    entry.Set("name", Json::String(service.name));
    entry.Set("experts", IntegersJson(service.experts));
    entry.Set("reply_rows", Json::Integer(service.reply_rows));
    services.push_back(std::move(entry));
    rows_sent.push_back(service.rows_sent);
  }
  const int64_t naive_bytes = answer.num_tokens() * answer.top_k * answer.row_bytes;
  Json json = Json::Object({});
  json.Set("layer", Json::Integer(answer.layer));
  json.Set("num_experts", Json::Integer(answer.num_experts));
  json.Set("tokens", Json::Array(std::move(tokens)));
  json.Set("services", Json::Array(std::move(services)));
  json.Set("rows_sent", IntegersJson(rows_sent));
  json.Set("reply_rows", Json::Integer(answer.reply_rows()));
  json.Set("bytes", BytesJson(answer.rows_sent() * answer.row_bytes,
                              answer.reply_rows() * answer.row_bytes));
  json.Set("naive_bytes", BytesJson(naive_bytes, naive_bytes));
  json.Set("load", IntegersJson(answer.load));
  json.Set("dropped",
           IntegersJson(capacity_factor > 0 ? PreviewCapacity(answer, capacity_factor).dropped
                                            : answer.dropped));
  json.Set("rerouted", IntegersJson(answer.rerouted));
  return json.ToCanonicalText();
}

}  // namespace moebius
