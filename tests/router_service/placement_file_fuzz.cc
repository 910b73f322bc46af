// SPDX-License-Identifier: Apache-2.0
// Placement files. What is accepted is a placement of the model: Placement::Make has checked it.
#include <cstddef>
#include <cstdint>

#include "moebius/base/check.h"
#include "router_service/placement_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto shape = moebius::PlacementShape::Make(8, {false, true, true}, 1, 3);
  const auto placement = moebius::ParsePlacement(
      absl::string_view(reinterpret_cast<const char*>(data), size), "fuzz", shape, 3);
  if (placement.ok()) MOEBIUS_CHECK_EQ(placement->num_services(), 3);
  return 0;
}
