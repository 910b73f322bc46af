// SPDX-License-Identifier: Apache-2.0
// moebius.json.
#include <cstddef>
#include <cstdint>

#include "moebius/base/check.h"
#include "moebius/model/config_parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto settings =
      moebius::ParseFolderSettings(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!settings.ok()) return 0;
  moebius::ModelConfig config;
  config.gate.num_experts = 8;
  const auto numerics = moebius::ResolveNumerics(config, *settings, {});
  if (numerics.ok()) MOEBIUS_CHECK_EQ(numerics->span % numerics->key_block, 0);
  return 0;
}
