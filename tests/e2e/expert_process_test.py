# SPDX-License-Identifier: Apache-2.0
"""moebius-expert alone: how it starts, what it says while no router is there, and how it ends."""
import signal
import subprocess
import unittest

import programs

EXPERT = programs.PROGRAMS + "/moebius-expert"


class ExpertProcessTest(unittest.TestCase):
    def start(self, *flags):
        process = subprocess.Popen(
            [EXPERT, "--model", programs.DEMO, "--join", programs.NOBODY, "--http-listen", "127.0.0.1:0",
             *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        line = process.stdout.readline()
        self.assertTrue(line.startswith("listening role=expert name="), line)
        return process, dict(word.split("=", 1) for word in line.split()[1:])

    def test_says_where_it_is_and_what_it_waits_for(self):
        process, facts = self.start("--name", "expert-7")
        self.assertEqual(facts["name"], "expert-7")
        self.assertEqual(facts["pid"], str(process.pid))
        self.assertEqual(programs.fetch(facts["http"], "/livez")[0], 200)
        code, words = programs.fetch(facts["http"], "/readyz")
        self.assertEqual(code, 503)
        self.assertNotEqual(words, "")
        code, metrics = programs.fetch(facts["http"], "/metrics")
        self.assertEqual(code, 200)
        self.assertIn("moebius_experts_held 0", metrics)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), 0)

    def test_says_who_may_connect(self):
        for flags, who in (((), "this host only, without TLS"),
                           (("--insecure",), "anybody on the network, without TLS")):
            process, _ = self.start(*flags)
            process.send_signal(signal.SIGINT)
            _, log = process.communicate(timeout=30)
            self.assertIn("who may connect: " + who, log)

    def test_a_mock_says_so(self):
        process, _ = self.start("--mock", "--mock-delay-us", "200")
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=30)
        self.assertIn("MOCK", log)
        self.assertIn("200us", log)

    def test_refuses_settings_that_mean_nothing(self):
        done = programs.run(EXPERT, "--model", programs.DEMO, "--join", programs.NOBODY,
                            "--mock-delay-us", "5")
        self.assertNotEqual(done.code, 0)
        self.assertIn("--mock", done.err)
        done = programs.run(EXPERT, "--model", programs.DEMO)
        self.assertNotEqual(done.code, 0)
        self.assertIn("--join", done.err)
        done = programs.run(EXPERT, "--model", "/nowhere", "--join", programs.NOBODY)
        self.assertNotEqual(done.code, 0)
        self.assertIn("/nowhere", done.err)

    def test_a_busy_admin_port_has_its_own_exit_code(self):
        _, facts = self.start("--admin-listen", "127.0.0.1:0")
        done = programs.run(EXPERT, "--model", programs.DEMO, "--join", programs.NOBODY,
                            "--http-listen", "127.0.0.1:0", "--admin-listen", facts["admin"])
        self.assertEqual(done.code, 5, str(done))
        self.assertIn(facts["admin"], done.err)


if __name__ == "__main__":
    unittest.main()
