# SPDX-License-Identifier: Apache-2.0
"""What the tests of programs share: where things are, and one way to run them."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

SOURCE = os.environ["MOEBIUS_SOURCE_DIR"]
BINARIES = os.environ["MOEBIUS_BINARY_DIR"]
PROGRAMS = os.environ["MOEBIUS_PROGRAM_DIR"]
MOEBIUS = os.path.join(PROGRAMS, "moebius")
DEMO = os.path.join(SOURCE, "models", "demo")
TIMEOUT_SECONDS = 300
SKIPPED = 77
# Nothing listens at the discard port of a test machine; what counts is that nobody answers.
NOBODY = "127.0.0.1:9"


def program_names():
    """Every program of the project that was built here."""
    return sorted(name for name in os.listdir(PROGRAMS)
                  if name == "moebius" or name.startswith("moebius-"))


def copy_demo_with_flipped_bit(folder):
    """Copies the demo model into an empty folder, one bit of one weight of it changed."""
    for name in os.listdir(DEMO):
        source = os.path.join(DEMO, name)
        if os.path.isfile(source):
            shutil.copy(source, folder)
        else:
            os.symlink(source, os.path.join(folder, name))
    with open(os.path.join(folder, "model.safetensors"), "r+b") as file:
        header_size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_size))
        # The final norm is in the way of every logit; the bit is its first mantissa bit.
        begin, _ = header["model.norm.weight"]["data_offsets"]
        at = 8 + header_size + begin
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x40]))


def change_json(folder, name, values):
    """Sets the given fields of a JSON file of the folder."""
    path = os.path.join(folder, name)
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**content, **values}, file)


def expected_case(name):
    """A case of the demo's expected.json."""
    with open(os.path.join(DEMO, "expected.json"), encoding="utf-8") as file:
        return next(case for case in json.load(file)["cases"] if case["name"] == name)


def flags_of_case(case):
    """What `moebius generate` is asked for this case."""
    flags = ["--prompt", case["prompt"], "--max-tokens", str(case["max_tokens"]), "--json",
             "--temperature", str(case["temperature"]), "--seed", str(case["seed"])]
    if "top_p" in case:
        flags += ["--top-p", str(case["top_p"])]
    return flags


class Service:
    """A service that was started: the ports of its first line, what it says after, its log."""

    def __init__(self, role, *flags):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen(
            [os.path.join(PROGRAMS, f"moebius-{role}"), "--model", DEMO, "--threads=1", *flags],
            stdout=subprocess.PIPE, stderr=self.log, stdin=subprocess.DEVNULL, text=True)
        words = self.process.stdout.readline().split()
        if words[:1] != ["listening"]:
            self.process.wait()
            raise AssertionError(f"moebius-{role} ended ({self.process.returncode}): {self.stderr()}")
        self.ports = dict(word.split("=", 1) for word in words[1:])
        # What is announced later must not fill the pipe.
        self.reader = threading.Thread(target=self.process.stdout.read)
        self.reader.start()

    def stderr(self):
        with open(self.log.name, encoding="utf-8") as file:
            return file.read()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()
        self.log.close()


def skip(reason):
    """Ends the whole script as a skip; tools/expected_skips.txt must have the reason."""
    print(f"MOEBIUS_SKIP: {reason}")
    sys.exit(SKIPPED)


def fetch(address, path):
    """Status and text of a page."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode("utf-8")
    except urllib.error.HTTPError as failure:
        return failure.code, failure.read().decode("utf-8")


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


def run(*command, environment=None, folder=None, in_child=None):
    """Runs a program to its end; `in_child` is called in its process first."""
    return Done(subprocess.run(list(command), capture_output=True, timeout=TIMEOUT_SECONDS,
                               stdin=subprocess.DEVNULL, env=environment, cwd=folder,
                               preexec_fn=in_child, check=False))


def wait_until(condition, seconds):
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def expect_soon(condition, seconds):
    """Fails unless the condition comes true in time."""
    if not wait_until(condition, seconds):
        raise AssertionError("it did not come true in time")


def generate(*flags, before=(), temperature="0", environment=None):
    """`moebius generate` of the demo model as JSON, greedy unless said otherwise."""
    done = run(*before, MOEBIUS, "generate", "--model", DEMO, "--json", "--temperature",
               temperature, *flags, environment=environment)
    if done.code != 0:
        raise AssertionError(str(done))
    return done.json()
