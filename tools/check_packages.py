#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves that the project uses nothing outside the closure of tools/packages.txt.

A package that is installed by chance hides a missing line from its author and stops a newcomer.
Checked are the programs that scripts call, and, for each build tree given, every header that the
compiler read and every library that a binary loads. The closure follows Depends and Pre-Depends
from the list and from the packages that every Debian has (Essential, or Priority required or
important); Recommends are not followed, as ./dev installs none.

Usage: check_packages.py [TREE…]. Prints each fault and exits 1 if there is one.
"""
import ast
import collections
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPTS = ["dev", ".ci/run"]
# Called where they are, never needed: with the reason.
OPTIONAL_PROGRAMS = {
    "sudo": "only for users that are not root",
    "buildah": "the test of the images skips without it",
    "podman": "the test of the images skips without it",
}
SHELL_WORDS = set("""
    if then else elif fi for while until do done case esac in function select time { } [[ ! [ : .
    source echo printf read local readonly declare export set shift return exit cd test true false
    exec eval mapfile type command trap wait kill let unset break continue shopt
""".split())
# What may stand before a command word.
LEADING = re.compile(r"^(?:if|elif|while|until|then|else|do|!|\{|time|exec|must\s+\S+|phase\s+\S+)\s+")
ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z_0-9]*\+?=(?:\"[^\"]*\"|'[^']*'|\S*)\s*")
WORD = re.compile(r"^[A-Za-z_.][\w.+/-]*")


class Debian:
    """What dpkg knows: dependencies, what is provided, and who owns a file."""

    def __init__(self, status="/var/lib/dpkg/status", info="/var/lib/dpkg/info"):
        self.depends, self.base, self.provides = {}, set(), collections.defaultdict(set)
        self._read_status(status)
        self.owners = {}
        if info:
            self._read_lists(info)

    def _read_status(self, path):
        with open(path, encoding="utf-8") as file:
            stanzas = file.read().split("\n\n")
        for stanza in stanzas:
            fields, last = {}, None
            for line in stanza.split("\n"):
                if line[:1] in (" ", "\t") and last:
                    fields[last] += line
                elif ":" in line:
                    last, _, value = line.partition(":")
                    fields[last] = value.strip()
            if not fields.get("Status", "").endswith(" installed"):
                continue
            name = fields["Package"]
            depends = ", ".join(filter(None, (fields.get("Depends"), fields.get("Pre-Depends"))))
            self.depends[name] = [
                [re.sub(r"[ :(].*", "", choice.strip()) for choice in group.split("|")]
                for group in depends.split(",") if group.strip()]
            for provided in fields.get("Provides", "").split(","):
                if provided.strip():
                    self.provides[re.sub(r"[ :(].*", "", provided.strip())].add(name)
            if fields.get("Essential") == "yes" or fields.get("Priority") in ("required",
                                                                              "important"):
                self.base.add(name)

    def _read_lists(self, folder):
        for name in os.listdir(folder):
            if name.endswith(".list"):
                package = name[:-len(".list")].split(":")[0]
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    for line in file:
                        self.owners[canonical(line.rstrip("\n"))] = package

    def owner(self, path):
        """The package of a file, through links and alternatives; None when it has none."""
        real = os.path.realpath(path)
        return self.owners.get(canonical(real)) or self.owners.get(canonical(path))

    def closure(self, names):
        """All that comes with the packages, and the base system."""
        seen, queue = set(), list(names) + sorted(self.base)
        while queue:
            name = queue.pop()
            if name in seen:
                continue
            if name not in self.depends:
                queue += [p for p in self.provides.get(name, ()) if p not in seen]
                continue
            seen.add(name)
            for choices in self.depends[name]:
                installed = [c for c in choices if c in self.depends or c in self.provides]
                queue += installed
        return seen


def canonical(path):
    """One spelling for files of merged /usr: /lib/x is /usr/lib/x."""
    for folder in ("/lib/", "/lib64/", "/bin/", "/sbin/"):
        if path.startswith(folder):
            return "/usr" + path
    return path


def listed_packages(path):
    with open(path, encoding="utf-8") as file:
        lines = [line.split() for line in file]
    return [fields[0] for fields in lines if fields and not fields[0].startswith("#")]


def split_commands(text):
    """The simple commands of a shell script, roughly: enough to see their first words."""
    text = re.sub(r"<<-?'?(\w+)'?\n.*?\n\s*\1\n", "\n", text, flags=re.DOTALL)
    text = re.sub(r"(?m)(^|\s)#.*$", r"\1", text).replace("\\\n", " ")
    text = re.sub(r"'[^']*'", lambda m: "'" + "_" * (len(m.group(0)) - 2) + "'", text)
    text = re.sub(r"\$\(\(|\(\(.*?\)\)", " ", text)
    text = re.sub(r"\$\{[^}]*\}", "_", text)
    text = re.sub(r"\[\[.*?\]\]", ":", text, flags=re.DOTALL)
    # Outside of strings a parenthesis is a subshell; inside, $( still starts a command.
    pieces, quoted = [""], False
    index = 0
    while index < len(text):
        char = text[index]
        if text.startswith("$(", index) or text.startswith("<(", index) or \
                text.startswith(">(", index):
            pieces.append("")
            index += 1
        elif char == '"':
            quoted = not quoted
            pieces[-1] += char
        elif char in "|&;\n()" and not quoted and not text.startswith(">&", index - 1) \
                and not text.startswith("&1", index):
            pieces.append("")
        else:
            pieces[-1] += char
        index += 1
    return pieces


def shell_programs(text):
    """Words in the places of commands: programs, functions, and now and then something else."""
    programs = set()
    for command in split_commands(text):
        command = command.strip()
        before = None
        while command != before:
            before = command
            command = ASSIGNMENT.sub("", LEADING.sub("", command))
        match = WORD.match(command)
        if not match or command[match.end():match.end() + 1] in ("=", "[", "+", "*", "'", '"', "$"):
            continue
        word = match.group(0)
        if word not in SHELL_WORDS and "/" not in word:
            programs.add(word)
        if word == "xargs":
            programs.update(re.findall(r"xargs(?:\s+-\w(?:\s+(?:_|\d+|\"[^\"]*\"|\S*\)\"?))?)*\s+"
                                       r"([a-z][\w.+-]*)", command))
    return programs


def python_programs(text):
    """First words of the argument lists that a Python script gives to subprocess."""
    programs = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(
                node.func, "id", "")
            if name not in ("run", "Popen", "check_output", "check_call", "call", "output_of"):
                continue
            for argument in node.args[:1]:
                first = argument.elts[0] if isinstance(argument, ast.List) and argument.elts \
                    else argument
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    programs.add(first.value)
    return programs


def called_programs(root):
    """{program: the script that calls it} for all scripts of the project."""
    programs = {}
    paths = [os.path.join(root, path) for path in SCRIPTS]
    for folder in ("tools", "tests"):
        for directory, folders, names in os.walk(os.path.join(root, folder)):
            folders[:] = [f for f in folders if f not in ("data", "__pycache__")]
            paths += [os.path.join(directory, name) for name in names
                      if name.endswith((".sh", ".py"))]
    for path in sorted(paths):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        found = python_programs(text) if path.endswith(".py") else shell_programs(text)
        for program in found:
            programs.setdefault(program, os.path.relpath(path, root))
    return programs


def tree_headers(tree):
    """Every header outside of the project that the compiler read for this tree."""
    text = subprocess.run(["ninja", "-C", tree, "-t", "deps"], check=True, capture_output=True,
                          text=True).stdout
    headers = {line.strip() for line in text.split("\n") if line.startswith("    ")}
    return {os.path.normpath(path) for path in headers if path.startswith("/usr/")}


def tree_libraries(tree):
    """{library path: a binary that loads it} for all binaries linked in this tree."""
    libraries = {}
    folders = [os.path.join(tree, "bin"), os.path.join(os.path.dirname(tree), "bin")]
    for folder in folders:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            done = subprocess.run(["ldd", os.path.join(folder, name)], capture_output=True,
                                  text=True, check=False)
            for path in re.findall(r"(/\S+) \(0x", done.stdout):
                libraries.setdefault(path, name)
    return libraries


def check(root, trees, debian):
    """All faults as sentences, and how much was looked at."""
    allowed = debian.closure(listed_packages(os.path.join(root, "tools/packages.txt")))
    faults = []
    counts = collections.Counter()

    def judge(kind, what, path, user):
        counts[kind] += 1
        package = debian.owner(path)
        if package is None:
            faults.append(f"{kind} {what} ({user}) belongs to no Debian package")
        elif package not in allowed:
            faults.append(f"{kind} {what} ({user}) is of {package}, which is not in the closure of "
                          "tools/packages.txt")

    for program, script in sorted(called_programs(root).items()):
        if program in OPTIONAL_PROGRAMS or program.startswith(("/", "./")):
            continue
        # What is not there is a function of the script, or fails by itself when it is called.
        path = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
        if path is not None:
            judge("program", program, path, script)
    for tree in trees:
        for header in sorted(tree_headers(tree)):
            judge("header", header, header, tree)
        for library, binary in sorted(tree_libraries(tree).items()):
            judge("library", library, library, binary)
        if not counts["header"]:
            faults.append(f"{tree} names no header: it is not built")
    return faults, counts


def main(arguments):
    faults, counts = check(ROOT, arguments, Debian())
    for fault in faults:
        print(fault)
    print("check_packages: " + ", ".join(f"{counts[kind]} {plural}" for kind, plural in (
        ("program", "programs"), ("header", "headers"), ("library", "libraries")))
        + f", {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
