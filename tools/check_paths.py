#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that no file of the project names a folder, host or document outside of it.

A clone must mean the same on every machine. Usage: check_paths.py [ROOT].
"""
import os
import re
import subprocess
import sys

# Pieces are joined so that this file passes its own check.
FORBIDDEN = [
    (re.compile(r"\.\./" + "shared"), "a folder beside the checkout"),
    (re.compile(r"(?<![\w./-])/(?:work|home|root|Users)/[\w.]"), "a folder of one machine"),
    (re.compile(r"\b(?:DESIGN|NUMERICS|STYLE|ROUTING|PROTOCOL|PERFORMANCE|OPERATIONS|FAULTS|"
                r"KNOWN_FAULTS|SCREENS|BUILD|CONTEXT_PARALLEL)\.md\b"),
     "a document that a clone does not have"),
    (re.compile(r"\b(?:deb|security|snapshot)\.debian\.org\b|\bpypi\.(?:org|python)"),
     "a package host"),
]
MAX_BYTES = 1 << 20


def check_text(path, text):
    """Faults of one file as (line number, sentence)."""
    for number, line in enumerate(text.split("\n"), 1):
        for expression, what in FORBIDDEN:
            match = expression.search(line)
            if match:
                yield number, f"'{match.group(0)}' names {what}"


def project_files(root):
    """Files that belong to the project: what git would keep, or all but build without git."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root,
                            check=False, capture_output=True)
    if listed.returncode == 0:
        return sorted(path for path in listed.stdout.decode().split("\0") if path)
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in (".git", "build", "__pycache__")]
        paths += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(paths)


def check_tree(root):
    faults, count = [], 0
    for path in project_files(root):
        full = os.path.join(root, path)
        if not os.path.isfile(full) or os.path.getsize(full) > MAX_BYTES:
            continue
        with open(full, "rb") as file:
            data = file.read()
        if b"\0" in data:
            continue
        count += 1
        text = data.decode("utf-8", errors="replace")
        faults += [f"{path}:{number}: {fault}" for number, fault in check_text(path, text)]
    return faults, count


def main(arguments):
    root = arguments[0] if arguments else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    faults, count = check_tree(root)
    for fault in faults:
        print(fault)
    print(f"check_paths: {count} files, {len(faults)} faults")
    return 1 if faults or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
