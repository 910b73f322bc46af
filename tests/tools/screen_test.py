# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/dev/screen.sh: what ./dev shows."""
import os
import subprocess
import tempfile
import unittest

ROOT = os.environ["MOEBIUS_SOURCE_DIR"]


def bash(script):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c",
                           f"root={ROOT}; source {ROOT}/tools/dev/screen.sh; {script}"],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


class ScreenTest(unittest.TestCase):
    def test_a_bar_has_twenty_cells_to_an_eighth(self):
        for done, total, bar in ((0, 10, "·" * 20), (10, 10, "█" * 20),
                                 (5, 10, "█" * 10 + "·" * 10), (1, 160, "▏" + "·" * 19),
                                 (131, 208, "█" * 12 + "▌" + "·" * 7), (0, 0, "·" * 20)):
            self.assertEqual(bash(f"draw_bar {done} {total}")[1], bar, (done, total))

    def test_steps_are_numbered(self):
        out = bash("step_count=2; begin_step build 'four programs'; end_step 8/8; "
                   "begin_step test all; end_step ''")[1].split("\n")
        self.assertTrue(out[0].startswith(" 1/2 build       four programs"), out)
        self.assertIn("8/8", out[0])
        self.assertTrue(out[1].startswith(" 2/2 test"), out)

    def test_progress_reaches_the_log_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            code, _, _ = bash("step_count=1; begin_step build x; printf '[1/2] a\\n[2/2] b\\nend' | "
                              f"follow_progress {log} '^\\[([0-9]+)/([0-9]+)\\]'")
            self.assertEqual(code, 0)
            with open(log, encoding="utf-8") as file:
                self.assertEqual(file.read(), "[1/2] a\n[2/2] b\nend\n")

    def test_a_failure_shows_the_log_and_what_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            with open(log, "w", encoding="utf-8") as file:
                file.write("[1/9] Building CXX object a\n" + "early\n" * 50 + "x.cc:3: error: no\n")
            code, out, err = bash("step_count=1; begin_step build x; "
                                  f"fail_step {log} 'Mend x.cc.'; echo reached")
            self.assertEqual(code, 1)
            self.assertIn("failed", out)
            self.assertNotIn("reached", out)
            self.assertIn("x.cc:3: error: no", err)
            self.assertNotIn("Building", err)
            self.assertTrue(err.rstrip().endswith("Mend x.cc."))


if __name__ == "__main__":
    unittest.main()
