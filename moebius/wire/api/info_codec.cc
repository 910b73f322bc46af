// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/api/router_codec.h"

namespace moebius {
namespace {

namespace pb = router_pb;

}  // namespace

void ToProto(const ModelInfo& info, pb::GetModelInfoResponse* out) {
  out->set_name(info.name);
  out->set_architecture(info.architecture);
  out->set_vocab_size(info.vocab_size);
  out->set_hidden_size(info.hidden_size);
  out->set_num_layers(info.num_layers);
  out->mutable_moe_layers()->Add(info.moe_layers.begin(), info.moe_layers.end());
  out->set_max_positions(info.max_positions);
  out->set_num_experts(info.num_experts);
  out->set_top_k(info.top_k);
  out->set_num_shared_experts(info.num_shared_experts);
  out->set_num_groups(info.num_groups);
  out->set_num_kept_groups(info.num_kept_groups);
  out->set_score_function(info.score_function);
  out->set_has_correction_bias(info.has_correction_bias);
  out->set_routed_scaling_factor(info.routed_scaling_factor);
  out->mutable_eos_token_ids()->Add(info.eos_token_ids.begin(), info.eos_token_ids.end());
  if (info.bos_token_id.has_value()) out->set_bos_token_id(*info.bos_token_id);
  out->set_tokenizer(info.tokenizer);
  out->set_config_hash(info.config_hash);
  out->set_model_hash(info.model_hash);
  out->set_numeric_class(info.numeric_class);
  out->set_dtype(info.dtype);
  ToProto(info.default_sampling, out->mutable_default_sampling());
}

ModelInfo FromProto(const pb::GetModelInfoResponse& in) {
  ModelInfo info;
  info.name = in.name();
  info.architecture = in.architecture();
  info.vocab_size = in.vocab_size();
  info.hidden_size = in.hidden_size();
  info.num_layers = in.num_layers();
  info.moe_layers.assign(in.moe_layers().begin(), in.moe_layers().end());
  info.max_positions = in.max_positions();
  info.num_experts = in.num_experts();
  info.top_k = in.top_k();
  info.num_shared_experts = in.num_shared_experts();
  info.num_groups = in.num_groups();
  info.num_kept_groups = in.num_kept_groups();
  info.score_function = in.score_function();
  info.has_correction_bias = in.has_correction_bias();
  info.routed_scaling_factor = in.routed_scaling_factor();
  info.eos_token_ids.assign(in.eos_token_ids().begin(), in.eos_token_ids().end());
  if (in.has_bos_token_id()) info.bos_token_id = in.bos_token_id();
  info.tokenizer = in.tokenizer();
  info.config_hash = in.config_hash();
  info.model_hash = in.model_hash();
  info.numeric_class = in.numeric_class();
  info.dtype = in.dtype();
  info.default_sampling = FromProto(in.default_sampling());
  return info;
}

void ToProto(const ServerInfo& info, pb::GetServerInfoResponse* out) {
  out->set_version(info.version);
  out->set_uptime_seconds(info.uptime_seconds);
  out->set_topology(info.topology);
  out->set_ready(info.ready);
  for (const std::string& what : info.missing) out->add_missing(what);
  out->set_epoch(info.epoch);
  out->set_tier(info.tier);
  out->set_threads(info.threads);
  for (const ServiceState& service : info.services) {
    pb::ServiceState* entry = out->add_services();
    entry->set_name(service.name);
    entry->set_role(service.role);
    entry->set_state(service.state);
    entry->set_address(service.address);
    entry->set_detail(service.detail);
    entry->set_http_address(service.http_address);
  }
  for (const Limit& limit : info.limits) {
    pb::Limit* entry = out->add_limits();
    entry->set_name(limit.name);
    entry->set_value(limit.value);
    entry->set_code(limit.code);
    entry->set_description(limit.description);
  }
  out->set_queued_requests(info.queued_requests);
  out->set_running_requests(info.running_requests);
  out->set_kv_capacity_tokens(info.kv_capacity_tokens);
  out->set_kv_reserved_tokens(info.kv_reserved_tokens);
  out->set_requests_total(info.requests_total);
  out->set_rejected_total(info.rejected_total);
  out->set_failed_total(info.failed_total);
  out->set_cancelled_total(info.cancelled_total);
  out->set_prompt_tokens_total(info.prompt_tokens_total);
  out->set_generated_tokens_total(info.generated_tokens_total);
  ToProto(info.figures, out->mutable_figures());
  out->set_capacity(info.capacity);
  for (const std::string& warning : info.warnings) out->add_warnings(warning);
}

ServerInfo FromProto(const pb::GetServerInfoResponse& in) {
  ServerInfo info;
  info.version = in.version();
  info.uptime_seconds = in.uptime_seconds();
  info.topology = in.topology();
  info.ready = in.ready();
  info.missing.assign(in.missing().begin(), in.missing().end());
  info.epoch = in.epoch();
  info.tier = in.tier();
  info.threads = in.threads();
  for (const pb::ServiceState& entry : in.services()) {
    info.services.push_back({entry.name(), entry.role(), entry.state(), entry.address(),
                             entry.detail(), entry.http_address()});
  }
  for (const pb::Limit& entry : in.limits()) {
    info.limits.push_back({entry.name(), entry.value(), entry.code(), entry.description()});
  }
  info.queued_requests = in.queued_requests();
  info.running_requests = in.running_requests();
  info.kv_capacity_tokens = in.kv_capacity_tokens();
  info.kv_reserved_tokens = in.kv_reserved_tokens();
  info.requests_total = in.requests_total();
  info.rejected_total = in.rejected_total();
  info.failed_total = in.failed_total();
  info.cancelled_total = in.cancelled_total();
  info.prompt_tokens_total = in.prompt_tokens_total();
  info.generated_tokens_total = in.generated_tokens_total();
  info.figures = FromProto(in.figures());
  info.capacity = in.capacity();
  info.warnings.assign(in.warnings().begin(), in.warnings().end());
  return info;
}

}  // namespace moebius
