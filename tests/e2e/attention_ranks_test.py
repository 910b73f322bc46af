# SPDX-License-Identifier: Apache-2.0
"""Attention ranks as processes: one that stops, and one that dies, in the middle of a prompt."""
import json
import os
import re
import signal
import subprocess
import time
import unittest
import urllib.request

import demo_cluster
import programs
import run_demo
import serve_test

NUM_RANKS = 3
FILLING_SECONDS = 120


def blocks_in_use(process):
    with urllib.request.urlopen(process["metrics"], timeout=30) as answer:
        page = answer.read().decode()
    return int(float(re.search(r"^moebius_kv_blocks_in_use(?:{[^}]*})? (\S+)$", page, re.M)[1]))


class AttentionRanksTest(unittest.TestCase):
    def serve(self, *flags):
        served = serve_test.Served("--attention", str(NUM_RANKS), *flags)
        self.addCleanup(served.close)
        ready = served.event()
        self.assertEqual(ready["event"], "ready", ready)
        return served, ready["router"], {p["name"]: p for p in ready["processes"]}

    def start(self, router, case):
        line = demo_cluster.ask_line(programs.MOEBIUS, router, programs.DEMO, case)
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finish(self, process):
        out, err = process.communicate(timeout=programs.TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, 0, err.decode())
        return json.loads(out)

    def test_a_router_that_may_choose_has_measured_its_ranks(self):
        served, _, _ = self.serve()
        with open(os.path.join(served.folder.name, "logs", "router.log"), encoding="utf-8") as file:
            log = file.read()
        self.assertRegex(log, r"attention ranks measured: kernel \S+ GFLOP/s, links \S+ GB/s, "
                              r"\S+ µs a message")
        self.assertNotIn("kernel 0 GFLOP/s", log)

    # The rank holds keys of the prompt that is being read.
    def wait_for_keys(self, process):
        end = time.monotonic() + FILLING_SECONDS
        while blocks_in_use(process) == 0:
            self.assertLess(time.monotonic(), end, "no key came")

    def test_a_rank_killed_or_stopped_in_a_long_prompt_changes_no_bit(self):
        case = run_demo.load_case(programs.DEMO, "long")
        for transport, method in (("grpc", "ring-pass-kv"), ("shm", "ring-pass-q")):
            served, router, processes = self.serve("--restart", "--transport", transport,
                                                   "--attention-method", method, "--chunk", "256")
            rank = processes["attention-1"]
            answer = self.start(router, case)
            self.wait_for_keys(rank)
            os.kill(rank["pid"], signal.SIGSTOP)  # suspect, not dead
            time.sleep(0.6)                       # less than the second of silence
            os.kill(rank["pid"], signal.SIGCONT)
            os.kill(rank["pid"], signal.SIGKILL)
            self.assertEqual(run_demo.compare(case, self.finish(answer)), [], transport)
            self.assertEqual(served.event()["name"], "attention-1")
            self.doCleanups()  # one cluster at a time


if __name__ == "__main__":
    unittest.main()
