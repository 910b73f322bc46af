# SPDX-License-Identifier: Apache-2.0
# From nothing to an answer with the recorded bits.
# shellcheck shell=bash

run_demo() {
  local started=$SECONDS
  echo "Moebius demo: from nothing to a served answer."
  step_count=4
  install_packages build
  build_tree release "the programs" programs
  begin_step "one process" ""
  print_heading "$(python3 tools/run_demo.py --describe build/bin/moebius models/demo)"
  if ! python3 tools/run_demo.py build/bin/moebius models/demo; then
    fail_step /dev/null "The demo's answer differs from models/demo/expected.json, or there was none."
  fi
  begin_step "seven processes" ""
  print_heading "router, 2 attention, 4 expert; each expert on 2 services: any one of the four may die"
  if ! python3 tools/demo_cluster.py build/bin/moebius models/demo --logs build/demo/logs; then
    fail_step /dev/null "The cluster's answer differs, or a process failed; its logs are in build/demo/logs."
  fi
  printf 'Total %s.\n' "$(format_seconds $((SECONDS - started)))"
  echo "Next: build/bin/moebius serve --model models/demo, then build/bin/moebius status; or moebius route --help"
}
