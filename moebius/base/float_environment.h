// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moebius {

/// Sets the floating-point mode that every output depends on in this thread: round to nearest even,
/// denormals flushed in and out (FTZ and DAZ), exceptions masked. docs/numerics.md says why.
void SetFloatEnvironment();

/// True when this thread runs in that mode.
bool HasFloatEnvironment();

/// Sets the mode for a scope and restores the former one, for tests and for code that must compute
/// on a thread that the executor does not own.
class ScopedFloatEnvironment {
 public:
  ScopedFloatEnvironment();
  ~ScopedFloatEnvironment();
  ScopedFloatEnvironment(const ScopedFloatEnvironment&) = delete;
  ScopedFloatEnvironment& operator=(const ScopedFloatEnvironment&) = delete;

 private:
  unsigned saved_;
};

}  // namespace moebius
