// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/log_limit.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace moebius {
namespace {

constexpr char kSeparator[] = "\n";  // no peer has one

}  // namespace

absl::string_view PeerOfAddress(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, "ipv4:")) absl::ConsumePrefix(&address, "ipv6:");
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon + 1 == address.size()) return address;
  const absl::string_view port = address.substr(colon + 1);
  const bool is_port = std::all_of(port.begin(), port.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
  return is_port ? address.substr(0, colon) : address;
}

LogLimit::Budget& LogLimit::Find(const std::string& key, absl::Duration now, size_t max_budgets,
                                 Budgets& budgets, Budget& others) const {
  const auto found = budgets.find(key);
  if (found != budgets.end()) return found->second;
  if (budgets.size() >= max_budgets) {
    std::erase_if(budgets, [this, now](const auto& budget) {
      return now - budget.second.begin >= limits_.window;
    });
  }
  return budgets.size() >= max_budgets ? others : budgets[key];
}

bool LogLimit::Allows(const LogSource& source, absl::Duration now, uint64_t* held_back) {
  Budget& budget = source.peer.empty()
                       ? Find(source.kind, now, limits_.max_kinds, of_kinds_, other_kinds_)
                       : Find(absl::StrCat(source.peer, kSeparator, source.kind), now,
                              limits_.max_peers, of_peers_, other_peers_);
  *held_back = 0;
  if (budget.lines == 0 || now - budget.begin >= limits_.window) {
    *held_back = budget.held_back;
    budget = {now, 0, 0};
  }
  if (budget.lines < limits_.max_lines) {
    ++budget.lines;
    return true;
  }
  ++budget.held_back;
  NoteHeldBack(source, now);
  return false;
}

void LogLimit::NoteHeldBack(const LogSource& source, absl::Duration now) {
  if (held_back_.lines == 0) due_ = now + limits_.window;
  ++held_back_.lines;
  if (!source.peer.empty() && peers_held_back_.size() < limits_.max_peers) {
    peers_held_back_.insert(source.peer);
  }
  const std::string& who = source.peer.empty() ? source.kind : source.peer;
  if (held_back_of_.contains(who) || held_back_of_.size() < limits_.max_peers) {
    ++held_back_of_[who];
  }
}

std::optional<LogHeldBack> LogLimit::TakeHeldBack(absl::Duration now) {
  if (now < due_) return std::nullopt;
  due_ = absl::InfiniteDuration();
  LogHeldBack taken = std::exchange(held_back_, LogHeldBack());
  taken.peers = peers_held_back_.size();
  for (const auto& [who, lines] : held_back_of_) {
    if (lines <= taken.most_lines) continue;
    taken.most_of = who;
    taken.most_lines = lines;
  }
  held_back_of_.clear();
  peers_held_back_.clear();
  return taken;
}

}  // namespace moebius
