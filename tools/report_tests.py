#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up the test results of build trees: failures, skips with reasons, and the closing line.

Each tree has results/ctest.xml (ctest --output-junit), and results/NAME.xml from each GoogleTest
binary. A ctest entry with a GoogleTest file counts as its cases, any other as one test. A skip
whose reason is not in the list of expected skips is a failure. A suite that failed and passed when
it ran again alone (rerun_failed.py) counts as passed, and is named as UNSTEADY with what it said.

Usage: report_tests.py --expected-skips FILE [--phase NAME=passed|failed …] TREE…
The last line is `N passed, N failed, N skipped`; exit code 1 when something failed or nothing ran.
"""
import argparse
import ctypes
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

REASON = re.compile(r"MOEBIUS_SKIP: *([^\n]*)")
# In a tree: the virtual environments of the Python client's tests, and of what checks the deployment.
PYTHON_CLIENT_FOLDER = "python_client"
OPERATION_TOOLS_FOLDER = "operation_tools"


class Outcome:
    """One test: where it ran, its name, passed, failed or skipped, and why; or unsteady, which is a
    remark about a suite and counts nowhere."""

    def __init__(self, tree, name, state, text=""):
        self.tree, self.name, self.state, self.text = tree, name, state, text


def cpu_flags(path="/proc/cpuinfo"):
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith("flags"):
                    return set(line.split(":", 1)[1].split())
    except OSError:
        pass
    return set()


def has_ipv6_address(prefix, path="/proc/net/if_inet6"):
    """Whether an interface has an IPv6 address whose hexadecimal digits begin with prefix."""
    try:
        with open(path, encoding="utf-8") as file:
            return any(line.startswith(prefix) for line in file)
    except OSError:
        return False


def package_index_answers(python):
    """Whether the pip of this interpreter finds a package, wherever it is told to look."""
    try:
        return subprocess.run([python, "-m", "pip", "index", "versions", "--retries", "0",
                               "--timeout", "10", "grpcio"], capture_output=True, timeout=60,
                              check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def sandbox_works():
    """Whether this host lets a process have namespaces of its own (bubblewrap)."""
    try:
        return subprocess.run(["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/",
                               "--proc", "/proc", "--cap-drop", "ALL", "true"],
                              capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def tile_state_is_granted():
    """Whether Linux lets a process use the tiles of AMX: arch_prctl(ARCH_REQ_XCOMP_PERM)."""
    return ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0


def condition_holds(condition, tree, flags):
    kind, _, value = condition.partition(":")
    if kind == "no-cpu":
        return any(flag not in flags for flag in value.split(","))
    if kind == "no-program":
        return shutil.which(value) is None
    if kind == "no-ipv6":
        return not has_ipv6_address(value)
    if kind == "tree":
        return os.path.basename(tree) in value.split(",")
    if condition == "not-root":
        return os.geteuid() != 0
    if condition == "no-package-index":
        pythons = [os.path.join(tree, folder, "bin", "python")
                   for folder in (PYTHON_CLIENT_FOLDER, OPERATION_TOOLS_FOLDER)]
        present = [python for python in pythons if os.path.exists(python)]
        return bool(present) and not package_index_answers(present[0])
    if condition == "no-sandbox":
        return not sandbox_works()
    if condition == "no-tile-state":
        return not tile_state_is_granted()
    raise ValueError(f"unknown condition '{condition}' in the list of expected skips")


def load_expected_skips(path):
    """The list as (condition, compiled expression)."""
    skips = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if line and not line.startswith("#"):
                condition, expression = line.split(None, 1)
                skips.append((condition, re.compile(expression)))
    return skips


def is_expected(outcome, skips, flags):
    return any(expression.fullmatch(outcome.text) and condition_holds(condition, outcome.tree, flags)
               for condition, expression in skips)


def reason_of(text):
    match = REASON.search(text or "")
    return match.group(1).strip() if match else ""


def gtest_outcomes(tree, path):
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.get("status") == "notrun":
            continue
        name = f"{case.get('classname')}.{case.get('name')}"
        failures = case.findall("failure")
        skipped = case.find("skipped")
        if failures:
            yield Outcome(tree, name, "failed", failures[0].get("message", "").strip())
        elif skipped is not None:
            text = skipped.get("message", "") + "\n" + (skipped.text or "")
            yield Outcome(tree, name, "skipped", reason_of(text))
        else:
            yield Outcome(tree, name, "passed")


def again_cases(results):
    """What ran again, by name: entries of ctest."""
    path = os.path.join(results, "again.xml")
    if not os.path.exists(path):
        return {}
    return {case.get("name"): case for case in ElementTree.parse(path).getroot().iter("testcase")}


def first_failure(results, case):
    """What a suite that ran again had said at first."""
    path = os.path.join(results, "first", f"{case.get('name')}.xml")
    if os.path.exists(path):
        failed = [c for c in gtest_outcomes("", path) if c.state == "failed"]
        if failed:
            return "\n".join(f"{c.name}\n{c.text}" for c in failed)
    return "\n".join((case.findtext("system-out") or "").strip().split("\n")[-15:])


def read_tree(tree):
    """All outcomes of one tree. A tree without results is itself a failure."""
    results = os.path.join(tree, "results")
    summary = os.path.join(results, "ctest.xml")
    if not os.path.exists(summary):
        return [Outcome(tree, "ctest", "failed", f"{summary} does not exist: the tests did not run")]
    outcomes = []
    again = again_cases(results)
    for case in ElementTree.parse(summary).getroot().iter("testcase"):
        name = case.get("name")
        if name in again:
            if again[name].get("status") == "run":
                outcomes.append(Outcome(tree, name, "unsteady", first_failure(results, case)))
            case = again[name]
        status = case.get("status")
        output = (case.findtext("system-out") or "") + (case.findtext("system-err") or "")
        cases = []
        path = os.path.join(results, f"{name}.xml")
        if os.path.exists(path):
            cases = list(gtest_outcomes(tree, path))
        if status == "run" and cases:
            outcomes += cases
        elif status == "run":
            outcomes.append(Outcome(tree, name, "passed"))
        elif status in ("notrun", "disabled"):
            skipped = case.find("skipped")
            reason = reason_of(output) or (skipped.get("message", "") if skipped is not None else "")
            outcomes.append(Outcome(tree, name, "skipped", reason))
        else:
            failed = [c for c in cases if c.state == "failed"]
            # A crash leaves no failed case: then the binary itself is the failure.
            outcomes += cases if failed else cases + [
                Outcome(tree, name, "failed", "\n".join(output.strip().split("\n")[-15:]))]
    return outcomes


def report(trees, phases, skips, flags, out):
    outcomes = [Outcome("", f"phase {name}", state) for name, state in phases]
    for tree in trees:
        outcomes += read_tree(tree)
    for outcome in outcomes:
        if outcome.state == "skipped" and not is_expected(outcome, skips, flags):
            outcome.state = "failed"
            outcome.text = f"skipped for a reason that is not expected: '{outcome.text}'"
    reasons = {}
    for outcome in outcomes:
        if outcome.state == "skipped":
            reasons.setdefault(outcome.text, []).append(outcome)
    for reason, skipped in sorted(reasons.items()):
        print(f"skipped {len(skipped):4}: {reason}", file=out)
    for outcome in outcomes:
        if outcome.state in ("failed", "unsteady"):
            print(f"{outcome.state.upper()} {outcome.tree} {outcome.name}", file=out)
            for line in outcome.text.split("\n")[:15]:
                print(f"       {line}", file=out)
    counts = {state: sum(o.state == state for o in outcomes)
              for state in ("passed", "failed", "skipped")}
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped",
          file=out)
    return 0 if counts["failed"] == 0 and counts["passed"] > 0 else 1


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--expected-skips", required=True)
    parser.add_argument("--phase", action="append", default=[])
    parser.add_argument("trees", nargs="*")
    options = parser.parse_args(arguments)
    phases = [phase.rsplit("=", 1) for phase in options.phase]
    return report(options.trees, phases, load_expected_skips(options.expected_skips), cpu_flags(),
                  sys.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
