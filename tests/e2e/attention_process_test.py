# SPDX-License-Identifier: Apache-2.0
"""moebius-attention alone: how it starts, what it says while no router is there, and how it ends."""
import signal
import subprocess
import unittest

import programs

ATTENTION = programs.PROGRAMS + "/moebius-attention"


class AttentionProcessTest(unittest.TestCase):
    def test_says_where_it_is_and_what_it_waits_for(self):
        process = subprocess.Popen(
            [ATTENTION, "--model", programs.DEMO, "--join", programs.NOBODY, "--listen", "127.0.0.1:0",
             "--http-listen", "127.0.0.1:0", "--name", "attention-7", "--kv-budget", "64MiB"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        line = process.stdout.readline()
        self.assertTrue(line.startswith("listening role=attention name=attention-7"), line)
        facts = dict(word.split("=", 1) for word in line.split()[1:])
        self.assertEqual(facts["pid"], str(process.pid))
        self.assertRegex(facts["data"], r"^127\.0\.0\.1:[1-9]")
        self.assertEqual(programs.fetch(facts["http"], "/livez")[0], 200)
        code, words = programs.fetch(facts["http"], "/readyz")
        self.assertEqual(code, 503)
        self.assertNotEqual(words, "")
        code, metrics = programs.fetch(facts["http"], "/metrics")
        self.assertEqual(code, 200)
        self.assertIn('service="attention"', metrics)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), 0)

    def test_refuses_what_cannot_work(self):
        done = programs.run(ATTENTION, "--model", programs.DEMO)
        self.assertNotEqual(done.code, 0)
        self.assertIn("--join", done.err)
        done = programs.run(ATTENTION, "--model", programs.DEMO, "--join", programs.NOBODY,
                            "--kv-budget", "many")
        self.assertNotEqual(done.code, 0)
        self.assertIn("kv-budget", done.err)


if __name__ == "__main__":
    unittest.main()
