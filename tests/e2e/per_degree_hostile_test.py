# SPDX-License-Identifier: Apache-2.0
"""The per-degree sum under hostile use: prompts shorter than the ranks, many at once, cancels in the
middle of one, KV that runs out, and processes that sum in another way."""
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

import programs
import serve_test

NUM_RANKS = 3
SPAN = 32
POSITIONS = 4096
# Bytes of a prompt; the first token is BOS. One token, fewer than ranks, 2N - 1, around units.
PROMPT_BYTES = (0, 1, 2, 4, 5, 6, 2 * NUM_RANKS * SPAN - 2, 2 * NUM_RANKS * SPAN, 500)
KV_BLOCKS = 120 # of each rank


class Model:
    """A small model in a folder of its own."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "model")
        subprocess.run([programs.MOEBIUS, "model", "make", "--family", "qwen3_moe", "--positions",
                        str(POSITIONS), "--out", self.path, "--quiet"], check=True,
                       stdout=subprocess.DEVNULL, timeout=programs.TIMEOUT_SECONDS)
        path = os.path.join(self.path, "moebius.json")
        with open(path, encoding="utf-8") as file:
            settings = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**settings, "span": SPAN}, file)


def text_of(num_bytes):
    return ("What is said twice is said once too often. " * (num_bytes // 43 + 1))[:num_bytes]


class PerDegreeHostileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = Model()
        cls.addClassCleanup(cls.model.folder.cleanup)

    def serve(self, *flags):
        served = serve_test.Served("--attention", str(NUM_RANKS), "--attention-sum", "per-degree",
                                   *flags, model=self.model.path)
        self.addCleanup(served.close)
        ready = served.event()
        self.assertEqual(ready["event"], "ready", ready)
        return served, ready

    def line(self, ready, prompt, *flags):
        return [programs.MOEBIUS, "generate", "--router", ready["router"], "--prompt", prompt,
                "--temperature", "0", "--ignore-eos", "--json", *flags]

    def ask(self, ready, prompt, max_tokens=8):
        done = programs.run(*self.line(ready, prompt, "--max-tokens", str(max_tokens)))
        self.assertEqual(done.code, 0, str(done))
        return done.json()["logits_hash"]

    def blocks_in_use(self, ready):
        blocks = 0
        for process in ready["processes"]:
            if process["role"] != "attention":
                continue
            with urllib.request.urlopen(process["metrics"], timeout=30) as answer:
                page = answer.read().decode()
            blocks += int(float(
                re.search(r"^moebius_kv_blocks_in_use(?:{[^}]*})? (\S+)$", page, re.M)[1]))
        return blocks

    def wait_for_blocks(self, ready, condition):
        programs.expect_soon(lambda: condition(self.blocks_in_use(ready)), programs.TIMEOUT_SECONDS)

    def test_prompts_of_any_length_have_the_same_bits_alone_and_together(self):
        for transport, method in (("shm", "ring-pass-kv"), ("shm", "ulysses"),
                                  ("grpc", "ring-pass-q")):
            served, ready = self.serve("--transport", transport, "--attention-method", method)
            alone = [self.ask(ready, text_of(size)) for size in PROMPT_BYTES]
            together = [None] * len(alone)

            def ask(index):
                together[index] = self.ask(ready, text_of(PROMPT_BYTES[index]))

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(alone))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(together, alone, method)
            self.wait_for_blocks(ready, lambda blocks: blocks == 0)
            self.assertEqual(served.stop(), 0, served.stderr())

    def test_a_cancel_in_the_middle_of_a_prompt_or_an_answer_frees_its_keys(self):
        _, ready = self.serve("--attention-method", "ring-pass-kv", "--chunk", "64")
        expected = self.ask(ready, text_of(400))
        for seconds in (0, 0.02, 0.1):
            client = subprocess.Popen(self.line(ready, text_of(3000), "--max-tokens", "1000"),
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                self.wait_for_blocks(ready, lambda blocks: blocks > 0)
                time.sleep(seconds)
            finally:
                client.send_signal(signal.SIGINT)
                client.wait()
            self.wait_for_blocks(ready, lambda blocks: blocks == 0)
            self.assertEqual(self.ask(ready, text_of(400)), expected)

    def test_a_prompt_that_fits_no_pool_is_refused_and_many_that_do_not_fit_at_once_wait(self):
        block_bytes = SPAN * 2 * 2 * 16 * 2 * 2  # positions, k and v, KV heads, head, bf16, layers
        _, ready = self.serve("--kv-budget", str(NUM_RANKS * KV_BLOCKS * block_bytes))
        done = programs.run(*self.line(ready, text_of(3900), "--max-tokens", "8"))
        self.assertEqual(done.code, 1, str(done))
        self.assertRegex(done.err, r"KV|keys|pool")
        expected = self.ask(ready, text_of(1000))
        hashes = []
        threads = [threading.Thread(target=lambda: hashes.append(self.ask(ready, text_of(1000))))
                   for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(hashes, [expected] * 8)
        self.wait_for_blocks(ready, lambda blocks: blocks == 0)

    def test_a_rank_that_sums_in_another_way_is_refused_in_words(self):
        served, ready = self.serve()
        attention = os.path.join(programs.PROGRAMS, "moebius-attention")
        router = "the router sums attention per-degree (zigzag)"
        ways = ((("canonical", "zigzag"), "the attention sums attention canonical"),
                (("per-degree", "striped"), "the attention sums attention per-degree (striped)"),
                (("per-degree", "zigzag"), None))
        for (way, layout), words in ways:
            process = subprocess.Popen(
                [attention, "--model", self.model.path, "--attention-sum", way,
                 "--attention-layout", layout, "--join", ready["join"], "--http-listen",
                 "127.0.0.1:0", "--kv-budget", "8MiB"],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            try:
                for line in process.stderr:
                    if "joined" in line or "the configuration differs" in line:
                        break
                self.assertIn("joined" if words is None else "the configuration differs", line)
                if words is not None:
                    self.assertIn(words, line)
                    self.assertIn(router, line)
            finally:
                process.kill()
                process.communicate()
        with open(os.path.join(served.folder.name, "logs", "router.log"), encoding="utf-8") as file:
            log = file.read()
        self.assertIn(f"{router}, {ways[0][1]}", log)
        self.assertEqual(served.stop(), 0, served.stderr())


if __name__ == "__main__":
    unittest.main()
