// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <string>

namespace moebius::internal {

/// Prints "file:line: message" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const std::string& message);

template <typename A, typename B>
[[noreturn]] void CheckOpFailed(const char* file, int line, const char* expression, const A& a,
                                const B& b) {
  std::ostringstream out;
  out << expression << " (" << a << " vs " << b << ")";
  CheckFailed(file, line, out.str());
}

}  // namespace moebius::internal

/// A broken invariant of ours: prints and aborts. Never for somebody's input, which is a Status.
#define MOEBIUS_CHECK(condition)                                        \
  do {                                                                  \
    if (!(condition)) [[unlikely]] {                                    \
      ::moebius::internal::CheckFailed(__FILE__, __LINE__, #condition); \
    }                                                                   \
  } while (false)

#define MOEBIUS_CHECK_OP_(a, op, b)                                                         \
  do {                                                                                      \
    const auto& moebius_a_ = (a);                                                           \
    const auto& moebius_b_ = (b);                                                           \
    if (!(moebius_a_ op moebius_b_)) [[unlikely]] {                                         \
      ::moebius::internal::CheckOpFailed(__FILE__, __LINE__, #a " " #op " " #b, moebius_a_, \
                                         moebius_b_);                                       \
    }                                                                                       \
  } while (false)

#define MOEBIUS_CHECK_EQ(a, b) MOEBIUS_CHECK_OP_(a, ==, b)
#define MOEBIUS_CHECK_NE(a, b) MOEBIUS_CHECK_OP_(a, !=, b)
#define MOEBIUS_CHECK_LE(a, b) MOEBIUS_CHECK_OP_(a, <=, b)
#define MOEBIUS_CHECK_LT(a, b) MOEBIUS_CHECK_OP_(a, <, b)
#define MOEBIUS_CHECK_GE(a, b) MOEBIUS_CHECK_OP_(a, >=, b)
#define MOEBIUS_CHECK_GT(a, b) MOEBIUS_CHECK_OP_(a, >, b)

/// Checks that cost time in a hot loop; on where MOEBIUS_CHECKS is, independent of NDEBUG.
#ifdef MOEBIUS_CHECKS
#define MOEBIUS_DCHECK(condition) MOEBIUS_CHECK(condition)
#define MOEBIUS_DCHECK_EQ(a, b) MOEBIUS_CHECK_EQ(a, b)
#define MOEBIUS_DCHECK_LT(a, b) MOEBIUS_CHECK_LT(a, b)
#define MOEBIUS_DCHECK_LE(a, b) MOEBIUS_CHECK_LE(a, b)
#else
#define MOEBIUS_DCHECK(condition) static_cast<void>(0)
#define MOEBIUS_DCHECK_EQ(a, b) static_cast<void>(0)
#define MOEBIUS_DCHECK_LT(a, b) static_cast<void>(0)
#define MOEBIUS_DCHECK_LE(a, b) static_cast<void>(0)
#endif
