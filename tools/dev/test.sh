# SPDX-License-Identifier: Apache-2.0
# Runs the tests of the trees and reports them.
# shellcheck shell=bash

# test_tree PRESET: the step "test". Failures are collected; report_tests prints them.
test_tree() {
  local preset=$1 log=build/logs/$1-ctest.log
  begin_step test "build/$preset"
  rm -rf "build/$preset/results"
  mkdir -p "build/$preset/results"
  : >"$log"
  ctest --test-dir "build/$preset" -j "$(num_cores)" --output-on-failure --no-tests=ignore \
    --output-junit "results/ctest.xml" 2>&1 |
    follow_progress "$log" '^ *([0-9]+)/([0-9]+) Test' || true
  python3 tools/rerun_failed.py "build/$preset" >>"$log" 2>&1
  end_step "$(sed -n 's/^\([0-9]*%\) tests passed.*out of \([0-9]*\)/\1 of \2 suites passed/p' "$log")"
}

# report_tests TREE…: failures, skips with their reasons, and the closing line.
report_tests() {
  python3 tools/report_tests.py --expected-skips tools/expected_skips.txt "$@"
}

# The text of a tree's build step.
describe_tree() {
  case $1 in
    release) echo "release tree: programs, cluster and e2e tests" ;;
    test) echo "test tree: address and undefined sanitizers" ;;
    tsan) echo "tsan tree: thread sanitizer" ;;
    *)
      echo "dev: no tree is called '$1'; tests run in release, test and tsan" >&2
      return 1
      ;;
  esac
}

# run_tests [TREE…]: builds first, so that an error of the compiler shows before any test runs.
run_tests() {
  local -a trees=("$@")
  local tree text
  ((${#trees[@]} > 0)) || trees=(release test)
  for tree in "${trees[@]}"; do describe_tree "$tree" >/dev/null || exit 2; done
  step_count=$((1 + 2 * ${#trees[@]}))
  install_packages build test bench
  for tree in "${trees[@]}"; do
    text=$(describe_tree "$tree")
    build_tree "$tree" "$text"
  done
  for tree in "${trees[@]}"; do test_tree "$tree"; done
  report_tests "${trees[@]/#/build/}"
}
