# SPDX-License-Identifier: Apache-2.0
# Formatting and lint.
# shellcheck shell=bash

# Every C++ file of the project.
cpp_files() {
  git ls-files -co --exclude-standard -- '*.h' '*.cc' '*.cu'
}

# changed_cpp_files: those that differ from origin/main, or from the commit before when there is no
# such branch or nothing is ahead of it, uncommitted ones included.
changed_cpp_files() {
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null || true)
  if [[ -z $base || $base == $(git rev-parse HEAD) ]]; then
    base=$(git rev-parse --verify --quiet HEAD~1 || git hash-object -t tree /dev/null)
  fi
  {
    git diff --name-only --diff-filter=d "$base" -- '*.cc' '*.h'
    git ls-files --others --exclude-standard -- '*.cc' '*.h'
  } | sort -u
}

run_format() {
  local -a files
  step_count=1
  [[ -n $(missing_packages lint) ]] && install_packages lint
  mapfile -t files < <(cpp_files)
  if [[ ${1:-} == --check ]]; then
    if ! clang-format-16 --dry-run --Werror "${files[@]}" 2>build/format.log; then
      grep -o '^[^:]*:[0-9]*' build/format.log | cut -d: -f1 | sort -u >&2
      echo "These files are not formatted; ./dev format repairs them." >&2
      return 1
    fi
    echo "${#files[@]} files are formatted."
  else
    clang-format-16 -i "${files[@]}"
    echo "${#files[@]} files formatted."
  fi
}

# run_lint [--all] [--deep]: the product's sources that changed; --all takes every source, tests and
# benchmarks too, and --deep adds the static analyzer.
run_lint() {
  local -a files=() checks=()
  local option all="" jobs
  for option in "$@"; do
    case $option in
      --all) all=yes ;;
      --deep) checks+=(--checks=clang-analyzer-core*,clang-analyzer-cplusplus*) ;;
      *)
        echo "dev lint: unknown option '$option'; it takes --all and --deep" >&2
        exit 2
        ;;
    esac
  done
  step_count=1
  [[ -z $(missing_packages build test lint) ]] || install_packages build test lint
  python3 tools/check_layers.py
  if [[ -n $all ]]; then
    mapfile -t files < <(cpp_files | grep '\.cc$')
  else
    mapfile -t files < <(changed_cpp_files | grep '\.cc$' | grep -vE '^(tests|bench)/')
  fi
  echo "lint: ${#files[@]} sources"
  ((${#files[@]} > 0)) || return 0
  mkdir -p build/logs
  configure_tree clang
  jobs=$(nproc)
  # clang-tidy counts the warnings that it does not show on standard error.
  printf '%s\n' "${files[@]}" |
    xargs -P "$jobs" -n 1 clang-tidy-16 --quiet -p build/clang --warnings-as-errors='*' \
      "${checks[@]}" 2>build/logs/lint.log
}
