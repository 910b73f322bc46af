# SPDX-License-Identifier: Apache-2.0
"""A served cluster whose processes exchange frames through shared memory: the same bits."""
import json
import os
import re
import signal
import subprocess
import unittest
import urllib.request

import demo_cluster
import programs
import run_demo
import serve_test


def sent_bytes(metrics, transport):
    """What the process behind a /metrics URL has sent over a transport; None: it has none."""
    with urllib.request.urlopen(metrics, timeout=10) as answer:
        text = answer.read().decode()
    values = re.findall(r'^moebius_transport_bytes_total\{transport="%s",[^}]*direction="sent"\} (\S+)'
                        % transport, text, re.MULTILINE)
    return sum(map(float, values)) if values else None


class ShmClusterTest(unittest.TestCase):
    def serve(self, *flags):
        served = serve_test.Served("--transport", "shm", *flags)
        self.addCleanup(served.close)
        ready = served.event()
        self.assertEqual(ready["event"], "ready", ready)
        return served, ready["router"], {p["name"]: p for p in ready["processes"]}

    def assert_same_bits(self, router, case):
        line = demo_cluster.ask_line(programs.MOEBIUS, router, programs.DEMO, case)
        done = subprocess.run(line, capture_output=True, timeout=programs.TIMEOUT_SECONDS,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertEqual(run_demo.compare(case, json.loads(done.stdout)), [], case["name"])

    def test_every_process_sends_through_memory_and_the_bits_are_the_recorded_ones(self):
        served, router, processes = self.serve("--experts", "2", "--attention", "2")
        greedy = run_demo.load_case(programs.DEMO, None)
        self.assert_same_bits(router, greedy)
        for name, process in processes.items():
            self.assertGreater(sent_bytes(process["metrics"], "shm"), 0, name)
            self.assertIsNone(sent_bytes(process["metrics"], "grpc"), name)
        # Of each generated token and layer a row of bf16 goes to attention and one to experts.
        with open(os.path.join(programs.DEMO, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        rows = greedy["max_tokens"] * config["num_hidden_layers"] * 2
        self.assertGreater(sent_bytes(processes["router"]["metrics"], "shm"),
                           rows * config["hidden_size"] * 2)
        self.assertEqual(served.stop(), 0, served.stderr())

    def test_a_killed_expert_changes_no_bit(self):
        served, router, processes = self.serve("--experts", "2")
        greedy = run_demo.load_case(programs.DEMO, None)
        self.assert_same_bits(router, greedy)
        os.kill(processes["expert-1"]["pid"], signal.SIGKILL)
        self.assertEqual(served.event()["name"], "expert-1")
        self.assert_same_bits(router, greedy)
        self.assertEqual(served.stop(), 0, served.stderr())


if __name__ == "__main__":
    unittest.main()
