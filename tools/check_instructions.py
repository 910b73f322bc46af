#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves that nothing but kernel tiers holds instructions beyond the x86-64 baseline.

A program that contains AVX in its start-up dies with SIGILL on older CPUs before it can say why.
Three rules, for the objects of a built release tree:
  1. only files below moebius/kernels are compiled with a -m flag that raises the instruction set;
  2. an object compiled without such a flag has no AVX, AVX-512 or AMX instruction;
  3. an object with such a flag shares no inline function with any other object: the linker keeps
     one copy of a weak function, and it may be the one that needs the newer CPU.

Usage: check_instructions.py TREE
"""
import json
import os
import re
import subprocess
import sys

RAISING_FLAG = re.compile(r"(?:^|\s)-m(?:avx|fma|f16c|bmi|amx|sse[34]|ssse3|arch=|popcnt|movbe)\S*")
TIER_FOLDER = "moebius/kernels/"
# VEX and EVEX mnemonics begin with v (verr and verw do not count), mask registers' with k, AMX's
# with tile or td. A register of 256 or 512 bits decides too.
BEYOND = re.compile(r"\t(?:(?!verr|verw)v[a-z]\w+|k(?:mov|or|and|xor|not|unpck|shift|test|add)\w*|"
                    r"tile\w+|td[a-z]\w+ps\w*|pdep|pext|andn|bextr|[ls]arx|shlx|rorx|mulx)\b|"
                    r"%[yz]mm\d")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
# Names that the compiler makes for one object and that the linker does not merge by chance.
HARMLESS_WEAK = re.compile(r"^(?:DW\.ref\.|__gxx_personality|_ZTI|_ZTS|_ZTV)")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compiled_objects(tree):
    """(source, object, raises the instruction set) of what the tree's compile commands made."""
    with open(os.path.join(tree, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            command = entry.get("command") or " ".join(entry["arguments"])
            match = re.search(r"\s-o (\S+\.o)\b", command)
            path = os.path.join(entry["directory"], match.group(1)) if match else ""
            if os.path.exists(path):
                yield entry["file"], path, bool(RAISING_FLAG.search(command))


def functions_beyond(disassembly):
    """{function: first instruction beyond the baseline} of objdump's text."""
    found, function = {}, ""
    for line in disassembly.split("\n"):
        match = FUNCTION.match(line)
        if match:
            function = match.group(1)
        elif BEYOND.search(line):
            found.setdefault(function, line.split("\t")[-1].strip())
    return found


def weak_functions(symbols):
    """Weak function names of `nm --defined-only`."""
    names = set()
    for line in symbols.split("\n"):
        fields = line.split(None, 2)
        if len(fields) == 3 and fields[1] == "W" and not HARMLESS_WEAK.match(fields[2]):
            names.add(fields[2])
    return names


def check_tree(tree, root):
    faults, objects = [], list(compiled_objects(tree))
    weak = {}
    for source, path, raised in objects:
        name = os.path.relpath(source, root)
        if raised and not name.startswith(TIER_FOLDER):
            faults.append(f"{name} is compiled for more than the baseline; only files of "
                          f"{TIER_FOLDER} may be")
        if not raised:
            text = output_of("objdump", "-d", "--no-show-raw-insn", path)
            for function, instruction in functions_beyond(text).items():
                faults.append(f"{name}: {function} has '{instruction}'")
        weak.setdefault(raised, []).append((name, weak_functions(output_of(
            "nm", "--defined-only", path))))
    for name, names in weak.get(True, []):
        for other, others in weak.get(True, []) + weak.get(False, []):
            shared = names & others
            if other != name and shared:
                faults.append(f"{name} shares {len(shared)} inline functions with {other}, for "
                              f"instance {min(shared)}: keep it in the tier's own namespace")
                break
    return faults, len(objects), len(weak.get(True, []))


def main(arguments):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    faults, count, tiers = check_tree(arguments[0], root)
    for fault in faults:
        print(fault)
    print(f"check_instructions: {count} objects, {tiers} of tiers, {len(faults)} faults")
    return 1 if faults or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
