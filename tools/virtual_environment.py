# SPDX-License-Identifier: Apache-2.0
"""A virtual environment of a build tree, for tests that need more than Debian's Python packages.

Made by Debian's python3 and filled by pip, once; made again when what it is for has changed. Where
pip reaches no package index the script ends as a skip.
"""
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys

import report_tests

INSTALL_SECONDS = 400
SKIPPED = 77


def digest_of(pieces):
    """One digest of several byte strings; where one ends and the next begins counts."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()


class VirtualEnvironment:
    """One environment. `name` is its folder in the build tree; `packages` are pip's requirements."""

    def __init__(self, name, packages):
        self.folder = os.path.join(os.environ["MOEBIUS_BINARY_DIR"], name)
        self.python = os.path.join(self.folder, "bin", "python")
        self.packages = packages

    def is_made(self, part, digest):
        """Whether the stamp of a part says that it was made from this."""
        try:
            with open(os.path.join(self.folder, part), encoding="utf-8") as file:
                return file.read() == digest
        except FileNotFoundError:
            return False

    def stamp(self, part, digest):
        with open(os.path.join(self.folder, part), "w", encoding="utf-8") as file:
            file.write(digest)

    def install(self, *arguments):
        """pip install ARGUMENTS…"""
        self._pip("install", *arguments)

    def download(self, folder, *arguments):
        """pip download ARGUMENTS… without dependencies, into a folder."""
        self._pip("download", "--no-deps", "--dest", folder, *arguments)

    def _pip(self, verb, *arguments):
        command = [self.python, "-m", "pip", verb, "--quiet", "--retries", "1", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=INSTALL_SECONDS, check=False)
        if done.returncode == 0:
            return
        if not report_tests.package_index_answers(self.python):
            print("MOEBIUS_SKIP: pip reaches no package index")
            sys.exit(SKIPPED)
        sys.exit(f"pip {verb} {' '.join(arguments)} failed:\n{done.stdout}")

    def make_packages(self):
        """Makes the environment anew unless it holds these packages."""
        packages = digest_of([name.encode() for name in self.packages])
        if self.is_made("packages", packages):
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        subprocess.run(["/usr/bin/python3", "-m", "venv", self.folder], check=True)
        self.install(*self.packages)
        self.stamp("packages", packages)

    @contextlib.contextmanager
    def locked(self):
        """One process at a time makes it."""
        os.makedirs(os.path.dirname(self.folder), exist_ok=True)
        with open(self.folder + ".lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def is_entered(self):
        return os.path.realpath(sys.prefix) == os.path.realpath(self.folder)

    def restart_script(self):
        """The script that runs goes on, from its beginning, in the environment."""
        sys.stdout.flush()
        os.execv(self.python, [self.python, *sys.argv])
