// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gtest/gtest.h"

/// Skips a test with a reason that the closing report lists. Every reason must match a line of
/// tools/expected_skips.txt; another one fails the run.
#define MOEBIUS_SKIP(reason) GTEST_SKIP() << "MOEBIUS_SKIP: " << (reason)
