# SPDX-License-Identifier: Apache-2.0
"""What the tests of programs share: where things are, and one way to run them."""
import json
import os
import subprocess
import sys

SOURCE = os.environ["MOEBIUS_SOURCE_DIR"]
BINARIES = os.environ["MOEBIUS_BINARY_DIR"]
PROGRAMS = os.environ["MOEBIUS_PROGRAM_DIR"]
MOEBIUS = os.path.join(PROGRAMS, "moebius")
DEMO = os.path.join(SOURCE, "models", "demo")
TIMEOUT_SECONDS = 300
SKIPPED = 77


def program_names():
    """Every program of the project that was built here."""
    return sorted(name for name in os.listdir(PROGRAMS)
                  if name == "moebius" or name.startswith("moebius-"))


def skip(reason):
    """Ends the whole script as a skip; tools/expected_skips.txt must have the reason."""
    print(f"MOEBIUS_SKIP: {reason}")
    sys.exit(SKIPPED)


class Done:
    """How a program ended: code, stdout and stderr as text."""

    def __init__(self, completed):
        self.code = completed.returncode
        self.out = completed.stdout.decode("utf-8", "replace")
        self.err = completed.stderr.decode("utf-8", "replace")

    def __str__(self):
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    def json(self):
        return json.loads(self.out)


def run(*command, environment=None, folder=None):
    return Done(subprocess.run(list(command), capture_output=True, timeout=TIMEOUT_SECONDS,
                               stdin=subprocess.DEVNULL, env=environment, cwd=folder, check=False))


def generate(*flags, before=(), temperature="0", environment=None):
    """`moebius generate` of the demo model as JSON, greedy unless said otherwise."""
    done = run(*before, MOEBIUS, "generate", "--model", DEMO, "--json", "--temperature",
               temperature, *flags, environment=environment)
    if done.code != 0:
        raise AssertionError(str(done))
    return done.json()
