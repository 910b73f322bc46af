// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "moebius/api/bias.h"
#include "router_service/bias_control.h"

namespace moebius {

/// Biases as a router keeps them between two lives:
///
///   {"format": 1, "model_hash": "0123456789abcdef", "version": 12,
///    "layers": [{"layer": 1, "bias": [0.001, -0.002, …]}, …], "checksum": "…"}
///
/// Values are written so that they read back with the same bits. "checksum" is Hash64 of the
/// object's canonical text without it.
inline constexpr size_t kMaxBiasFileBytes = 16 << 20;

std::string FormatBiasFile(const BiasTable& table);
/// Version, model and biases of each layer; the rest is as in an empty table. INVALID_ARGUMENT with
/// `source` names what is wrong; DATA_LOSS for another checksum.
absl::StatusOr<BiasTable> ParseBiasFile(absl::string_view text, absl::string_view source);

/// NOT_FOUND where there is none.
absl::StatusOr<BiasTable> ReadBiasFile(const std::string& path);
/// Errors of ReplaceFile: whoever reads finds the old file or the new one, whole.
absl::Status WriteBiasFile(const std::string& path, const BiasTable& table);

/// Keeps a control's biases in a file. One writer for a file; not thread-safe, but for the metrics.
class BiasFile {
 public:
  /// Borrows `control`. `on_notice` hears, once for each reason, why a file cannot be written.
  BiasFile(std::string path, BiasControl* control,
           std::function<void(const std::string&)> on_notice);

  /// Takes over what is in the file; nothing where there is none. Failures as ReadBiasFile and
  /// BiasControl::Restore: a router must not start from biases that it cannot read.
  absl::Status Restore();
  /// Writes the file where the biases have changed since it was read or written.
  void SaveIfChanged();

  /// Writes that failed. Thread-safe.
  int64_t num_failures() const { return num_failures_.load(std::memory_order_relaxed); }

 private:
  const std::string path_;
  BiasControl& control_;
  const std::function<void(const std::string&)> on_notice_;
  std::optional<uint64_t> saved_version_;
  std::string last_failure_;
  std::atomic<int64_t> num_failures_{0};
};

}  // namespace moebius
