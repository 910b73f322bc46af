# SPDX-License-Identifier: Apache-2.0
# The benchmarks, each beside its ceilings of the same minute.
# shellcheck shell=bash

readonly bench_folder=build/bench

print_bench_help() {
  cat <<'HELP'
Usage: ./dev bench [--quick] [--large] [--update]
       ./dev bench --micro [Google Benchmark flags]

Measures kernels, attention, planning, transports and clusters beside their ceilings, in a few
minutes on two cores, prints the ratios against their targets and keeps build/bench/report.json.

  --quick    the best kernels and the demo model only, about a minute and a half
  --large    all 16 layers of OLMoE's shape instead of 4 (15 GB below build/bench instead of 4.9 GB,
             made once)
  --update   also writes this kind of machine's table into bench/README.md
  --micro    the micro benchmarks instead; the other arguments go to each of them

Two reports are compared by: build/bin/moebius bench experts --compare BEFORE AFTER
HELP
}

run_micro_benches() {
  local bench
  for bench in build/release/bin/*_bench; do
    if [[ -x $bench ]]; then "$bench" "$@"; fi
  done
}

# one_bench NAME FLAG…: moebius bench with a report of its own.
one_bench() {
  local name=$1
  shift
  printf '\n'
  build/bin/moebius bench "$@" --json-out "$bench_folder/$name.json"
}

# made_folder NAME FLAG…: moebius model make, once.
made_folder() {
  local folder=$bench_folder/$1
  shift
  if [[ ! -f $folder/config.json ]]; then
    build/bin/moebius model make "$@" --out "$folder" >&2
  fi
  printf '%s' "$folder"
}

run_bench() {
  local layers=4 update=0 argument
  if [[ ${1:-} == --micro ]]; then
    shift
    step_count=2
    install_packages build bench
    build_tree release "the benchmarks" programs benches
    run_micro_benches "$@"
    return
  fi
  for argument in "$@"; do
    case $argument in
      --quick) layers=0 ;;
      --large) layers=16 ;;
      --update) update=1 ;;
      --help) print_bench_help && return ;;
      *)
        printf "dev: bench does not know '%s'\n" "$argument" >&2
        print_bench_help >&2
        exit 2
        ;;
    esac
  done
  step_count=2
  install_packages build bench
  build_tree release "the benchmarks" programs benches
  local started=$SECONDS
  mkdir -p "$bench_folder"
  rm -f "$bench_folder"/*.json
  local -a peer=()
  [[ -x build/release/bin/onednn_peer ]] && peer=(--peer build/release/bin/onednn_peer)
  if ((layers == 0)); then
    one_bench experts experts "${peer[@]}" --seconds 0.1 --repetitions 3
    one_bench attention attention "${peer[@]}" --tokens 2048 --keys 8192 --seconds 0.1 \
      --repetitions 3
    one_bench plan plan --repetitions 3
    one_bench transport transport --sizes 64KiB,1MiB --seconds 0.2 --repetitions 3
    one_bench cluster cluster --model models/demo
  else
    one_bench experts experts --tiers all "${peer[@]}"
    one_bench attention attention "${peer[@]}" --repetitions 3
    one_bench plan plan
    one_bench transport transport --repetitions 3
    one_bench cluster cluster --model models/demo
    one_bench "olmoe-$layers" cluster --tokens 32 --repetitions 2 \
      --model "$(made_folder "olmoe-$layers" --like olmoe-1b-7b --layers "$layers")"
    one_bench experts-fp8 experts --dtype fp8 --tiers all --rows 1,8
    one_bench load load --model "$(made_folder demo-50 --like demo --scale 50)"
  fi
  printf '\n'
  local -a flags=()
  ((update == 0)) || flags=(--update bench/README.md)
  python3 tools/bench_report.py "$bench_folder" "${flags[@]}"
  printf 'Measured in %d s.\n' $((SECONDS - started))
}
