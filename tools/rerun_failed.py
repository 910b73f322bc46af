#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs suites of a tree again, alone, that failed beside others by their own expectations.

Suites run in parallel on machines that do other work: a test may wait in vain for what a busy
machine has not done yet. Such a test is a fault of the test, is reported as UNSTEADY by
report_tests.py, and fails the run when it fails again. What a suite cannot get by being alone is
never run again: a crash, a sanitizer's report, a failed check of our own, a suite that did not end.
More than three failed suites are no accident and are not run again either.

Reads results/ctest.xml; writes results/again.xml, and keeps the first GoogleTest files in
results/first/.

Usage: rerun_failed.py TREE
"""
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

MAX_SUITES = 3
# How GoogleTest, unittest and our own checkers end when they ended by themselves.
ENDED = re.compile(r"^ *\d+ FAILED TESTS?$|^FAILED \(|: \d+ blocks, \d+ faults$", re.MULTILINE)
NEVER_AGAIN = re.compile(
    r"(Address|Thread|Leak|Memory|UndefinedBehavior)Sanitizer|runtime error:|check failed:"
    r"|terminate called|Segmentation fault|core dumped|dumped core")


def may_run_again(output):
    return bool(ENDED.search(output)) and not NEVER_AGAIN.search(output)


def failed_suites(path):
    """(name, output) of each suite that failed."""
    return [(case.get("name"), (case.findtext("system-out") or "") + (case.findtext("system-err") or ""))
            for case in ElementTree.parse(path).getroot().iter("testcase")
            if case.get("status") == "fail"]


def main(arguments):
    (tree,) = arguments
    results = os.path.join(tree, "results")
    failed = failed_suites(os.path.join(results, "ctest.xml"))
    if not 0 < len(failed) <= MAX_SUITES or not all(may_run_again(output) for _, output in failed):
        return 0
    names = [name for name, _ in failed]
    print("again, alone: " + ", ".join(names))
    os.makedirs(os.path.join(results, "first"), exist_ok=True)
    for name in names:
        path = os.path.join(results, f"{name}.xml")
        if os.path.exists(path):
            os.rename(path, os.path.join(results, "first", f"{name}.xml"))
    expression = "^(" + "|".join(re.escape(name) for name in names) + ")$"
    subprocess.run(["ctest", "--test-dir", tree, "-R", expression, "-j", "1", "--output-on-failure",
                    "--output-junit", "results/again.xml"], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
