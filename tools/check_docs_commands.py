#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every fenced command of README.md and docs, and compares what the text says they print.

A block fenced as `bash` is run by `bash -euo pipefail` in the project's root, all blocks of a file
in their order. A block fenced as `text` that follows it, with nothing but blank lines between, is
what it prints on standard output and standard error together. In it

    …           inside a line stands for any text, none included;
    a line … alone  stands for any number of lines;
    digits      are compared as they are: put … where a figure is the machine's.

The commands of SURROUNDING start this check themselves, so it leaves their blocks out. Whoever ran
one compares what it printed: --transcript COMMAND=FILE looks at the blocks of that command alone.
A block that must not succeed says so: ```bash exit=2.

Usage: check_docs_commands.py [--transcript COMMAND=FILE] [FILE.md …]
"""
import argparse
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SURROUNDING = ("./dev test", ".ci/run")
TIMEOUT_SECONDS = 600
FENCE = re.compile(r"^(```+)(.*)$")


class Block:
    """A fenced block: its language, the words behind it, where it starts, its lines."""

    def __init__(self, info, line):
        words = info.split()
        self.language = words[0] if words else ""
        self.options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        self.line = line
        self.lines = []
        self.output = None


def read_blocks(text):
    """The bash blocks of a document, each with its expected output where one follows."""
    blocks, current, fence, last = [], None, "", None
    for number, line in enumerate(text.split("\n"), 1):
        match = FENCE.match(line)
        if current is None and match:
            fence, current = match.group(1), Block(match.group(2), number)
        elif current is not None and line.strip() == fence:
            if current.language == "bash":
                blocks.append(current)
                last = current
            elif current.language == "text" and last is not None:
                last.output = "\n".join(current.lines)
                last = None
            else:
                last = None
            current = None
        elif current is not None:
            current.lines.append(line)
        elif line.strip():
            last = None
    if current is not None:
        raise ValueError(f"the block of line {current.line} has no end")
    return blocks


def strip_screen(text):
    """What a reader sees: no colours, and of a redrawn line its last state."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return "\n".join(line.split("\r")[-1].rstrip() for line in text.split("\n")).strip("\n")


def line_matches(expected, actual):
    pattern = ".*".join(re.escape(piece) for piece in expected.rstrip().split("…"))
    return re.fullmatch(pattern, actual.rstrip()) is not None


def first_difference(expected, actual):
    """None when the output is the expected one, else the expected line that found no match."""
    wanted, seen = expected.strip("\n").split("\n"), strip_screen(actual).split("\n")
    # reached[i]: the first i expected lines can match the lines seen so far.
    reached = {0}
    furthest = 0

    def skip_gaps(states):
        states = set(states)
        for index in sorted(states):
            while index < len(wanted) and wanted[index].strip() == "…":
                index += 1
                states.add(index)
        return states

    reached = skip_gaps(reached)
    for line in seen:
        following = set()
        for index in reached:
            if index < len(wanted) and line_matches(wanted[index], line):
                following.add(index + 1)
            if index > 0 and wanted[index - 1].strip() == "…":
                following.add(index)
        reached = skip_gaps(following)
        furthest = max([furthest] + list(reached))
        if not reached:
            break
    if len(wanted) in reached:
        return None
    return wanted[furthest] if furthest < len(wanted) else "(the end)"


def commands_of(block):
    return [line.strip() for line in block.lines
            if line.strip() and not line.strip().startswith("#")]


def run_block(block, root):
    """Sentences about what is wrong with a block; none when it is right."""
    commands = commands_of(block)
    surrounding = [command for command in commands if command in SURROUNDING]
    if surrounding:
        alone = len(commands) == 1
        return [] if alone else [f"{surrounding[0]} must stand in a block of its own"]
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", "\n".join(block.lines)], cwd=root,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          stdin=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS, check=False)
    wanted = int(block.options.get("exit", 0))
    if done.returncode != wanted:
        return [f"exit code {done.returncode} instead of {wanted}; it printed:\n{done.stdout}"]
    return judge_output(block, done.stdout)


def compare_block(block, command, path):
    """The same for a command that ran already and whose output is in a file."""
    if commands_of(block) != [command]:
        return []
    with open(path, encoding="utf-8") as file:
        return judge_output(block, file.read())


def judge_output(block, output):
    if block.output is None:
        return []
    difference = first_difference(block.output, output)
    if difference is None:
        return []
    return [f"no line like this in its place: {difference}\nit printed:\n{strip_screen(output)}"]


def documents(root):
    paths = [os.path.join(root, "README.md")]
    for folder, folders, names in os.walk(os.path.join(root, "docs")):
        folders.sort()
        paths += [os.path.join(folder, name) for name in sorted(names) if name.endswith(".md")]
    return [path for path in paths if os.path.exists(path)]


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--transcript")
    parser.add_argument("--root", default=ROOT)
    parser.add_argument("files", nargs="*")
    options = parser.parse_args(arguments)
    command, _, transcript = (options.transcript or "").partition("=")
    faults, count = 0, 0
    for path in options.files or documents(options.root):
        name = os.path.relpath(path, options.root)
        with open(path, encoding="utf-8") as file:
            blocks = read_blocks(file.read())
        for block in blocks:
            count += 1
            found = compare_block(block, command, transcript) if command else run_block(
                block, options.root)
            for fault in found:
                faults += 1
                print(f"{name}:{block.line}: {fault}")
    print(f"check_docs_commands: {count} blocks, {faults} faults")
    return 1 if faults or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
