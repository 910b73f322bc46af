// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moebius/model/field_reader.h"
#include "moebius/model/model_config.h"
#include "moebius/model/parameters.h"

namespace moebius {

/// Reads quantization_config: FP8 with block scales as published ("quant_method" "fp8", "fmt"
/// "e4m3", "activation_scheme" "dynamic", "weight_block_size" [rows, columns]), or nothing. Other
/// methods are refused by name. It says how tensors of F8_E4M3 are scaled, not which tensors are.
QuantizationConfig ParseQuantization(FieldReader& config);

/// Whether weights of this part may be F8_E4M3: those that rows are multiplied with in attention
/// and in feed-forward networks. Gates, embeddings, heads, norms and biases may not.
bool MayBeFp8(Part part);

/// What the matrices of attention, or of the feed-forward networks, are stored in: "bf16" (whatever
/// is rounded to it), "fp8", or "bf16+fp8". Parameters are a match's.
std::string AttentionWeightTypes(const std::vector<Parameter>& parameters);
std::string FeedForwardWeightTypes(const std::vector<Parameter>& parameters);

/// Such types with the blocks of FP8: "bf16", "fp8-128x128", "bf16+fp8-128x128".
std::string WithBlockSize(const std::string& types, const QuantizationConfig& quantization);

/// The tensor of the scales of a tensor in F8_E4M3: "….weight_scale_inv".
std::string ScaleName(const std::string& tensor_name);

/// The shape of the scales of a matrix [rows, columns]: one for each block, the last ones shorter.
std::vector<int64_t> ScaleShape(const QuantizationConfig& quantization,
                                const std::vector<int64_t>& shape);

}  // namespace moebius
