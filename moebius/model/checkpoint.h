// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/base/strong_id.h"
#include "moebius/model/block_reader.h"
#include "moebius/model/config_parser.h"
#include "moebius/model/model_config.h"
#include "moebius/model/parameters.h"
#include "moebius/model/tensor_directory.h"
#include "moebius/model/tokenizer.h"
#include "moebius/tensor/buffer.h"
#include "moebius/tensor/weight_rows.h"

namespace moebius {

/// Weights that were loaded with the wrong contents are refused unless this allows them.
enum class ZeroMatrices { kRefuse, kAllow };

struct CheckpointOptions {
  std::string config_file;        // read instead of the folder's config.json, where not empty
  bool convert_to_bf16 = false;   // --dtype=bf16: F16 and F32 weights may be rounded
  bool reads_as_stored = false;   // the fp32 reference: LoadFloat only, any of BF16, F16, F32
  bool tie_missing_head = false;  // take the embedding where lm_head.weight is missing
  ZeroMatrices zero_matrices = ZeroMatrices::kRefuse;
  NumericsOverrides numerics;
};

/// One expert-sized piece of feed-forward weights. w is moe_intermediate_size, less in the last
/// slice of a dense layer.
struct ExpertWeights {
  WeightMatrix gate;  // [w, hidden_size]
  WeightMatrix up;    // [w, hidden_size], of the type of gate
  WeightMatrix down;  // [hidden_size, w]
};

/// A model's folder, validated: configuration, tensor directory, parameters, constants and hashes.
/// Weights are read on demand, by position, and belong to the caller. Immutable and thread-safe
/// after Open.
class Checkpoint {
 public:
  /// Validates everything but the values of the weights, of which it reads a sample for the hash.
  /// NOT_FOUND, UNIMPLEMENTED, INVALID_ARGUMENT or DATA_LOSS; messages name file, tensor or field.
  static absl::StatusOr<std::unique_ptr<const Checkpoint>> Open(
      const std::string& folder, const CheckpointOptions& options = CheckpointOptions());

  const std::string& folder() const { return folder_; }
  const ModelConfig& config() const { return config_.model; }
  const GenerationDefaults& generation_defaults() const { return config_.generation; }
  const FolderSettings& settings() const { return config_.settings; }
  const NumericsConfig& numerics() const { return numerics_; }
  /// As given, with what moebius.json allows beside it.
  const CheckpointOptions& options() const { return options_; }
  const TensorDirectory& directory() const { return *directory_; }
  const ParameterMatch& match() const { return match_; }
  /// Of the configuration, the tensor directory and a sample of the weights; docs/adr/0005 says
  /// what it cannot see.
  uint64_t model_hash() const { return model_hash_; }
  /// Of NUMERICS's constants and the model hash: what all services of a cluster must share.
  uint64_t config_hash() const { return config_hash_; }

  /// UNIMPLEMENTED with a hint when the folder has no tokenizer that this build reads.
  absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer() const;

  /// A parameter in bf16, [rows, cols]; a vector is one row. F16 and F32 are rounded to nearest
  /// even where convert_to_bf16 allowed it; a parameter that keeps its fp32 or is stored in FP8 is
  /// CHECKed against. DATA_LOSS for a matrix of zeros and for a file that became shorter.
  absl::StatusOr<RowBatch<Bf16>> LoadBf16(const ParameterKey& key) const;
  /// A parameter that rows are multiplied with: in FP8 where it is stored so, else as LoadBf16.
  /// DATA_LOSS also for codes and scales that ReadFp8Block refuses.
  absl::StatusOr<WeightMatrix> LoadWeights(const ParameterKey& key) const;
  /// A parameter as stored, widened exactly to fp32; FP8 times its scale, rounded to fp32.
  absl::StatusOr<RowBatch<float>> LoadFloat(const ParameterKey& key) const;
  /// The blocks that expert or slice `id` is stored in, as Fp8Rows says them, its rows and columns
  /// left out; null members where gate and up, or down, are in bf16.
  struct SliceBlocks {
    std::optional<Fp8Rows> gate_up;
    std::optional<Fp8Rows> down;
  };
  SliceBlocks BlocksOf(LayerId layer, ExpertId id) const;
  /// The same of a whole parameter that exists.
  std::optional<Fp8Rows> BlocksOf(const ParameterKey& key) const;

  /// Expert `id` of a MoE layer, id in [0, E); or slice id - E of its shared experts, or of a dense
  /// layer, id from E upwards (NumSlices).
  absl::StatusOr<ExpertWeights> ExpertSlice(LayerId layer, ExpertId id) const;
  /// Shared experts of a MoE layer, or slices of a dense layer.
  int64_t NumSlices(LayerId layer) const;
  /// Columns of the intermediate activation that expert or slice `id` has.
  int64_t SliceWidth(LayerId layer, ExpertId id) const;

  /// True where the parameter exists in this model (a bias, a norm, the gate of a MoE layer).
  bool Has(const ParameterKey& key) const;

 private:
  struct Source;  // where a parameter's bytes are
  Checkpoint() = default;
  struct SliceKeys;  // the three parameters that an expert or slice is cut from, and where
  absl::Status ValidateTiedCopy() const;
  Source Locate(const ParameterKey& key) const;
  SliceKeys KeysOf(LayerId layer, ExpertId id) const;
  absl::StatusOr<WeightMatrix> LoadBlock(const ParameterKey& key, const MatrixBlock& block) const;

  std::string folder_;
  CheckpointOptions options_;
  FolderConfig config_;
  NumericsConfig numerics_;
  std::unique_ptr<TensorDirectory> directory_;
  ParameterMatch match_;
  std::map<ParameterKey, size_t> index_;  // into match_.parameters
  uint64_t model_hash_ = 0;
  uint64_t config_hash_ = 0;
};

}  // namespace moebius
