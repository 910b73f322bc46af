# SPDX-License-Identifier: Apache-2.0
# A tar for machines without a compiler.
# shellcheck shell=bash

run_package() {
  step_count=3
  install_packages build
  build_tree release "the programs" programs
  begin_step package "build/package"
  local log=build/logs/package.log
  if ! python3 tools/make_package.py build/release build/package >"$log" 2>&1; then
    fail_step "$log" "The package could not be made."
  fi
  end_step ""
  cat "$log"
}
