// SPDX-License-Identifier: Apache-2.0
#include "router_service/status_board.h"

#include <utility>

#include "router_service/status_page.h"

namespace moebius {

void StatusBoard::AddTo(HttpServer& http) {
  for (const char* path : {"/", "/status"}) {
    http.AddHandler(path, [this](const HttpRequest& request) { return Answer(request); });
  }
}

void StatusBoard::KeepHistory(absl::Duration now) {
  if (!history_.IsDue(now)) return;
  const LeadCounters counters = parts_.counters();
  history_.Add(now, parts_.load->Read(), counters.prompt_tokens, counters.generated_tokens);
}

HttpResponse StatusBoard::Answer(const HttpRequest& request) const {
  StatusFacts facts;
  facts.name = parts_.name;
  facts.model = parts_.front->model_info();
  facts.server = parts_.front->server_info();
  facts.counters = parts_.counters();
  facts.load = parts_.load->Read();
  facts.layer = LayerOfQuery(request.query, facts.load);
  facts.window = history_.Window(facts.layer);
  return {200, "text/html; charset=utf-8", RenderStatusPage(facts)};
}

}  // namespace moebius
