# SPDX-License-Identifier: Apache-2.0
# Debian packages: tools/packages.txt says which, this installs what is missing.
# shellcheck shell=bash

# listed_packages [GROUP…]: the packages of the groups, or all that are installed.
listed_packages() {
  local groups=" $* " name group
  while read -r name group; do
    [[ -z $name || $name == \#* ]] && continue
    [[ $groups == *" $group "* || ($# -eq 0 && $group != unpack) ]] && printf '%s\n' "$name"
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

# not_unpacked: the packages of the group "unpack" that are not in build/tools.
not_unpacked() {
  local name
  for name in $(listed_packages unpack); do
    if [[ ! -d $root/build/tools/$name ]]; then printf '%s\n' "$name"; fi
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
  missing=" $({ missing_packages && not_unpacked; } | tr '\n' ' ') "
  while read -r name group; do
    [[ -z $name || $name == \#* ]] && continue
    local state=installed
    [[ $missing == *" $name "* ]] && state=missing
    printf '%-22s %-7s %s\n' "$name" "$group" "$state"
  done <"$root/tools/packages.txt"
}

# run_apt ARGUMENTS…: apt-get as root or through sudo, its messages and status lines on standard
# output (sudo passes no other descriptor on).
run_apt() {
  local -a as_root=()
  if ((EUID != 0)); then as_root=(sudo); fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y \
    -o APT::Status-Fd=1 -o DPkg::Lock::Timeout=300 "$@" 2>&1 </dev/null
}

# install_packages GROUP…: the step "packages".
install_packages() {
  local log=build/logs/packages.log
  local -a missing
  local listed
  listed=$(listed_packages "$@" | wc -l)
  mapfile -t missing < <(missing_packages "$@")
  begin_step packages "${#missing[@]} of $listed missing (./dev packages lists them)"
  if [[ $# -eq 0 || " $* " == *" test "* ]]; then unpack_packages "$log"; fi
  if ((${#missing[@]} == 0)); then
    end_step ""
    return
  fi
  : >"$log"
  if ((EUID != 0)) && ! type -P sudo >/dev/null; then
    fail_step "$log" "These packages are missing: ${missing[*]}
Run ./dev as root, or install them as root with: apt-get install --no-install-recommends ${missing[*]}"
  fi
  if ! run_apt update | follow_apt "$log" 0; then
    fail_step "$log" "The package lists could not be read. Is there a network, and is /etc/apt set up?"
  fi
  if ! run_apt install --no-install-recommends "${missing[@]}" | follow_apt "$log" 10; then
    fail_step "$log" "apt-get could not install: ${missing[*]}
Repair what the log names (often: apt-get -f install), then run this again."
  fi
  end_step "$(sed -n 's/^Need to get \([0-9.,]* [kM]B\).*/\1/p' "$log" | tail -n 1)"
}

# unpack_packages LOG: the programs of the group "unpack", whose installation would start a service.
unpack_packages() {
  local log=$1 name folder
  for name in $(not_unpacked); do
    folder=$root/build/tools/.$name
    rm -rf "$folder"
    mkdir -p "$folder/files"
    # A fresh machine has no lists yet.
    (cd "$folder" && { apt-get download "$name" || { run_apt update && apt-get download "$name"; }; } &&
      dpkg -x "$name"_*.deb files) >>"$log" 2>&1 ||
      fail_step "$log" "The package $name could not be fetched. Is there a network, and is /etc/apt set up?"
    mv "$folder/files" "$root/build/tools/$name"
    rm -rf "$folder"
  done
}

# follow_apt LOG BEGIN: shows status lines, "dlstatus:N:PERCENT:…" and "pmstatus:PACKAGE:PERCENT:…",
# and copies all others to LOG. Of 100 points the lists get 10, downloads 40, installation 50.
follow_apt() {
  local log=$1 begin=$2 points=0 what="reading lists" line fields percent state
  last_line=$SECONDS
  while true; do
    state=0
    IFS= read -r -t 1 line || state=$?
    if ((state == 0)); then
      IFS=: read -r -a fields <<<"$line"
      percent=${fields[2]:-0}
      percent=${percent%%.*}
      case $line in
        dlstatus:*)
          if ((begin > 0)); then
            points=$((begin + percent * 4 / 10)) what=downloading
          else
            points=$((percent / 10))
          fi
          ;;
        pmstatus:*) points=$((50 + percent / 2)) what=installing ;;
        *) printf '%s\n' "$line" >>"$log" ;;
      esac
    elif ((state <= 128)); then
      break
    fi
    show_progress "$points" 100 "$what"
  done
}
