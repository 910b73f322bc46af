#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What telemetry costs a decode step, in instructions, on machines whose counters nobody may read.

Usage: bench/telemetry/instructions.py [--tier TIER] [--steps N] [--json-out FILE]. Needs valgrind and the
benchmarks (./dev bench --micro builds them). The demo model decodes for one caller, in one process and on
one thread: the smallest step, whose share of telemetry is the largest. valgrind's callgrind counts
every instruction; two runs of different length, one less the other, leave the steps alone.

  counting  in every step whatever the flags say: demand of experts, its conservation, phases' clocks, the
            lead's counters and histograms, the request's log
  tracing   a traced call's spans, made, written as OTLP JSON and posted
  scraping  one scrape, by detail

`default` is counting, a trace of one call of a hundred and a scrape of detail auto every 15 s;
`full` traces every call and scrapes with layer-expert. How many steps there are in 15 s, and a step's
CPU time, come from a run outside of valgrind with the host's best kernels.
"""
import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import trace_collector  # noqa: E402

PROGRAM = os.path.join(ROOT, "build", "release", "bin", "decode_steps")
MODEL = os.path.join(ROOT, "models", "demo")
SHORT_STEPS = 8
NATIVE_STEPS = 400
SCRAPES = 20
SCRAPE_SECONDS = 15
SAMPLE_RATIO = 0.01
TARGET = 0.01
# Functions with all that they call, and the phases' timer, which is in line wherever a phase ends.
COUNTING = re.compile(r"phase_timer\.h(?=:)|moebius::(?:StepLoad::\w+|ExpertLoad::Add|LeadMeter::On\w+|"
                      r"RequestLog::On\w+)(?=\(.*\[)")


def callgrind(folder, tier, steps, detail="off", scrapes=0, url="-"):
    """All instructions of a run, and those of COUNTING."""
    out = os.path.join(folder, "callgrind.out")
    subprocess.run(["valgrind", "--tool=callgrind", "--error-exitcode=9", f"--callgrind-out-file={out}",
                    PROGRAM, MODEL, tier, str(steps), detail, str(scrapes), url],
                   check=True, capture_output=True, text=True)
    text = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--auto=no",
                           "--threshold=100", "--show-percs=no", out], check=True, capture_output=True, text=True).stdout
    total, counting = None, {}
    for line in text.splitlines():
        found = re.match(r"\s*([\d,]+)\s+(.*)$", line)
        if not found:
            continue
        count, rest = int(found.group(1).replace(",", "")), found.group(2)
        if rest.startswith("PROGRAM TOTALS"):
            total = count
        name = COUNTING.search(rest)
        if name:
            counting[name.group(0)] = counting.get(name.group(0), 0) + count
    if total is None:
        sys.exit("callgrind_annotate says no total:\n" + text[:2000])
    return total, counting


def native(steps):
    """Tier and CPU seconds of a step."""
    seconds = []
    for count in (steps, 2 * steps):
        answer = json.loads(subprocess.run([PROGRAM, MODEL, "best", str(count), "off", "0", "-"],
                                           check=True, capture_output=True, text=True).stdout)
        seconds.append(answer["cpu_seconds"])
    return answer["tier"], (seconds[1] - seconds[0]) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", default="avx2", help="valgrind knows none above avx2")
    parser.add_argument("--steps", type=int, default=32, help="between the two lengths")
    parser.add_argument("--json-out", metavar="FILE")
    flags = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("not measured: no valgrind here (apt-get install valgrind)")
        return 0
    if not os.path.exists(PROGRAM):
        sys.exit("no decode_steps; ./dev bench --micro builds it")

    steps = flags.steps
    with (tempfile.TemporaryDirectory() as folder,
          contextlib.closing(trace_collector.Collector()) as collector):
        short, short_counting = callgrind(folder, flags.tier, SHORT_STEPS)
        long, long_counting = callgrind(folder, flags.tier, SHORT_STEPS + steps)
        traced, spans = [], [0]
        for count in (SHORT_STEPS, SHORT_STEPS + steps):
            traced.append(callgrind(folder, flags.tier, count, url=collector.url())[0])
            spans.append(len(collector.spans()) - sum(spans))
        scrape = {detail: (callgrind(folder, flags.tier, SHORT_STEPS, detail, SCRAPES)[0] -
                           callgrind(folder, flags.tier, SHORT_STEPS, detail, 1)[0]) / (SCRAPES - 1)
                  for detail in ("off", "auto", "layer-expert")}
    if spans[1] == 0 or (spans[2] - spans[1]) % steps != 0:
        sys.exit(f"spans were lost: {spans[1]} of the short run, {spans[2]} of the long one")
    tier, step_seconds = native(NATIVE_STEPS)
    step = (long - short) / steps
    parts = {name: (count - short_counting.get(name, 0)) / steps
             for name, count in sorted(long_counting.items())
             if count != short_counting.get(name, 0)}
    counting = sum(parts.values())
    tracing = (traced[1] - traced[0]) / steps - step
    steps_of_scrape = SCRAPE_SECONDS / step_seconds
    cost = {
        "off": counting,
        "default": counting + SAMPLE_RATIO * tracing + scrape["auto"] / steps_of_scrape,
        "full": counting + tracing + scrape["layer-expert"] / steps_of_scrape,
    }
    print(f"a step, {flags.tier}, without traces and scrapes  {step:12,.0f} instructions")
    for name, count in parts.items():
        print(f"  {name:<46}{count:12,.0f}")
    label = f"a traced step's {(spans[2] - spans[1]) // steps} spans"
    print(f"{label:<48}{tracing:12,.0f}")
    for detail, count in scrape.items():
        print(f"a scrape, {detail:<38}{count:12,.0f}")
    print(f"{tier}: {step_seconds * 1e6:,.0f} µs of CPU a step, {steps_of_scrape:,.0f} steps to a scrape")
    results = []
    for name, count in cost.items():
        bare = step - counting
        share = count / bare
        print(f"telemetry, {name:<10}{count:12,.0f} instructions a step, {share:.3%} of the rest; "
              f"{count / step_seconds / 1e9 / TARGET:.2f} instructions a ns are 1 % of {tier}'s CPU time")
        results.append({"name": f"telemetry.{name}", "unit": "instructions/step", "value": count,
                        "spread": None, "baseline": "the rest of a step", "baseline_value": bare,
                        "ratio": TARGET / share, "target": 1 if name == "default" else None})
    if flags.json_out:
        with open(flags.json_out, "w", encoding="utf-8") as file:
            json.dump({"tier": flags.tier, "threads": 1, "results": results}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
