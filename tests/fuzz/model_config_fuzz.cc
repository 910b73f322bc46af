// SPDX-License-Identifier: Apache-2.0
// config.json and generation_config.json.
#include <cstddef>
#include <cstdint>

#include "moebius/base/check.h"
#include "moebius/model/config_parser.h"
#include "moebius/model/parameters.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  (void)moebius::ParseGenerationConfig(text);
  const auto config = moebius::ParseModelConfig(text);
  if (!config.ok()) return 0;
  // What was accepted is a model: its sizes agree, and its canonical form is the same twice.
  MOEBIUS_CHECK_EQ(config->moe_layers.size(), static_cast<size_t>(config->num_layers));
  MOEBIUS_CHECK_LE(config->gate.top_k, config->gate.num_experts);
  MOEBIUS_CHECK_EQ(config->attention.rope.dim % 2, 0);
  MOEBIUS_CHECK(config->attention.softmax_scale > 0);
  MOEBIUS_CHECK(moebius::CanonicalConfigText(*config) == moebius::CanonicalConfigText(*config));
  MOEBIUS_CHECK(moebius::ResolveNumerics(*config, {}, {}).ok());
  if (config->num_layers * config->gate.num_experts < 1000) {
    MOEBIUS_CHECK(!moebius::ExpectedParameters(*config).empty());
  }
  return 0;
}
