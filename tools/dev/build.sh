# SPDX-License-Identifier: Apache-2.0
# Configures and builds the trees of CMakePresets.json.
# shellcheck shell=bash

num_cores() { nproc; }

# configure_tree PRESET: into build/PRESET, without tests and benchmarks where their packages are
# missing.
configure_tree() {
  local preset=$1 log=build/logs/$1-configure.log
  local -a switches=()
  [[ -z $(missing_packages test) ]] || switches+=(-D MOEBIUS_BUILD_TESTS=OFF)
  [[ -z $(missing_packages bench) ]] || switches+=(-D MOEBIUS_BUILD_BENCH=OFF)
  # Presets set these for some trees; else they are on.
  case $preset in
    release) switches=(-D MOEBIUS_BUILD_TESTS=ON -D MOEBIUS_BUILD_BENCH=ON "${switches[@]}") ;;
  esac
  if ! cmake --preset "$preset" "${switches[@]}" >"$log" 2>&1; then
    fail_step "$log" "The tree build/$preset could not be configured. The log above names the cause; a
changed package or compiler is cured by ./dev clean."
  fi
}

# build_tree PRESET TEXT [TARGET…]: the step "build".
build_tree() {
  local preset=$1 text=$2 log=build/logs/$1-build.log
  shift 2
  begin_step build "$text, $(num_cores) cores"
  configure_tree "$preset"
  : >"$log"
  if ! NINJA_STATUS='[%f/%t] ' cmake --build "build/$preset" -- "$@" 2>&1 |
    follow_progress "$log" '^\[([0-9]+)/([0-9]+)\]'; then
    fail_step "$log" "The build of build/$preset failed. The first error is in $log;
a compiler that was killed needs more memory: 2 GB per core."
  fi
  local edges
  edges=$(sed -n 's/^\[\([0-9]*\)\/[0-9]*\].*/\1/p' "$log" | tail -n 1)
  end_step "${edges:+$edges/$edges}"
}

# The programs that the release tree installs.
count_programs() { find build/bin -maxdepth 1 -type f -perm -u+x 2>/dev/null | wc -l; }

run_build() {
  step_count=2
  install_packages build
  build_tree release "the programs" programs
  printf 'In build/bin: %s\n' "$(find build/bin -maxdepth 1 -type f -printf '%f ' 2>/dev/null)"
}
