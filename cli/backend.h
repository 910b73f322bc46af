// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

#include "moebius/api/generate.h"
#include "moebius/api/route.h"
#include "moebius/api/router_info.h"
#include "moebius/client/client.h"
#include "moebius/model/tokenizer.h"
#include "node/embedded.h"

namespace moebius {

/// Where the answers of a command come from, as its closing lines name it.
struct AnswerOrigin {
  std::string config_hash;
  std::string model_hash;
  std::string tier;
  int num_threads = 0;
  std::string details;   // in words: what the model takes; empty where others know it
  std::string capacity;  // of experts, in words; empty: dropless
  std::string load;      // in words: how weights came into this process; empty: they did not
};

/// Who answers a command: this process, with a model of its own, or a router. Same values either
/// way, and for one model the same bits.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const ModelInfo& model() const = 0;
  /// Null where the model has no tokenizer that this build reads.
  virtual const Tokenizer* tokenizer() const = 0;
  virtual AnswerOrigin origin() const = 0;

  /// As Client::Generate: null in between, and false ends the request, whose last event (with
  /// finish_reason abort) still comes.
  virtual absl::Status Generate(const GenerateRequest& request,
                                absl::FunctionRef<bool(const GenerateEvent* event)> on_event) = 0;
  virtual absl::StatusOr<RouteAnswer> Route(const RouteRequest& request) = 0;
  virtual absl::StatusOr<ExpertLoadTable> GetExpertLoad() = 0;
};

/// Loads the model, with a progress bar unless `quiet`.
absl::StatusOr<std::unique_ptr<Backend>> OpenEmbedded(EmbeddedOptions options, bool quiet);

/// Connects and asks for the model.
absl::StatusOr<std::unique_ptr<Backend>> OpenRouter(const ClientOptions& options);

/// The tokenizer that a router's model has, where this build has it too; else null.
std::unique_ptr<Tokenizer> MakeTokenizer(const ModelInfo& model);

}  // namespace moebius
