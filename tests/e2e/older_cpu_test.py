# SPDX-License-Identifier: Apache-2.0
"""Programs on CPUs older than this one, by emulation: no illegal instruction, and the same bits.

Nehalem (2008) has SSE4.2 and nothing of AVX, so the portable tier runs; Haswell (2013) has AVX2.
"""
import shutil
import unittest

import programs

QEMU = shutil.which("qemu-x86_64")
PROMPT = ("--prompt", "And the king said", "--max-tokens", "16", "--threads", "1")


def on_cpu(cpu):
    return (QEMU, "-cpu", cpu)


class OlderCpuTest(unittest.TestCase):
    def test_every_program_says_what_it_is_on_the_baseline(self):
        for name in programs.program_names():
            path = f"{programs.PROGRAMS}/{name}"
            for flag in ("--version", "--help"):
                done = programs.run(*on_cpu("Nehalem"), path, flag)
                self.assertEqual(done.code, 0, f"{name} {flag}: {done}")
                self.assertIn(name, done.out + done.err)

    def test_doctor_runs_on_the_baseline(self):
        done = programs.run(*on_cpu("Nehalem"), programs.MOEBIUS, "doctor")
        # It may find fault with the emulated host (1 or 3), but it ends by itself and says why.
        self.assertIn(done.code, (0, 1, 3), str(done))
        self.assertIn("portable", done.out, str(done))

    def test_an_answer_has_the_same_bits_on_every_cpu(self):
        here = programs.generate(*PROMPT)
        for cpu in ("Haswell", "Nehalem"):
            there = programs.generate(*PROMPT, before=on_cpu(cpu))
            self.assertEqual(there["token_ids"], here["token_ids"], cpu)
            self.assertEqual(there["logits_hash"], here["logits_hash"], cpu)

    def test_a_tier_beyond_the_cpu_is_refused_with_a_sentence(self):
        done = programs.run(*on_cpu("Nehalem"), programs.MOEBIUS, "generate", "--model",
                            programs.DEMO, "--prompt", "x", "--max-tokens", "1", "--tier", "avx2")
        self.assertIn(done.code, (2, 3), str(done))
        self.assertIn("avx2", done.err.lower())


if __name__ == "__main__":
    if QEMU is None:
        programs.skip("qemu-x86_64 is not installed")
    unittest.main()
