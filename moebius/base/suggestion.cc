// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/suggestion.h"

#include <algorithm>
#include <cstddef>

namespace moebius {

int EditDistance(absl::string_view a, absl::string_view b) {
  const size_t columns = b.size() + 1;
  std::vector<int> before_last(columns);
  std::vector<int> last(columns);
  std::vector<int> current(columns);
  for (size_t j = 0; j < columns; ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = static_cast<int>(i);
    for (size_t j = 1; j < columns; ++j) {
      const int replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({last[j] + 1, current[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before_last[j - 2] + 1);
      }
    }
    std::swap(before_last, last);
    std::swap(last, current);
  }
  return last[columns - 1];
}

std::string NearestWord(absl::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kMaxWord = 64;  // nobody means a flag with such a word; bounds the work
  if (word.empty() || word.size() > kMaxWord) return "";
  std::string nearest;
  int nearest_distance = std::max(1, static_cast<int>(word.size()) / 3) + 1;
  for (const std::string& candidate : known) {
    const int distance = EditDistance(word, candidate);
    if (distance < nearest_distance) {
      nearest = candidate;
      nearest_distance = distance;
    }
  }
  return nearest;
}

}  // namespace moebius
