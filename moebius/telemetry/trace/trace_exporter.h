// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"

#include "moebius/telemetry/log.h"
#include "moebius/telemetry/registry.h"
#include "moebius/telemetry/trace/http_client.h"
#include "moebius/telemetry/trace/otlp_json.h"
#include "moebius/telemetry/trace/trace_span.h"

namespace moebius {

struct TraceExporterOptions {
  HttpTarget target;
  TraceResource resource;
  Logger* logger = nullptr;                    // null: nobody is told; outlives the exporter
  size_t max_queued_spans = 16384;             // some hundred bytes each
  size_t max_batch_spans = 512;                // of one POST
  absl::Duration max_wait = absl::Seconds(1);  // of a span for its batch to fill
  absl::Duration post_timeout = absl::Seconds(5);
  int max_tries = 3;                                     // of a batch that nobody took
  absl::Duration retry_pause = absl::Milliseconds(500);  // twice as long after each
  absl::Duration stop_timeout = absl::Seconds(1);
};

/// What became of spans.
struct TraceFigures {
  uint64_t exported = 0;     // a collector answered 2xx
  uint64_t queue_full = 0;   // dropped: they came faster than they went
  uint64_t unreachable = 0;  // dropped: no answer, or one that says "later", at every try
  uint64_t refused = 0;      // dropped: any other answer
  uint64_t stopped = 0;      // dropped: the process ended

  uint64_t dropped() const { return queue_full + unreachable + refused + stopped; }
};

/// Sends spans to a collector by OTLP/HTTP JSON, from a thread of its own: whoever has spans never
/// waits, and where a collector is slow or gone they are dropped, counted and told of.
///
/// Memory is bounded by the queue and one batch. A batch that was sent and not answered in time is
/// sent again: a collector may see a span twice, with the same ids.
///
/// Thread-safe. Destruction sends what is queued for at most `stop_timeout`.
class TraceExporter final : public TraceSink {
 public:
  explicit TraceExporter(const TraceExporterOptions& options);
  ~TraceExporter() override;
  TraceExporter(const TraceExporter&) = delete;
  TraceExporter& operator=(const TraceExporter&) = delete;

  void Take(std::vector<TraceSpan> spans) override;

  TraceFigures figures() const;

 private:
  class Shared;
  // The thread's own, too: one that waits for a resolver is left behind at the end.
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

/// Writes moebius_trace_spans_*; zeros where nothing is traced.
void WriteTraceMetrics(const TraceFigures& figures, MetricWriter& writer);

}  // namespace moebius
