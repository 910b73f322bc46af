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
  end_step "$(sed -n 's/^\([0-9]*%\) tests passed.*out of \([0-9]*\)/\1 of \2 suites passed/p' "$log")"
}

# report_tests TREE…: failures, skips with their reasons, and the closing line.
report_tests() {
  python3 tools/report_tests.py --expected-skips tools/expected_skips.txt "$@"
}

# Builds and runs both trees: five steps, after which report_tests can be called.
build_and_run_tests() {
  install_packages build test bench
  build_tree release "release tree: programs, cluster and e2e tests"
  build_tree test "test tree: address and undefined sanitizers"
  test_tree release
  test_tree test
}

run_tests() {
  step_count=5
  build_and_run_tests
  report_tests build/release build/test
}
