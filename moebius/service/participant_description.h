// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace moebius {

/// Who a process that joins a router is, as it tells operators.
struct ParticipantDescription {
  std::string name;   // of the process
  std::string state;  // ParticipantProcess::StateName
  std::string version;
  std::string config_hash;
  std::string model_hash;
  std::string numeric_class;
  std::string tier;
  int32_t threads = 0;
  int64_t loaded_bytes = 0;
};

/// Into a DescribeResponse of any service: its fields have these names.
template <typename Response>
void SetDescription(const ParticipantDescription& description, Response* response) {
  response->set_name(description.name);
  response->set_version(description.version);
  response->set_state(description.state);
  response->set_config_hash(description.config_hash);
  response->set_model_hash(description.model_hash);
  response->set_numeric_class(description.numeric_class);
  response->set_tier(description.tier);
  response->set_threads(description.threads);
  response->set_loaded_bytes(description.loaded_bytes);
}

}  // namespace moebius
