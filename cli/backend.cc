// SPDX-License-Identifier: Apache-2.0
#include "cli/backend.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "cli/terminal.h"

#include "moebius/base/error.h"
#include "moebius/base/huge_pages.h"
#include "moebius/base/random.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(50);
constexpr absl::Duration kRouteTimeout = absl::InfiniteDuration();  // Ctrl-C ends the process

class EmbeddedBackend final : public Backend {
 public:
  explicit EmbeddedBackend(std::unique_ptr<EmbeddedNode> node)
      : node_(std::move(node)), model_(node_->front().model_info()) {}

  const ModelInfo& model() const override { return model_; }
  const Tokenizer* tokenizer() const override { return node_->tokenizer(); }
  AnswerOrigin origin() const override {
    const EmbeddedInfo info = node_->info();
    return {info.config_hash,
            info.model_hash,
            info.tier,
            info.num_threads,
            absl::StrCat("weights ", FormatBytes(info.weight_bytes), "  KV ",
                         FormatBytes(info.kv_budget_bytes), " = ",
                         FormatCount(info.kv_capacity_tokens), " tokens"),
            node_->front().server_info().capacity,
            DescribeWeightLoad(info.load, HostHugePagePolicy())};
  }

  absl::Status Generate(const GenerateRequest& request,
                        absl::FunctionRef<bool(const GenerateEvent*)> on_event) override {
    MOEBIUS_ASSIGN_OR_RETURN(const std::shared_ptr<GenerateStream> stream, node_->Submit(request));
    bool goes_on = true;
    while (!stream->ended()) {
      const std::optional<GenerateEvent> event = stream->Next(kPoll);
      const bool wants_more = on_event(event.has_value() ? &*event : nullptr);
      if (goes_on && !wants_more) stream->Cancel();
      goes_on = goes_on && wants_more;
    }
    return stream->status();
  }

  absl::StatusOr<RouteAnswer> Route(const RouteRequest& request) override {
    return node_->front().Route(request, kRouteTimeout);
  }
  absl::StatusOr<ExpertLoadTable> GetExpertLoad() override { return node_->front().expert_load(); }

 private:
  const std::unique_ptr<EmbeddedNode> node_;
  const ModelInfo model_;
};

class RouterBackend final : public Backend {
 public:
  RouterBackend(std::unique_ptr<Client> client, ModelInfo model, const ServerInfo& server)
      : client_(std::move(client)),
        model_(std::move(model)),
        tokenizer_(MakeTokenizer(model_)),
        origin_{model_.config_hash, model_.model_hash, server.tier, server.threads, "",
                server.capacity} {}

  const ModelInfo& model() const override { return model_; }
  const Tokenizer* tokenizer() const override { return tokenizer_.get(); }
  AnswerOrigin origin() const override { return origin_; }

  absl::Status Generate(const GenerateRequest& request,
                        absl::FunctionRef<bool(const GenerateEvent*)> on_event) override {
    GenerateRequest named = request;
    if (named.request_id.empty()) {
      named.request_id = absl::StrCat("moebius-", absl::Hex(SeedFromSystem(), absl::kZeroPad16));
    }
    bool goes_on = true;
    absl::Status status =
        client_->Generate(named, [&goes_on, &on_event](const GenerateEvent* event) {
          goes_on = on_event(event);
          return goes_on;
        });
    if (!status.ok() || goes_on) return status;
    return TellEnd(named.request_id, on_event);
  }

  absl::StatusOr<RouteAnswer> Route(const RouteRequest& request) override {
    return client_->Route(request);
  }
  absl::StatusOr<ExpertLoadTable> GetExpertLoad() override { return client_->GetExpertLoad(); }

 private:
  // The last event of a request that this end has left: the router still knows it. Tokens that were
  // generated behind what came here are in its counts and hashes.
  absl::Status TellEnd(const std::string& request_id,
                       absl::FunctionRef<bool(const GenerateEvent*)> on_event) {
    while (true) {
      MOEBIUS_ASSIGN_OR_RETURN(const Explanation explanation, client_->Explain(request_id));
      if (explanation.state == RequestState::kFailed) return explanation.failure;
      if (explanation.state == RequestState::kFinished) {
        on_event(&explanation.last);
        return absl::OkStatus();
      }
      on_event(nullptr);
      absl::SleepFor(kPoll);
    }
  }

  const std::unique_ptr<Client> client_;
  const ModelInfo model_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  const AnswerOrigin origin_;
};

}  // namespace

std::unique_ptr<Tokenizer> MakeTokenizer(const ModelInfo& model) {
  if (model.tokenizer != "bytes") return nullptr;
  ModelConfig config;
  config.vocab_size = model.vocab_size;
  config.bos_token_id = model.bos_token_id;
  config.eos_token_ids = model.eos_token_ids;
  return MakeByteTokenizer(config);
}

absl::StatusOr<std::unique_ptr<Backend>> OpenEmbedded(EmbeddedOptions options, bool quiet) {
  Progress progress("loading", quiet);
  options.on_load = [&progress](const LoadProgress& load) {
    progress.Update(
        load.loaded_bytes, load.total_bytes,
        absl::StrCat(FormatBytes(load.loaded_bytes), " of ", FormatBytes(load.total_bytes)));
  };
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<EmbeddedNode> node, EmbeddedNode::Open(options));
  progress.End();
  for (const std::string& note : node->info().load.notes) {
    if (!quiet) absl::FPrintF(stderr, "%s\n", EscapeControls(note));
  }
  for (const std::string& setting : node->info().settings_not_applied) {
    if (!quiet) absl::FPrintF(stderr, "generation_config.json: %s is not applied\n", setting);
  }
  return std::make_unique<EmbeddedBackend>(std::move(node));
}

absl::StatusOr<std::unique_ptr<Backend>> OpenRouter(const ClientOptions& options) {
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Make(options));
  MOEBIUS_ASSIGN_OR_RETURN(ModelInfo model, client->GetModelInfo());
  MOEBIUS_ASSIGN_OR_RETURN(const ServerInfo server, client->GetServerInfo());
  return std::make_unique<RouterBackend>(std::move(client), std::move(model), server);
}

}  // namespace moebius
