// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// Biases of a router's gates, and what its balancer does with them. Field by field as in
/// proto/moebius/api/router/v1/router.proto, which has the meaning of those not explained here.
namespace moebius {

struct LayerBias {
  int32_t layer = 0;
  std::vector<float> base;  // [E], the checkpoint's, or zeros
  std::vector<float> bias;  // [E]
  double max_violation = 0;
  float max_delta = 0;
  double changed_ratio = 0;
};

struct BiasTable {
  std::string mode;  // "off", "shadow" or "on"
  uint64_t version = 0;
  float gamma = 0;
  float limit = 0;
  int64_t window = 0;    // assignments per expert; 0: traffic moves nothing
  int64_t observed = 0;  // of these, in the window at hand
  std::string file;      // where they are kept; empty: nowhere
  std::string model_hash;
  std::vector<LayerBias> layers;  // with experts, ascending
};

/// A change from outside: exactly one of the three.
struct BiasUpdate {
  struct Layer {
    int32_t layer = 0;
    std::vector<float> bias;      // [E], of a new value
    std::vector<int64_t> demand;  // [E], of a window
  };
  std::vector<Layer> set;      // takes these biases over
  std::vector<Layer> windows;  // moves the biases by a window's demand
  bool reset = false;          // back to the checkpoint's
  std::optional<uint64_t> expected_version;
};

}  // namespace moebius
