// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace moebius {

/// The value of `series` ("name" or "name{label=\"value\"}") in a scrape; fails the test and
/// returns -1 when it is not there.
inline double ValueOf(const std::string& scrape, const std::string& series) {
  const std::string begin = absl::StrCat("\n", series, " ");
  const size_t at = scrape.find(begin);
  double value = -1;
  if (at == std::string::npos) {
    ADD_FAILURE() << "no series " << series;
    return value;
  }
  const size_t from = at + begin.size();
  EXPECT_TRUE(absl::SimpleAtod(scrape.substr(from, scrape.find('\n', from) - from), &value));
  return value;
}

/// Everything that a registry refused to show as it was told.
inline double MetricsErrors(const std::string& scrape) {
  double sum = 0;
  for (const char* reason : {"impossible_value", "wrong_labels", "duplicate", "too_many_series"}) {
    sum += ValueOf(scrape, absl::StrCat("moebius_metrics_errors_total{reason=\"", reason, "\"}"));
  }
  return sum;
}

}  // namespace moebius
