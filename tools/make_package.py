#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a tar of stripped programs, the libraries that a bare Debian 12 lacks, and models/demo.

Usage: make_package.py RELEASE_TREE OUTPUT_FOLDER. The programs look for their libraries in ../lib.
Every library of every program is either in BASE_PACKAGES, which each Debian 12 has, or goes into
lib with its copyright file. Prints the tar's path, size and contents.
"""
import os
import re
import shutil
import subprocess
import sys
import tarfile

# Debian's own base system (apt itself needs them): a machine without these runs nothing.
BASE_PACKAGES = {"libc6", "libgcc-s1", "libstdc++6"}
LIBRARY = re.compile(r"^\s*(\S+) => (\S+) \(0x")
MISSING = re.compile(r"^\s*(\S+) => not found")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def libraries_of(program):
    """Paths of the shared libraries that a program loads."""
    text = output_of("ldd", program)
    missing = MISSING.findall(text)
    if missing:
        raise SystemExit(f"{program} needs {missing}, which is not on this machine")
    return {match.group(2) for match in map(LIBRARY.match, text.split("\n")) if match}


def package_of(path):
    """The Debian package that owns a file, whichever way round /lib and /usr/lib are."""
    real = os.path.realpath(path)
    for candidate in (real, real.replace("/usr/lib/", "/lib/", 1), path):
        found = subprocess.run(["dpkg", "-S", candidate], capture_output=True, text=True,
                               check=False)
        if found.returncode == 0:
            return found.stdout.split(":", 1)[0]
    raise SystemExit(f"{path} belongs to no Debian package")


def version_of(tree):
    with open(os.path.join(tree, "CMakeCache.txt"), encoding="utf-8") as file:
        match = re.search(r"^CMAKE_PROJECT_VERSION:STATIC=(.*)$", file.read(), re.MULTILINE)
    return match.group(1)


def copy_libraries(root):
    """Copies what BASE_PACKAGES does not have; returns {package: [file names]}."""
    bundled = {}
    programs = os.path.join(root, "bin")
    os.makedirs(os.path.join(root, "lib"))
    libraries = set().union(*(libraries_of(os.path.join(programs, name))
                              for name in os.listdir(programs)))
    for library in sorted(libraries):
        package = package_of(library)
        if package in BASE_PACKAGES:
            continue
        target = os.path.join(root, "lib", os.path.basename(library))
        shutil.copyfile(os.path.realpath(library), target)
        bundled.setdefault(package, []).append(os.path.basename(library))
        folder = os.path.join(root, "share", "doc", package)
        os.makedirs(folder, exist_ok=True)
        shutil.copyfile(f"/usr/share/doc/{package}/copyright", os.path.join(folder, "copyright"))
    return bundled


def make_tar(root, path):
    """A tar whose bytes depend on the files alone: sorted, without owners or times."""
    def plain(info):
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mtime = 0
        return info

    with tarfile.open(path, "w:gz", compresslevel=6) as tar:
        names = []
        for folder, folders, files in os.walk(root):
            folders.sort()
            names += [os.path.join(folder, name) for name in sorted(files)]
        for name in names:
            tar.add(name, os.path.join(os.path.basename(root), os.path.relpath(name, root)),
                    filter=plain)


def main(arguments):
    tree, output = arguments
    name = f"moebius-{version_of(tree)}-linux-x86_64"
    root = os.path.join(output, name)
    shutil.rmtree(output, ignore_errors=True)
    subprocess.run(["cmake", "--install", tree, "--prefix", root, "--strip"], check=True,
                   stdout=subprocess.DEVNULL)
    programs = sorted(os.listdir(os.path.join(root, "bin"))) if os.path.isdir(
        os.path.join(root, "bin")) else []
    if not programs:
        raise SystemExit("the release tree installs no program")
    bundled = copy_libraries(root)
    path = os.path.join(output, name + ".tar.gz")
    make_tar(root, path)
    print(f"{path}  {os.path.getsize(path) / 1e6:.1f} MB")
    print(f"  programs   {', '.join(programs)}")
    print(f"  libraries  of {', '.join(sorted(bundled)) or 'no package'}, in lib")
    print(f"  needs      {', '.join(sorted(BASE_PACKAGES))}, which every Debian 12 has")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
