// SPDX-License-Identifier: Apache-2.0
#include "router_service/status_page.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"

namespace moebius {
namespace {

constexpr absl::string_view kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<meta name="viewport" content="width=device-width">
<style>
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--line:#d7dde5;--back:#fbfcfd;
--good:#1a7f4b;--bad:#b3261e;--s0:#eef2f6;--s1:#cfe0f2;--s2:#9dc3e6;--s3:#5a9bd4;--s4:#f0a33a;--s5:#c8401f}
@media(prefers-color-scheme:dark){:root{--ink:#e6ebf1;--soft:#9aa7b6;--line:#323c48;--back:#12171d;
--good:#56c98a;--bad:#ff8a80;--s0:#1b222b;--s1:#22384f;--s2:#2f5c86;--s3:#4f93cf;--s4:#d98b24;--s5:#f0603a}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--back);margin:1.2rem auto;
max-width:72rem;padding:0 1rem}
h1{font-size:1.25rem;margin:0}h2{font-size:1rem;margin:1.4rem 0 .4rem}
p{margin:.2rem 0}.soft{color:var(--soft)}.good{color:var(--good)}.bad{color:var(--bad)}
.cards{display:flex;flex-wrap:wrap;gap:.6rem;margin:.8rem 0}
.card{border:1px solid var(--line);border-radius:.5rem;padding:.5rem .8rem;min-width:10rem;flex:1}
.card b{font-size:1.15rem;display:block}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.2rem .6rem .2rem 0;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:500}a{color:inherit}svg{display:block}
.s0{fill:var(--s0)}.s1{fill:var(--s1)}.s2{fill:var(--s2)}.s3{fill:var(--s3)}.s4{fill:var(--s4)}.s5{fill:var(--s5)}
.bar{background:var(--s1);height:.6rem;border-radius:.3rem}.bar i{display:block;height:100%;background:var(--s3);border-radius:.3rem}
</style>
)";

// Upper ends of the shades, as multiples of the mean; the last has none.
constexpr std::array<double, 5> kShades = {0.25, 0.75, 1.5, 3, 6};

std::string Escape(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

// "1,780"; counts are not negative.
std::string Count(int64_t number) {
  const std::string digits = absl::StrCat(number);
  std::string out;
  for (size_t at = 0; at < digits.size(); ++at) {
    if (at > 0 && (digits.size() - at) % 3 == 0) out.push_back(',');
    out.push_back(digits[at]);
  }
  return out;
}

std::string Bytes(int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"KB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string Age(double seconds) {
  if (seconds < 120) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f min", seconds / 60);
  return absl::StrFormat("%.1f h", seconds / 3600);
}

size_t ShadeOf(double ratio) {
  size_t shade = 0;
  while (shade < kShades.size() && ratio > kShades[shade]) ++shade;
  return shade;
}

struct LayerLoad {
  int64_t sum = 0;
  int64_t most = 0;
  size_t hottest = 0;
  double mean = 0;
  double MaxOverMean() const { return sum == 0 ? 0 : static_cast<double>(most) / mean; }
};

template <typename T>
LayerLoad LoadOf(absl::Span<const T> demand) {
  LayerLoad load;
  for (size_t expert = 0; expert < demand.size(); ++expert) {
    load.sum += demand[expert];
    if (demand[expert] > load.most) {
      load.most = demand[expert];
      load.hottest = expert;
    }
  }
  load.mean = static_cast<double>(load.sum) / static_cast<double>(demand.size());
  return load;
}

absl::Span<const int64_t> DemandOf(const ExpertLoadTable& table, size_t layer) {
  const auto num_experts = static_cast<size_t>(table.num_experts);
  return absl::MakeConstSpan(table.demand).subspan(layer * num_experts, num_experts);
}

/// Squares of few shades: one path a shade, so that 256 experts and 60 moments stay small.
class HeatMap {
 public:
  HeatMap(size_t columns, size_t rows) : columns_(columns), rows_(rows) {}

  void Set(size_t column, size_t row, double ratio) {
    absl::StrAppend(&paths_[ShadeOf(ratio)], "M", column, " ", row, "h1v1h-1z");
  }

  std::string ToSvg(absl::string_view label, int pixels_per_row) const {
    std::string svg = absl::StrCat(
        "<svg role=\"img\" aria-label=\"", Escape(label), "\" viewBox=\"0 0 ", columns_, " ", rows_,
        "\" width=\"100%\" height=\"", rows_ * static_cast<size_t>(pixels_per_row),
        "\" preserveAspectRatio=\"none\" shape-rendering=\"crispEdges\">");
    for (size_t shade = 0; shade < paths_.size(); ++shade) {
      if (paths_[shade].empty()) continue;
      absl::StrAppend(&svg, "<path class=\"s", shade, "\" d=\"", paths_[shade], "\"/>");
    }
    return svg + "</svg>";
  }

 private:
  const size_t columns_, rows_;
  std::array<std::string, kShades.size() + 1> paths_;
};

std::string Card(absl::string_view title, absl::string_view value, absl::string_view more,
                 absl::string_view css = "") {
  return absl::StrCat("<div class=\"card\"><span class=\"soft\">", title, "</span><b class=\"", css,
                      "\">", value, "</b><span class=\"soft\">", more, "</span></div>\n");
}

// Is every answer exact, is nothing lost, who is missing: first, in words.
std::string RenderFirst(const StatusFacts& facts) {
  const StepFigures& figures = facts.counters.figures;
  const ServerInfo& server = facts.server;
  const bool conserved =
      figures.conservation_errors == 0 && figures.assignments == figures.combined + figures.dropped;
  std::string out = "<div class=\"cards\">\n";
  out += figures.dropped == 0 && figures.rerouted == 0
             ? Card("Exact", "every answer",
                    server.capacity.empty() ? "dropless: no capacity set"
                                            : "no expert was full so far",
                    "good")
             : Card("Exact",
                    absl::StrCat("no: ", Count(figures.dropped), " dropped, ",
                                 Count(figures.rerouted), " rerouted"),
                    absl::StrCat("the answers say so; ", Escape(server.capacity)), "bad");
  out += Card("Conserved",
              absl::StrCat(conserved ? "" : "NO: ", Count(figures.assignments), " routed"),
              absl::StrCat("= ", Count(figures.combined), " combined + ", Count(figures.dropped),
                           " dropped"),
              conserved ? "good" : "bad");
  out += server.ready ? Card("Ready", "yes", "every expert and all keys can be reached", "good")
                      : Card("Ready", "no", "see below", "bad");
  out += Card("Sent again", absl::StrCat(Count(figures.resent_rows), " rows"),
              absl::StrFormat("in %s rounds, %.0f ms in all", Count(figures.resends),
                              figures.stall_seconds * 1e3));
  out += "</div>\n";
  for (const std::string& missing : server.missing) {
    absl::StrAppend(&out, "<p class=\"bad\">! ", Escape(missing), "</p>\n");
  }
  return out;
}

std::string RenderRequests(const StatusFacts& facts) {
  const ServerInfo& server = facts.server;
  const LeadCounters& counters = facts.counters;
  std::string out = "<div class=\"cards\">\n";
  out += Card(
      "Requests", absl::StrCat(Count(server.running_requests), " running"),
      absl::StrCat(Count(server.queued_requests), " queued, ", Count(counters.finished),
                   " finished, ", Count(counters.failed), " failed, ", Count(counters.cancelled),
                   " cancelled, ", Count(counters.rejected), " refused"));
  out += Card(
      "Tokens a second",
      absl::StrFormat("%.0f in, %.0f out", facts.window.prompt_tokens_per_second,
                      facts.window.generated_tokens_per_second),
      absl::StrCat("over the last ", Age(facts.window.seconds), "; ", Count(counters.prompt_tokens),
                   " and ", Count(counters.generated_tokens), " in all"));
  const double used = server.kv_capacity_tokens == 0
                          ? 0
                          : static_cast<double>(server.kv_reserved_tokens) /
                                static_cast<double>(server.kv_capacity_tokens);
  out += Card("KV set aside",
              absl::StrFormat("%.1f %%<div class=\"bar\"><i style=\"width:%.1f%%\"></i></div>",
                              100 * used, 100 * used),
              absl::StrCat(Count(server.kv_reserved_tokens), " of ",
                           Count(server.kv_capacity_tokens), " positions"));
  const StepFigures& figures = counters.figures;
  out += Card(
      "Network",
      absl::StrCat(Bytes(figures.expert_traffic.bytes_out + figures.attention_traffic.bytes_out),
                   " out"),
      absl::StrCat(Bytes(figures.expert_traffic.bytes_back + figures.attention_traffic.bytes_back),
                   " back, ",
                   Count(figures.expert_traffic.messages + figures.attention_traffic.messages),
                   " messages (one per expert: ", Count(figures.naive_messages), ")"));
  return out + "</div>\n";
}

std::string RenderTime(const StepFigures& figures) {
  const std::array<std::pair<const char*, double>, 4> phases = {{
      {"attention", figures.attention_seconds},
      {"experts", figures.expert_seconds},
      {"gate, plan, combine",
       figures.gate_seconds + figures.plan_seconds + figures.combine_seconds},
      {"norms, embedding, head",
       figures.norm_seconds + figures.embed_seconds + figures.head_seconds},
  }};
  double total = 0;
  for (const auto& [name, seconds] : phases) total += seconds;
  if (total <= 0) return "";
  std::string out = "<h2>Where the time of steps went</h2>\n<table>\n";
  for (const auto& [name, seconds] : phases) {
    const double share = 100 * seconds / total;
    absl::StrAppendFormat(&out,
                          "<tr><td>%s</td><td style=\"width:60%%\"><div class=\"bar\"><i "
                          "style=\"width:%.1f%%\"></i></div></td><td>%.1f %%</td></tr>\n",
                          name, share, share);
  }
  return out + "</table>\n";
}

std::string RenderLayers(const StatusFacts& facts) {
  const ExpertLoadTable& load = facts.load;
  if (load.layer_ids.empty() || load.num_experts == 0) return "";
  HeatMap map(static_cast<size_t>(load.num_experts), load.layer_ids.size());
  size_t hottest_layer = 0;
  double worst = 0;
  for (size_t layer = 0; layer < load.layer_ids.size(); ++layer) {
    const absl::Span<const int64_t> demand = DemandOf(load, layer);
    const LayerLoad sums = LoadOf(demand);
    if (sums.sum == 0) continue;
    for (size_t expert = 0; expert < demand.size(); ++expert) {
      map.Set(expert, layer, static_cast<double>(demand[expert]) / sums.mean);
    }
    if (sums.MaxOverMean() > worst) {
      worst = sums.MaxOverMean();
      hottest_layer = layer;
    }
  }
  std::string out = "<h2>Load of every expert since the start, a row for each layer</h2>\n";
  if (worst <= 0) return out + "<p class=\"soft\">no tokens yet</p>\n";
  absl::StrAppend(&out, map.ToSvg("load by layer and expert", 14));
  const LayerLoad sums = LoadOf(DemandOf(load, hottest_layer));
  absl::StrAppendFormat(&out,
                        "<p class=\"soft\">Shades: ≤ ¼, ¾, 1½, 3, 6 times the layer's mean, and "
                        "more. Most uneven: layer %d, expert %d with %.1f times the mean.</p>\n",
                        load.layer_ids[hottest_layer], sums.hottest, worst);
  return out;
}

std::string RenderHistory(const StatusFacts& facts) {
  if (facts.layer >= facts.load.layer_ids.size()) return "";
  const LoadWindow& window = facts.window;
  std::string out = absl::StrCat("<h2>Layer ", facts.load.layer_ids[facts.layer],
                                 ", expert × time: the last ", Age(window.seconds), "</h2>\n");
  HeatMap map(LoadHistory::kMaxSamples, static_cast<size_t>(std::max(1, window.num_experts)));
  const size_t first =
      LoadHistory::kMaxSamples - std::min(LoadHistory::kMaxSamples, window.num_samples());
  bool is_empty = true;
  for (size_t sample = 0; sample < window.num_samples(); ++sample) {
    const auto num_experts = static_cast<size_t>(window.num_experts);
    const auto demand =
        absl::MakeConstSpan(window.demand).subspan(sample * num_experts, num_experts);
    const LayerLoad sums = LoadOf(demand);
    if (sums.sum == 0) continue;
    is_empty = false;
    for (size_t expert = 0; expert < num_experts; ++expert) {
      map.Set(first + sample, expert, static_cast<double>(demand[expert]) / sums.mean);
    }
  }
  if (is_empty) return out + "<p class=\"soft\">nothing was asked of it</p>\n";
  absl::StrAppend(&out, map.ToSvg("load by expert and time", window.num_experts > 64 ? 3 : 8),
                  "<p class=\"soft\">Expert 0 at the top, now at the right. Layers: ");
  for (const int32_t layer : facts.load.layer_ids) {
    absl::StrAppend(&out, "<a href=\"?layer=", layer, "\">", layer, "</a> ");
  }
  return out + "</p>\n";
}

std::string RenderServices(const ServerInfo& server) {
  std::string out =
      "<h2>Services</h2>\n<table><tr><th>name</th><th>role</th><th>state</th><th>address</th>"
      "<th></th></tr>\n";
  for (const ServiceState& service : server.services) {
    absl::StrAppend(&out, "<tr><td>", Escape(service.name), "</td><td>", Escape(service.role),
                    "</td><td class=\"", service.state == "usable" ? "good" : "bad", "\">",
                    Escape(service.state), "</td><td>", Escape(service.address), "</td><td>",
                    Escape(service.detail), "</td></tr>\n");
  }
  return out + "</table>\n";
}

}  // namespace

size_t LayerOfQuery(absl::string_view query, const ExpertLoadTable& load) {
  int32_t wanted = -1;
  if (absl::ConsumePrefix(&query, "layer=") && absl::SimpleAtoi(query, &wanted)) {
    const auto found = std::find(load.layer_ids.begin(), load.layer_ids.end(), wanted);
    if (found != load.layer_ids.end()) {
      return static_cast<size_t>(found - load.layer_ids.begin());
    }
  }
  size_t best = 0;
  double worst = 0;
  for (size_t layer = 0; layer < load.layer_ids.size(); ++layer) {
    const double uneven = LoadOf(DemandOf(load, layer)).MaxOverMean();
    if (uneven <= worst) continue;
    worst = uneven;
    best = layer;
  }
  return best;
}

std::string RenderStatusPage(const StatusFacts& facts) {
  return absl::StrCat(
      kHead, "<title>", Escape(facts.name), ": ", facts.server.ready ? "ready" : "not ready",
      "</title></head><body>\n<h1>", Escape(facts.name), " · ", Escape(facts.model.name),
      "</h1>\n<p class=\"soft\">up ", Age(facts.server.uptime_seconds), " · ",
      Escape(facts.server.topology), " · placement epoch ", facts.server.epoch, " · ",
      Escape(facts.server.tier), " · version ", Escape(facts.server.version), "</p>\n",
      RenderFirst(facts), RenderRequests(facts), RenderTime(facts.counters.figures),
      RenderLayers(facts), RenderHistory(facts), RenderServices(facts.server), "</body></html>\n");
}

}  // namespace moebius
