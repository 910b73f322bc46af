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

run_lint() {
  local -a files
  step_count=1
  [[ -n $(missing_packages build test lint) ]] && install_packages build test lint
  python3 tools/check_layers.py
  if [[ ${1:-} == --all ]]; then
    mapfile -t files < <(cpp_files | grep '\.cc$')
  else
    mapfile -t files < <(changed_cpp_files | grep '\.cc$')
  fi
  if ((${#files[@]} == 0)); then
    echo "No C++ source changed."
    return
  fi
  [[ -f build/clang/compile_commands.json ]] || configure_tree clang
  local jobs
  jobs=$(nproc)
  printf '%s\n' "${files[@]}" |
    xargs -P "$jobs" -n 1 clang-tidy-16 --quiet -p build/clang --warnings-as-errors='*'
}
