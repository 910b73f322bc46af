// SPDX-License-Identifier: Apache-2.0
#include "router_service/lead_front.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "moebius/base/error.h"
#include "moebius/base/hash.h"
#include "moebius/base/status.h"
#include "moebius/tensor/bf16.h"
#include "router_service/admission.h"
#include "router_service/dry_run.h"
#include "router_service/exactness.h"
#include "router_service/placement_description.h"
#include "router_service/route_plan.h"

namespace moebius {
namespace {

constexpr char kInvalid[] = "INVALID_ARGUMENT";
constexpr char kExhausted[] = "RESOURCE_EXHAUSTED";

std::string LastPart(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return std::string(path.substr(path.rfind('/') + 1));
}

}  // namespace

ModelInfo DescribeModel(const Checkpoint& checkpoint, absl::string_view model_path,
                        const SamplingParams& default_sampling, absl::string_view tokenizer) {
  const ModelConfig& config = checkpoint.config();
  ModelInfo info;
  info.name = LastPart(model_path);
  info.architecture = config.architecture;
  info.vocab_size = config.vocab_size;
  info.hidden_size = config.hidden_size;
  info.num_layers = config.num_layers;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.IsMoeLayer(layer)) info.moe_layers.push_back(layer);
  }
  info.max_positions = config.max_positions;
  info.num_experts = config.gate.num_experts;
  info.top_k = config.gate.top_k;
  info.num_shared_experts = config.num_shared_experts;
  info.num_groups = config.gate.num_groups;
  info.num_kept_groups = config.gate.num_kept_groups;
  info.score_function = ScoreFunctionName(config.gate.score_function);
  info.has_correction_bias = config.gate.has_correction_bias;
  info.routed_scaling_factor = config.gate.routed_scaling_factor;
  info.eos_token_ids = config.eos_token_ids;
  info.bos_token_id = config.bos_token_id;
  info.tokenizer = std::string(tokenizer);
  info.config_hash = FormatHash64(checkpoint.config_hash());
  info.model_hash = FormatHash64(checkpoint.model_hash());
  info.numeric_class = checkpoint.numerics().numeric_class;
  info.dtype = checkpoint.numerics().dtype;
  info.default_sampling = default_sampling;
  return info;
}

std::vector<Limit> DescribeLimits(const LeadOptions& options, const KvPool& pool) {
  std::vector<Limit> limits{
      {"max_positions", options.max_positions, kInvalid, "tokens of prompt and answer together"},
      {"kv_capacity_tokens", pool.num_blocks * pool.block_tokens, kExhausted,
       "KV slots of one request: prompt + max_tokens - 1"},
      {"default_max_tokens", options.default_max_tokens, "", "taken where max_tokens is absent"},
      {"max_request_id_bytes", kMaxRequestIdBytes, kInvalid, "bytes of a request id"},
      {"max_stop_token_ids", options.max_stop_token_ids, kInvalid, "stop tokens of one request"},
      {"max_stop_strings", options.max_stop_strings, kInvalid, "stop texts of one request"},
      {"max_stop_bytes", options.max_stop_bytes, kInvalid, "bytes of one stop text"},
      {"max_logprobs", options.max_logprobs, kInvalid, "candidates shown for each token"},
      {"max_queued_requests", options.max_queued_requests, kExhausted, "requests that wait"},
      {"max_running_sessions", options.max_running_sessions, "", "requests that run; others wait"},
      {"max_queued_events", options.max_queued_events, "",
       "chunks that a slow reader leaves untaken; then its request pauses"},
      {"max_replayed_events", options.max_replayed_events, "",
       "chunks up to which a request with an id can be asked again and followed"},
      {"max_pause_seconds", absl::ToInt64Seconds(options.max_pause), kExhausted,
       "seconds of such a pause"},
      {"row_budget", options.schedule.row_budget, "", "rows of one step"},
      {"chunk_rows", options.schedule.chunk_rows, "", "rows of one prompt in one step"},
      {"max_forward_rows", options.schedule.row_budget, kExhausted, "rows of one Forward"},
  };
  if (options.schedule.whole_prompts) {
    limits.push_back({"max_prompt_tokens", options.schedule.prompt_rows(), kInvalid,
                      "tokens of a prompt, which goes in one step"});
  }
  return limits;
}

LeadFront::LeadFront(Parts parts, Facts facts, const Clock& clock)
    : parts_(std::move(parts)), facts_(std::move(facts)), clock_(clock), started_at_(clock.Now()) {}

absl::StatusOr<std::shared_ptr<GenerateStream>> LeadFront::Submit(const GenerateRequest& request) {
  const absl::Status status = CheckSubmission(request);
  if (status.ok()) return parts_.lead->Submit(request);
  NoteRefused(status);
  return status;
}

absl::Status LeadFront::CheckSubmission(const GenerateRequest& request) const {
  MOEBIUS_RETURN_IF_ERROR(CheckConfigHash(request.config_hash));
  MOEBIUS_RETURN_IF_ERROR(CheckReady());
  if (!request.request_id.empty() && parts_.log->HasEnded(request.request_id)) {
    return WithHint(absl::AlreadyExistsError(absl::StrCat("request_id '", request.request_id,
                                                          "' has been used and has ended")),
                    absl::StrCat("how it went: moebius explain ", request.request_id,
                                 "; a new request needs a new id"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ForwardAnswer> LeadFront::Forward(const ForwardRequest& request,
                                                 absl::Duration timeout) {
  const std::unique_ptr<RequestTrace> trace =
      RequestTrace::Begin(parts_.tracing, request.traceparent, "forward_rows");
  absl::StatusOr<ForwardAnswer> answer = ForwardTraced(request, timeout, trace.get());
  if (trace != nullptr) {
    trace->End({{"moebius.layer", int64_t{request.layer}}, {"moebius.rows", request.num_rows}},
               answer.status());
  }
  return answer;
}

absl::StatusOr<ForwardAnswer> LeadFront::ForwardTraced(const ForwardRequest& request,
                                                       absl::Duration timeout,
                                                       RequestTrace* trace) {
  MOEBIUS_RETURN_IF_ERROR(CheckConfigHash(request.config_hash));
  MOEBIUS_RETURN_IF_ERROR(CheckReady());
  MOEBIUS_RETURN_IF_ERROR(CheckForward(request));
  const int64_t width = request.hidden_size;
  RowBatch<Bf16> rows(request.num_rows, width);
  RowBatch<Bf16> out(request.num_rows, width);
  const size_t row_bytes = static_cast<size_t>(width) * sizeof(Bf16);
  for (int64_t row = 0; row < request.num_rows; ++row) {
    std::memcpy(static_cast<void*>(rows.rows().row(row)),
                request.rows.data() + static_cast<size_t>(row) * row_bytes, row_bytes);
  }

  ForwardAnswer answer;
  ForwardResult forward;
  absl::Status status;
  MOEBIUS_RETURN_IF_ERROR(parts_.lead->RunBetweenSteps(
      [&](uint64_t* next_step) {
        TracedStep step;
        step.step = (*next_step)++;
        if (trace != nullptr) trace->OnAdmitted();
        forward.phases.Begin(trace != nullptr);
        step.begin = Clock::Monotonic().Now();
        status = parts_.rows->ForwardRows(step.step, LayerId(request.layer), rows.rows(),
                                          out.rows(), &forward);
        if (trace == nullptr) return;
        step.end = Clock::Monotonic().Now();
        step.num_rows = step.own_rows = request.num_rows;
        step.phases = &forward.phases;
        step.status = status;
        trace->OnStep(step);
      },
      timeout));
  MOEBIUS_RETURN_IF_ERROR(status);
  answer.assignments = forward.figures.assignments;
  answer.exactness =
      DescribeExactness(forward.effects, facts_.options.capacity, facts_.options.per_degree);
  parts_.lead->CountForward(forward.figures, answer.exactness);
  answer.num_rows = request.num_rows;
  answer.hidden_size = width;
  answer.rows.reserve(request.rows.size());
  for (int64_t row = 0; row < request.num_rows; ++row) {
    answer.rows.append(reinterpret_cast<const char*>(out.rows().row(row)), row_bytes);
  }
  return answer;
}

absl::StatusOr<RouteAnswer> LeadFront::Route(const RouteRequest& request, absl::Duration timeout) {
  const ModelConfig& config = parts_.checkpoint->config();
  MOEBIUS_RETURN_IF_ERROR(CheckMoeLayer(config, request.layer));
  MOEBIUS_RETURN_IF_ERROR(CheckPrompt(request.token_ids, config.vocab_size, config.max_positions));
  if (static_cast<int64_t>(request.token_ids.size()) > facts_.max_route_tokens) {
    return WithHint(absl::ResourceExhaustedError(
                        absl::StrCat("the prompt has ", request.token_ids.size(),
                                     " tokens, a dry run takes at most ", facts_.max_route_tokens)),
                    "requests wait while a dry run runs: shorten the prompt");
  }
  const int64_t step_rows = facts_.options.schedule.row_budget;
  if (!config.attention.is_causal) {
    MOEBIUS_RETURN_IF_ERROR(
        CheckFitsOneStep(static_cast<int64_t>(request.token_ids.size()), step_rows));
  }
  Placement placement;
  if (request.num_services.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(placement, MakeRoutePlacement(config, *request.num_services));
  } else {
    placement = *parts_.placement;
  }
  MOEBIUS_RETURN_IF_ERROR(CheckReady());

  DryRun run;
  run.token_ids = request.token_ids;
  run.chunk_rows = step_rows;
  GateRecord gate{LayerId(request.layer)};
  absl::Status status;
  MOEBIUS_RETURN_IF_ERROR(parts_.lead->RunBetweenSteps(
      [&](uint64_t* next_step) {
        status = RunDry(run, *parts_.rows, gate, next_step, [](const StepResult&) {});
      },
      timeout));
  MOEBIUS_RETURN_IF_ERROR(status);
  absl::StatusOr<RouteAnswer> answer = absl::UnknownError("not built");
  parts_.executor->Run([&] {
    RouteRule rule;
    rule.config = &config;
    rule.numerics = &parts_.checkpoint->numerics();
    rule.bias = parts_.weights->gates[static_cast<size_t>(request.layer)].bias;
    // Those in force, as the dry run had them.
    const std::shared_ptr<const BiasSnapshot> biases = parts_.biases->Current();
    if (biases != nullptr && parts_.biases->mode() == BiasMode::kOn) {
      rule.bias = biases->layers[static_cast<size_t>(request.layer)];
    }
    rule.capacity = facts_.options.capacity;
    answer = BuildRouteAnswer(rule, placement, request, gate);
  });
  return answer;
}

ServerInfo LeadFront::server_info() const {
  const RosterFacts roster = parts_.roster();
  const LeadUsage usage = parts_.lead->usage();
  const LeadCounters counters = parts_.lead->counters();
  const KvPool pool = parts_.rows->kv_pool();
  ServerInfo info;
  info.version = facts_.version;
  info.uptime_seconds = absl::ToDoubleSeconds(clock_.Now() - started_at_);
  info.topology = facts_.topology;
  info.ready = roster.missing.empty();
  info.missing = roster.missing;
  info.epoch = roster.epoch;
  info.tier = facts_.tier;
  info.threads = parts_.executor->num_threads();
  info.services = roster.services;
  info.limits = DescribeLimits(facts_.options, pool);
  info.limits.push_back({"max_route_tokens", facts_.max_route_tokens, kExhausted,
                         "tokens of one Route, which requests wait for"});
  info.queued_requests = usage.queued_requests;
  info.running_requests = usage.running_sessions;
  info.kv_capacity_tokens = pool.num_blocks * pool.block_tokens;
  info.kv_reserved_tokens = usage.reserved_kv_tokens;
  info.requests_total = counters.requests;
  info.rejected_total = counters.rejected;
  info.failed_total = counters.failed;
  info.cancelled_total = counters.cancelled;
  info.prompt_tokens_total = counters.prompt_tokens;
  info.generated_tokens_total = counters.generated_tokens;
  info.figures = counters.figures;
  if (!facts_.options.capacity.dropless())
    info.capacity = DescribeCapacity(facts_.options.capacity);
  return info;
}

BiasTable LeadFront::biases() const {
  BiasTable table = parts_.biases->Read();
  table.file = parts_.bias_file;
  return table;
}

absl::StatusOr<uint64_t> LeadFront::UpdateBias(const BiasUpdate& update) {
  MOEBIUS_RETURN_IF_ERROR(parts_.biases->Update(update));
  return parts_.biases->version();
}

PlacementTable LeadFront::placement() const {
  PlacementTable table = DescribePlacement(parts_.checkpoint->config(), *parts_.placement);
  parts_.rows->replica_load().Describe(&table);
  // The roster lists expert services by index.
  size_t index = 0;
  for (const ServiceState& member : parts_.roster().services) {
    if (member.role != "expert" || index == table.services.size()) continue;
    table.services[index].name = member.name;
    table.services[index++].state = member.state;
  }
  return table;
}

Readiness LeadFront::readiness() const {
  Readiness readiness;
  readiness.missing = parts_.roster().missing;
  if (parts_.lead->is_shut_down()) readiness.missing.push_back("the router is shutting down");
  readiness.ready = readiness.missing.empty();
  return readiness;
}

absl::Status LeadFront::CheckConfigHash(const std::string& config_hash) const {
  if (config_hash.empty() || config_hash == facts_.model.config_hash) return absl::OkStatus();
  return WithHint(absl::FailedPreconditionError(
                      absl::StrCat("the caller means configuration ", config_hash.substr(0, 64),
                                   ", this is ", facts_.model.config_hash)),
                  "ask GetModelInfo again: another model is served here");
}

absl::Status LeadFront::CheckForward(const ForwardRequest& request) const {
  const ModelConfig& config = parts_.checkpoint->config();
  MOEBIUS_RETURN_IF_ERROR(CheckMoeLayer(config, request.layer));
  if (request.hidden_size != config.hidden_size) {
    return absl::InvalidArgumentError(absl::StrCat("hidden_size is ", request.hidden_size,
                                                   ", the model's is ", config.hidden_size));
  }
  const int64_t max_rows = facts_.options.schedule.row_budget;
  if (request.num_rows > max_rows) {
    return WithHint(absl::ResourceExhaustedError(absl::StrCat(
                        request.num_rows, " rows are more than the limit of ", max_rows)),
                    "send them in several calls");
  }
  const size_t bytes = static_cast<size_t>(request.num_rows * request.hidden_size) * sizeof(Bf16);
  if (request.num_rows < 0 || request.rows.size() != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("rows has ", request.rows.size(), " bytes for ",
                                                   request.num_rows, " × ", request.hidden_size,
                                                   " bf16 values"));
  }
  return absl::OkStatus();
}

absl::Status LeadFront::CheckReady() const {
  const std::vector<std::string> missing = parts_.roster().missing;
  if (missing.empty()) return absl::OkStatus();
  return WithHint(absl::UnavailableError(absl::StrCat("not ready: ", absl::StrJoin(missing, "; "))),
                  "moebius wait returns when it is");
}

}  // namespace moebius
