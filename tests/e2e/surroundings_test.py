# SPDX-License-Identifier: Apache-2.0
"""Surroundings that fail: full and closed streams, no memory, files that may not grow, kills."""
import ctypes
import itertools
import json
import os
import signal
import struct
import subprocess
import tempfile
import unittest

import programs

SHORT = ("generate", "--model", programs.DEMO, "--prompt", "Hi", "--max-tokens", "2")
LOGITS = ("model", "logits", "--model", programs.DEMO, "--prompt-ids", "1,2,3", "--out")


def shell(script, *words):
    """`script` with "$@" as a call of moebius: limits and redirections are the shell's."""
    return programs.run("bash", "-c", script, "bash", programs.MOEBIUS, *words)


def forbid_tiles():
    """From now on Linux refuses this process the tiles of AMX, as a strict container would: a
    seccomp filter answers arch_prctl(ARCH_REQ_XCOMP_PERM) with EPERM."""
    steps = ((0x20, 0, 0, 0),            # load the number of the system call
             (0x15, 0, 3, 158),          # arch_prctl, or to the end
             (0x20, 0, 0, 16),           # load its first argument
             (0x15, 0, 1, 0x1023),
             (0x06, 0, 0, 0x00050001),   # EPERM
             (0x06, 0, 0, 0x7fff0000))   # allow
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    number = ctypes.c_ulong
    if libc.prctl(38, number(1), number(0), number(0), number(0)) != 0 or libc.prctl(
            22, number(2), program, number(0), number(0)) != 0:
        raise OSError(ctypes.get_errno(), "no seccomp filter")


class SurroundingsTest(unittest.TestCase):
    def test_output_that_cannot_be_written_is_a_failure_of_every_command(self):
        for words in (("--help",), ("generate", "--help"), ("version",), ("version", "--json"),
                      ("doctor",), ("doctor", "--json"), SHORT, SHORT + ("--json",),
                      ("model", "inspect", "--model", programs.DEMO),
                      ("model", "verify", "--model", programs.DEMO)):
            for redirection in (">/dev/full", ">&-"):
                done = shell(f'"$@" {redirection}', *words)
                self.assertEqual(done.code, 1, f"{words} {redirection}: {done}")
                self.assertIn("cannot write the ", done.err, words)

    def test_a_closed_standard_input_is_empty_and_not_the_weights(self):
        done = shell('"$@" <&-', "generate", "--model", programs.DEMO, "--prompt-ids", "-")
        self.assertEqual(done.code, 1, str(done))
        self.assertIn("no token ids", done.err)
        done = shell('"$@" <&-', "generate", "--model", programs.DEMO, "--prompt-file", "-",
                     "--max-tokens", "1", "--json")
        self.assertEqual(done.json()["prompt_tokens"], 1)

    def test_no_file_of_ours_becomes_a_closed_stream(self):
        with tempfile.TemporaryDirectory() as folder:
            made = os.path.join(folder, "m")
            shell('"$@" <&- >&- 2>&-', "model", "make", "--family", "olmoe", "--out", made)
            done = programs.run(programs.MOEBIUS, "model", "verify", "--model", made)
            self.assertEqual(done.code, 0, str(done))

    def test_too_little_memory_ends_with_a_sentence(self):
        ended, folder = set(), self.enterContext(tempfile.TemporaryDirectory())
        # The fine steps meet the libraries while they initialise themselves, before `main`.
        for kilobytes in itertools.chain(range(28000, 34000, 100), range(35000, 160000, 10000)):
            for words in (SHORT, LOGITS + (os.path.join(folder, "logits"),)):
                done = shell(f'ulimit -v {kilobytes}; "$@"', *words)
                if done.code == 127:
                    continue  # the loader's: the program did not begin
                ended.add(done.code)
                self.assertGreaterEqual(done.code, 0, str(done))
                self.assertLess(done.code, 128, str(done))
                self.assertNotIn("check failed", done.err)
                self.assertNotIn("terminate called", done.err)
                if done.code != 0:
                    self.assertIn("error: ", done.err)
        self.assertIn(6, ended, "no limit was small enough for this test to test anything")

    def test_a_file_that_may_not_grow_is_a_failed_write(self):
        with tempfile.TemporaryDirectory() as folder:
            done = shell('ulimit -f 1; "$@"', *LOGITS, os.path.join(folder, "l.safetensors"))
            self.assertEqual(done.code, 1, str(done))
            self.assertIn("File too large", done.err)
            self.assertEqual(os.listdir(folder), [])

    def test_logits_replace_files_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = os.path.join(folder, "pipe")
            os.mkfifo(pipe)
            plain = os.path.join(folder, "plain")
            with open(plain, "w", encoding="utf-8") as file:
                file.write("x")
            self.assertEqual(programs.run(programs.MOEBIUS, *LOGITS, plain).code, 0)
            self.assertGreater(os.path.getsize(plain), 1000)
            for target, reason in ((pipe, "not a regular file"), (folder, "is a folder"),
                                   ("", "empty name"), (folder + "/a/b", "No such file")):
                done = programs.run(programs.MOEBIUS, *LOGITS, target, folder=folder)
                self.assertEqual(done.code, 1, str(done))
                self.assertIn(reason, done.err)
            self.assertEqual(sorted(os.listdir(folder)), ["pipe", "plain"])

    def test_a_killed_make_leaves_no_weights_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            made = os.path.join(folder, "m")
            child = subprocess.Popen(
                [programs.MOEBIUS, "model", "make", "--family", "olmoe", "--hidden", "2048",
                 "--vocab", "200000", "--layers", "8", "--intermediate", "1024", "--out", made])
            while child.poll() is None and not os.path.isdir(made):
                pass  # the folder comes first, then gigabytes
            child.send_signal(signal.SIGKILL)
            self.assertEqual(child.wait(programs.TIMEOUT_SECONDS), -signal.SIGKILL)
            self.assertEqual(os.listdir(made), [])

    def test_a_huge_kv_budget_does_not_wrap(self):
        done = programs.run(programs.MOEBIUS, *SHORT, "--kv-budget", str(2**63 - 1))
        self.assertEqual(done.code, 3, str(done))
        self.assertIn("together more than", done.err)

    def test_who_is_at_fault_decides_the_exit_code_in_every_command(self):
        fast = LOGITS + (os.path.join(tempfile.gettempdir(), "never"), "--compute", "fast")
        for words in (SHORT, fast):
            self.assertEqual(programs.run(programs.MOEBIUS, *words, "--span", "33").code, 2)
            done = programs.run(programs.MOEBIUS, *words, "--tier", "amx", in_child=forbid_tiles)
            self.assertEqual(done.code, 3, str(done))
            self.assertRegex(done.err, "Linux refuses the tiles' state|this CPU lacks ")
        self.assertEqual(programs.run(programs.MOEBIUS, *SHORT, "--kv-budget", "1").code, 3)
        with tempfile.TemporaryDirectory() as folder:
            made = os.path.join(folder, "m")
            programs.run(programs.MOEBIUS, "model", "make", "--family", "olmoe", "--dtype", "f16",
                         "--out", made)
            for words in (("generate", "--prompt", "x"), ("model", "inspect")):
                done = programs.run(programs.MOEBIUS, *words, "--model", made)
                self.assertEqual(done.code, 4, str(done))
                self.assertIn("--dtype=bf16", done.err)

    def test_errors_are_json_whatever_bytes_a_flag_has(self):
        done = programs.run(programs.MOEBIUS, *SHORT, "--json", "--tier", b"\xff\xc3")
        self.assertEqual(json.loads(done.err)["message"].count("\ufffd"), 2)

    def test_an_interrupted_answer_names_a_command_that_repeats_it(self):
        child = subprocess.Popen([programs.MOEBIUS, *SHORT[:-1], "4000", "--ignore-eos"],
                                 bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        first = child.stdout.read(1)
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=programs.TIMEOUT_SECONDS)
        self.assertEqual(child.returncode, 0, errors)
        line = errors.decode().split("reproduce: moebius ")[1].split("  # logits ")
        again = programs.run(programs.MOEBIUS, *line[0].split(), "--json")
        self.assertEqual(again.json()["logits_hash"], line[1].strip())
        self.assertEqual(again.json()["text"].encode(), (first + rest)[:-1])


if __name__ == "__main__":
    unittest.main()
