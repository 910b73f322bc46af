#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks lock annotations: clang over the sources that see a lock, syntax only.

A source is checked when it, or a header of the project that it includes directly, names
base/mutex.h or one of its annotations. Tests are left out: the thread sanitizer runs those. Usage:
check_thread_safety.py CLANG_TREE, a tree that the preset clang configured.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

LOCKS = re.compile(r"moebius/base/mutex\.h|MOEBIUS_(?:GUARDED_BY|REQUIRES|EXCLUDES)|MutexLock")
INCLUDE = re.compile(r'(?m)^#include "([^"]+)"')


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def sees_lock(source, root):
    """True when the source or a header that it includes deals with locks."""
    text = read(source)
    return bool(LOCKS.search(text)) or any(
        LOCKS.search(read(os.path.join(root, header))) for header in INCLUDE.findall(text))


def commands(tree, root):
    """{source: syntax-only command line} of the sources that see a lock."""
    found = {}
    with open(os.path.join(tree, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            source = entry["file"]
            left_out = (os.path.join(tree, ""), os.path.join(root, "tests", ""))
            if source.startswith(left_out) or not sees_lock(source, root):
                continue
            words = shlex.split(entry["command"])
            compiler = next(i for i, word in enumerate(words) if "clang" in os.path.basename(word))
            words = words[compiler:]
            if "-o" in words:
                at = words.index("-o")
                del words[at:at + 2]
            found[source] = (words + ["-fsyntax-only", "-Wthread-safety",
                                      "-Werror=thread-safety"], entry["directory"])
    return found


def check(command):
    words, folder = command
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def main(arguments):
    tree = os.path.abspath(arguments[0])
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = commands(tree, root)
    faults = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for source, (code, text) in zip(found, pool.map(check, found.values())):
            if code != 0:
                faults += 1
                print(f"{os.path.relpath(source, root)}:\n{text}")
    print(f"check_thread_safety: {len(found)} sources with locks, {faults} faults")
    return 1 if faults or not found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
