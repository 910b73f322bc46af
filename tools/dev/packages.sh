# SPDX-License-Identifier: Apache-2.0
# Debian packages: tools/packages.txt says which, this installs what is missing.
# shellcheck shell=bash

# listed_packages [GROUP…]: the packages of the groups, or all.
listed_packages() {
  local groups=" $* " name group
  while read -r name group; do
    [[ -z $name || $name == \#* ]] && continue
    [[ $# -eq 0 || $groups == *" $group "* ]] && printf '%s\n' "$name"
  done <"$root/tools/packages.txt"
  return 0
}

# missing_packages [GROUP…]
missing_packages() {
  local name
  for name in $(listed_packages "$@"); do
    if [[ $(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null) != installed ]]; then
      printf '%s\n' "$name"
    fi
  done
}

list_packages() {
  local missing name group
  if [[ ${1:-} == --install ]]; then
    step_count=1
    hold_lock
    install_packages
    return
  fi
  missing=" $(missing_packages | tr '\n' ' ') "
  while read -r name group; do
    [[ -z $name || $name == \#* ]] && continue
    local state=installed
    [[ $missing == *" $name "* ]] && state=missing
    printf '%-22s %-7s %s\n' "$name" "$group" "$state"
  done <"$root/tools/packages.txt"
}

# run_apt LOG ARGUMENTS…: apt-get as root or through sudo, its progress on descriptor 3.
run_apt() {
  local log=$1
  shift
  local -a as_root=()
  if ((EUID != 0)); then as_root=(sudo --preserve-env=DEBIAN_FRONTEND); fi
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get -y -o DPkg::Lock::Timeout=300 "$@" \
    >>"$log" 2>&1 </dev/null
}

# install_packages GROUP…: the step "packages".
install_packages() {
  local log=build/logs/packages.log
  local -a missing
  local listed
  listed=$(listed_packages "$@" | wc -l)
  mapfile -t missing < <(missing_packages "$@")
  begin_step packages "${#missing[@]} of $listed missing (./dev packages lists them)"
  if ((${#missing[@]} == 0)); then
    end_step ""
    return
  fi
  : >"$log"
  if ((EUID != 0)) && ! type -P sudo >/dev/null; then
    fail_step "$log" "These packages are missing: ${missing[*]}
Run ./dev as root, or install them as root with: apt-get install --no-install-recommends ${missing[*]}"
  fi
  if ! run_apt "$log" update; then
    fail_step "$log" "The package lists could not be read. Is there a network, and is /etc/apt set up?"
  fi
  # Two hundred points: a hundred for the downloads, a hundred for unpacking and setting up.
  # shellcheck disable=SC2094
  if ! run_apt "$log" -o APT::Status-Fd=3 install --no-install-recommends "${missing[@]}" \
    3> >(follow_apt); then
    fail_step "$log" "apt-get could not install: ${missing[*]}
Repair what the log names (often: apt-get -f install), then run this again."
  fi
  end_step "$(sed -n 's/^Need to get \([0-9.,]* [kM]B\).*/\1/p' "$log" | tail -n 1)"
}

# Shows apt-get's status lines, "dlstatus:N:PERCENT:…" then "pmstatus:PACKAGE:PERCENT:…".
follow_apt() {
  local kind percent rest
  last_line=$SECONDS
  while IFS=: read -r kind rest percent _; do
    percent=${percent%%.*}
    case $kind in
      dlstatus) show_progress "${percent:-0}" 200 "downloading" ;;
      pmstatus) show_progress $((100 + ${percent:-0})) 200 "installing" ;;
    esac
  done
}
