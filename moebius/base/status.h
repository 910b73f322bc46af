// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

/// Passes a failure on to the caller: `MOEBIUS_RETURN_IF_ERROR(Validate(x));`.
#define MOEBIUS_RETURN_IF_ERROR(expression)                                   \
  do {                                                                        \
    if (absl::Status moebius_status_ = (expression); !moebius_status_.ok()) { \
      return moebius_status_;                                                 \
    }                                                                         \
  } while (false)

#define MOEBIUS_STATUS_CONCAT_INNER_(a, b) a##b
#define MOEBIUS_STATUS_CONCAT_(a, b) MOEBIUS_STATUS_CONCAT_INNER_(a, b)

/// Unwraps a StatusOr or passes its failure on: `MOEBIUS_ASSIGN_OR_RETURN(auto x, Make());`.
#define MOEBIUS_ASSIGN_OR_RETURN(declaration, expression)                                    \
  MOEBIUS_ASSIGN_OR_RETURN_IMPL_(MOEBIUS_STATUS_CONCAT_(moebius_or_, __LINE__), declaration, \
                                 expression)
#define MOEBIUS_ASSIGN_OR_RETURN_IMPL_(temporary, declaration, expression) \
  auto temporary = (expression);                                           \
  if (!temporary.ok()) return temporary.status();                          \
  declaration = *std::move(temporary)
