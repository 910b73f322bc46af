# SPDX-License-Identifier: Apache-2.0
"""Attention ranks as processes under the per-degree sum: near one process, and said to be so."""
import collections
import datetime
import json
import os
import re
import signal
import subprocess
import time
import unittest

import attention_ranks_test
import demo_cluster
import programs
import run_demo
import serve_test

NUM_RANKS = 3
TOLERANCE = 0.1  # of a logarithm of a probability: bf16 roundings of every layer
# Five times what is promised, for a machine under load; peer_death_test.cc has the promise itself.
GONE_SECONDS = 5 * 0.5


def reason(num_ranks, layout="zigzag"):
    of = "" if layout == "zigzag" else f", {layout}"
    return f"attention summed per degree over {num_ranks} ranks{of}: its bits depend on the ranks"


class PerDegreeTest(unittest.TestCase):
    def serve(self, *flags, num_ranks=NUM_RANKS):
        served = serve_test.Served("--attention", str(num_ranks), "--attention-sum", "per-degree",
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
        hashes = {alone["logits_hash"]}
        configs = collections.defaultdict(set)
        for transport, method, num_ranks, layout in (
                ("grpc", "ring-pass-kv", 3, "zigzag"), ("shm", "ring-pass-q", 3, "zigzag"),
                ("shm", "2d", 4, "zigzag"),  # two groups of two that share heads
                ("shm", "ring-pass-kv", 3, "contiguous"), ("grpc", "ring-pass-kv", 3, "striped")):
            of = f"{method} over {num_ranks} ranks, {layout}"
            served, router, _ = self.serve("--transport", transport, "--attention-method", method,
                                           "--attention-layout", layout, num_ranks=num_ranks)
            answer = self.ask(router, case)
            self.assertFalse(answer["exactness"]["exact"])
            self.assertEqual(answer["exactness"]["reasons"], [reason(num_ranks, layout)])
            configs[layout].add(answer["config_hash"])
            self.assertNotIn(answer["logits_hash"], hashes, of)  # else a setting was ignored
            hashes.add(answer["logits_hash"])
            self.assert_near(answer, alone)
            self.assertEqual(self.ask(router, case)["logits_hash"], answer["logits_hash"], of)
            self.assertEqual(served.stop(), 0, served.stderr())
        self.assertEqual([len(of) for of in configs.values()], [1, 1, 1], configs)
        self.assertEqual(len(set().union(*configs.values())), 3, configs)

    # When and by what the router knew that a process was no more, as it says itself.
    def gone(self, served, name):
        with open(os.path.join(served.folder.name, "logs", "router.log"), encoding="utf-8") as file:
            line = re.search(rf"^(\S+) \S+ router: {name} has gone: (.*)$", file.read(), re.M)
        self.assertIsNotNone(line, f"{name} has not gone")
        return datetime.datetime.fromisoformat(line[1].replace("Z", "+00:00")).timestamp(), line[2]

    # What the rank had is made again, in the order of the ring as before.
    def test_a_rank_killed_in_a_long_prompt_changes_no_bit(self):
        case = run_demo.load_case(programs.DEMO, "long")
        for transport, method, layout in (("grpc", "ring-pass-kv", "zigzag"),
                                          ("shm", "ring-pass-q", "zigzag"),
                                          ("grpc", "ulysses", "contiguous"),
                                          ("shm", "ring-pass-kv", "striped")):
            served, router, processes = self.serve(
                "--restart", "--transport", transport, "--attention-method", method,
                "--attention-layout", layout, "--chunk", "256")
            undisturbed = self.ask(router, case)
            rank = processes["attention-1"]
            line = demo_cluster.ask_line(programs.MOEBIUS, router, programs.DEMO, case)
            answer = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.wait_for_keys(rank)
            killed = time.time()
            os.kill(rank["pid"], signal.SIGKILL)
            out, err = answer.communicate(timeout=programs.TIMEOUT_SECONDS)
            self.assertEqual(answer.returncode, 0, err.decode())
            self.assertEqual(json.loads(out)["logits_hash"], undisturbed["logits_hash"],
                             f"{transport}, {method}, {layout}")
            self.assertEqual(served.event()["name"], "attention-1")
            gone, reason_of = self.gone(served, "attention-1")
            self.assertLess(gone - killed, GONE_SECONDS)
            self.assertNotIn("nothing heard", reason_of)  # its end closed: no timeout had to pass
            self.doCleanups()  # one cluster at a time

    # The rank holds keys of the prompt that is being read.
    def wait_for_keys(self, process):
        end = time.monotonic() + attention_ranks_test.FILLING_SECONDS
        while attention_ranks_test.blocks_in_use(process) == 0:
            self.assertLess(time.monotonic(), end, "no key came")

    def test_a_layout_without_the_sum_is_refused_in_words(self):
        done = programs.run(programs.MOEBIUS, "generate", "--model", programs.DEMO, "--prompt", "a",
                            "--attention-layout", "striped")
        self.assertEqual(done.code, 2, str(done))
        self.assertIn("--attention-layout is striped and the attention sum canonical", done.err)

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
