# SPDX-License-Identifier: Apache-2.0
"""Attention ranks as processes under the per-degree sum: near one process, and said to be so."""
import json
import os
import signal
import subprocess
import unittest

import demo_cluster
import programs
import run_demo
import serve_test

NUM_RANKS = 3
REASON = f"attention summed per degree over {NUM_RANKS} ranks: its bits depend on the ranks"
TOLERANCE = 0.1  # of a logarithm of a probability: bf16 roundings of every layer


class PerDegreeTest(unittest.TestCase):
    def serve(self, *flags):
        served = serve_test.Served("--attention", str(NUM_RANKS), "--attention-sum", "per-degree",
                                   *flags)
        self.addCleanup(served.close)
        ready = served.event()
        self.assertEqual(ready["event"], "ready", ready)
        return served, ready["router"], {p["name"]: p for p in ready["processes"]}

    def run_line(self, line):
        done = subprocess.run(line + ["--logprobs", "1"], capture_output=True,
                              timeout=programs.TIMEOUT_SECONDS, check=False)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return json.loads(done.stdout)

    def ask(self, router, case):
        return self.run_line(demo_cluster.ask_line(programs.MOEBIUS, router, programs.DEMO, case))

    # Up to the first token that is another one, which a near tie may be.
    def assert_near(self, answer, expected):
        same = 0
        for mine, theirs in zip(answer["logprobs"], expected["logprobs"]):
            if mine["token_id"] != theirs["token_id"]:
                break
            self.assertAlmostEqual(mine["logprob"], theirs["logprob"],
                                   delta=TOLERANCE)
            same += 1
        self.assertGreater(same, len(expected["logprobs"]) // 4)

    def test_answers_are_near_those_of_one_process_and_repeat_their_bits(self):
        case = run_demo.load_case(programs.DEMO, "long")
        alone = self.run_line(run_demo.command_line(programs.MOEBIUS, programs.DEMO, case))
        self.assertTrue(alone["exactness"]["exact"])
        for transport, method in (("grpc", "ring-pass-kv"), ("shm", "ring-pass-q")):
            served, router, _ = self.serve("--transport", transport, "--attention-method", method)
            answer = self.ask(router, case)
            self.assertFalse(answer["exactness"]["exact"])
            self.assertEqual(answer["exactness"]["reasons"], [REASON])
            self.assertNotEqual(answer["logits_hash"], alone["logits_hash"])
            self.assert_near(answer, alone)
            self.assertEqual(self.ask(router, case)["logits_hash"], answer["logits_hash"])
            self.assertEqual(served.stop(), 0, served.stderr())

    def test_a_killed_rank_is_replaced_and_the_bits_stay(self):
        case = run_demo.load_case(programs.DEMO, None)
        served, router, processes = self.serve("--restart", "--attention-method", "ring-pass-kv")
        answer = self.ask(router, case)
        os.kill(processes["attention-1"]["pid"], signal.SIGKILL)
        self.assertEqual(served.event()["name"], "attention-1")
        ready = programs.run(programs.MOEBIUS, "wait", "--router", router)
        self.assertEqual(ready.code, 0, str(ready))
        self.assertEqual(self.ask(router, case)["logits_hash"], answer["logits_hash"])


if __name__ == "__main__":
    unittest.main()
