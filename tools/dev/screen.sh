# SPDX-License-Identifier: Apache-2.0
# What ./dev shows: numbered steps, progress, and what to do when a step fails.
# shellcheck shell=bash

readonly bar_width=20
readonly seconds_between_lines=5
step_index=0
step_count=0
step_name=""
step_text=""

# The width of the text before the bar, for the terminal at hand.
text_width() {
  local columns=120
  if [[ -t 1 ]]; then columns=$(stty size 2>/dev/null </dev/tty | cut -d' ' -f2 || true); fi
  [[ ${columns:-0} -gt 0 ]] || columns=100
  local width=$((columns - 64))
  ((width > 54)) && width=54
  ((width < 12)) && width=12
  printf '%d' "$width"
}

format_seconds() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# begin_step NAME TEXT: the next numbered step.
begin_step() {
  step_index=$((step_index + 1))
  step_name=$1
  step_text=$2
  step_started=$SECONDS
  step_width=$(text_width)
}

# print_step TAIL: the step's line with what stands behind its text.
print_step() {
  printf ' %d/%d %-11s %-*.*s %s\n' "$step_index" "$step_count" "$step_name" \
    "$step_width" "$step_width" "$step_text" "$1"
}

# print_heading TEXT: the step's line where its text is a whole sentence and nothing stands behind it.
print_heading() { printf ' %d/%d %-11s %s\n' "$step_index" "$step_count" "$step_name" "$1"; }

# draw_bar DONE TOTAL: twenty cells, the last one to an eighth.
draw_bar() {
  local eighths=$(($2 > 0 ? $1 * bar_width * 8 / $2 : 0))
  local full=$((eighths / 8)) part=$((eighths % 8)) bar="" index
  local -a parts=("" ▏ ▎ ▍ ▌ ▋ ▊ ▉)
  for ((index = 0; index < full; ++index)); do bar+=█; done
  if ((part > 0)); then bar+=${parts[part]} && full=$((full + 1)); fi
  for ((index = full; index < bar_width; ++index)); do bar+=·; done
  printf '%s' "$bar"
}

# show_progress DONE TOTAL FIGURES: redraws the line on a terminal, else prints one every 5 s.
show_progress() {
  local elapsed=$((SECONDS - step_started)) left=""
  if (($1 > 0 && $1 < $2 && elapsed >= 3)); then
    left="about $(format_seconds $((elapsed * ($2 - $1) / $1))) left"
  fi
  if [[ -t 1 ]]; then
    printf '\r%s\033[K' "$(print_step "$(draw_bar "$1" "$2") $3  $left")"
  elif ((SECONDS - last_line >= seconds_between_lines)); then
    last_line=$SECONDS
    print_step "$3  $left"
  fi
}

# follow_progress LOG PATTERN: copies standard input to LOG and shows the progress of its lines;
# PATTERN's two groups are what is done and the total.
follow_progress() {
  local log=$1 pattern=$2 line state done=0 total=0
  last_line=$SECONDS
  while true; do
    state=0
    IFS= read -r -t 1 line || state=$?
    if ((state == 0)); then
      printf '%s\n' "$line" >>"$log"
      if [[ $line =~ $pattern ]]; then
        done=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]}
      fi
    elif ((state <= 128)); then
      [[ -n ${line:-} ]] && printf '%s\n' "$line" >>"$log"
      break
    fi
    if ((total > 0)); then show_progress "$done" "$total" "$done/$total"; fi
  done
}

# end_step FIGURES: the step's last line.
end_step() {
  if [[ -t 1 ]]; then printf '\r\033[K'; fi
  print_step "$(draw_bar 1 1) $1  $(format_seconds $((SECONDS - step_started)))"
}

# fail_step LOG SENTENCE: shows the end of the log and what to do, and ends ./dev.
fail_step() {
  if [[ -t 1 ]]; then printf '\r\033[K'; fi
  print_step "failed"
  if [[ -s $1 ]]; then
    printf -- '--- end of %s ---\n' "$1" >&2
    grep -v '^\[[0-9]*/[0-9]*\] \(Building\|Linking\)' "$1" | tail -n 30 >&2 || true
    printf -- '---\n' >&2
  fi
  printf '%s\n' "$2" >&2
  exit 1
}

# One ./dev at a time works in a checkout: two would write the same files. A ./dev that a test of
# ./dev starts works under the lock of the one above it.
hold_lock() {
  [[ -z ${MOEBIUS_DEV_LOCK:-} ]] || return 0
  export MOEBIUS_DEV_LOCK=$$
  mkdir -p "$root/build/logs"
  exec {lock_file}>>"$root/build/.lock"
  if ! flock -n "$lock_file"; then
    echo "Another ./dev is at work in this checkout; waiting for it to end." >&2
    flock "$lock_file"
  fi
}
