// SPDX-License-Identifier: Apache-2.0
#include "cli/capacity_flags.h"

#include "cli/command_flags.h"

#include "moebius/routing/capacity.h"

namespace moebius {

NamedCapacityFlags NamesOf(const CapacityFlags& flags) {
  return {{{"--capacity-factor", &flags.factor},
           {"--capacity-by", &flags.by},
           {"--capacity-overflow", &flags.overflow},
           {"--min-capacity", &flags.min}}};
}

void AddCapacityFlags(CLI::App& command, CapacityFlags* flags) {
  AddTextFlags(
      command,
      {{"Capacity", "--capacity-factor", "CF", &flags->factor,
        "Rows of a step that an expert takes, in even shares; 0 takes all; changes answers"},
       {"Capacity", "--capacity-by", "ORDER", &flags->by,
        "Whose rows a full expert keeps: by weight, position or token; weight"},
       {"Capacity", "--capacity-overflow", "WAY", &flags->overflow,
        "The others: drop, drop_renormalize, next_best or reject; drop"},
       {"Capacity", "--min-capacity", "N", &flags->min, "Rows that an expert takes at least; 1"}});
}

CapacityText TextOf(const CapacityFlags& flags) {
  return {flags.factor.value_or(""), flags.min.value_or(""), flags.by.value_or(""),
          flags.overflow.value_or("")};
}

}  // namespace moebius
