// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace moebius {

/// Letters to insert, delete, replace or swap with a neighbour to get from `a` to `b`
/// (optimal string alignment distance). Pure.
int EditDistance(absl::string_view a, absl::string_view b);

/// The known word nearest to `word`, or an empty string when none is near enough to be meant (at
/// most a third of the letters differ, at least one may). The first of equals.
std::string NearestWord(absl::string_view word, const std::vector<std::string>& known);

}  // namespace moebius
