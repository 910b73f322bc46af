# SPDX-License-Identifier: Apache-2.0
"""A prompt of 15,000 tokens over four attention ranks: the bits of one, a quarter of the keys."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request

import programs

READY_SECONDS = 180
ANSWER_SECONDS = 600
PROMPT_BYTES = 14999  # and the BOS token
SPAN = 128            # of models/demo, as is its KV block
NUM_RANKS = 4


def write_prompt(folder):
    texts = os.path.join(programs.DEMO, "texts")
    text = b""
    for name in sorted(os.listdir(texts)):
        with open(os.path.join(texts, name), "rb") as file:
            text += file.read()
    path = os.path.join(folder, "prompt.txt")
    with open(path, "wb") as file:
        file.write((text * (PROMPT_BYTES // len(text) + 1))[:PROMPT_BYTES])
    return path


class LongPromptTest(unittest.TestCase):
    def serve(self, *flags):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        served = subprocess.Popen(
            [programs.MOEBIUS, "serve", "--model", programs.DEMO, "--json", "--log-dir",
             os.path.join(folder.name, "logs"), "--attention", str(NUM_RANKS), *flags],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        self.addCleanup(served.stdout.close)
        self.addCleanup(served.wait)
        self.addCleanup(served.send_signal, signal.SIGINT)
        readable, _, _ = select.select([served.stdout], [], [], READY_SECONDS)
        self.assertTrue(readable, "not ready in time")
        ready = json.loads(served.stdout.readline())
        self.assertEqual(ready["event"], "ready", ready)
        return ready

    def blocks_in_use(self, ready):
        blocks = []
        for process in ready["processes"]:
            if process["role"] != "attention":
                continue
            with urllib.request.urlopen(process["metrics"], timeout=30) as answer:
                page = answer.read().decode()
            blocks.append(int(float(
                re.search(r"^moebius_kv_blocks_in_use(?:{[^}]*})? (\S+)$", page, re.M)[1])))
        return blocks

    def test_gives_the_bits_of_one_rank_and_a_quarter_of_the_keys_to_each(self):
        with tempfile.TemporaryDirectory() as folder:
            prompt = write_prompt(folder)
            flags = ["--prompt-file", prompt, "--max-tokens", "4", "--temperature", "0", "--json"]
            alone = programs.run(programs.MOEBIUS, "generate", "--model", programs.DEMO, *flags)
            self.assertEqual(alone.code, 0, alone)
            ready = self.serve("--attention-method", "ring-pass-kv")
            shared = programs.run(programs.MOEBIUS, "generate", "--router", ready["router"], *flags)
            self.assertEqual(shared.code, 0, shared)
            for field in ("prompt_tokens", "token_ids", "logits_hash", "config_hash"):
                self.assertEqual(shared.json()[field], alone.json()[field], field)
            self.assertEqual(shared.json()["prompt_tokens"], PROMPT_BYTES + 1)
            self.assertEqual(shared.json()["timing"]["attention_methods"], ["ring-pass-kv"])
            self.watch_keys_and_progress(ready, prompt)

    def test_every_method_over_grpc_and_shared_memory_gives_the_same_bits(self):
        with open(os.path.join(programs.DEMO, "expected.json"), encoding="utf-8") as file:
            case = next(c for c in json.load(file)["cases"] if "prompt_file" in c)
        for transport, method in (("grpc", "all-gather"), ("shm", "ring-pass-q"),
                                  ("shm", "ulysses"), ("grpc", "2d")):
            ready = self.serve("--attention-method", method, "--transport", transport)
            done = programs.run(
                programs.MOEBIUS, "generate", "--router", ready["router"], "--json",
                "--prompt-file", os.path.join(programs.DEMO, case["prompt_file"]),
                "--max-tokens", str(case["max_tokens"]), "--temperature", str(case["temperature"]),
                "--seed", str(case["seed"]))
            self.assertEqual(done.code, 0, done)
            self.assertEqual(done.json()["logits_hash"], case["logits_hash"], method)
            self.assertEqual(done.json()["timing"]["attention_methods"], [method])
            self.doCleanups()  # one cluster at a time

    # On a terminal, long enough an answer that the keys can be looked at.
    def watch_keys_and_progress(self, ready, prompt):
        spans = -(-(PROMPT_BYTES + 1) // SPAN)
        end = time.monotonic() + ANSWER_SECONDS
        while sum(self.blocks_in_use(ready)) > 0:  # of the answer before
            self.assertLess(time.monotonic(), end)
        reader, writer = pty.openpty()
        client = subprocess.Popen(
            [programs.MOEBIUS, "generate", "--router", ready["router"], "--prompt-file", prompt,
             "--max-tokens", "1000", "--ignore-eos"],
            stdout=subprocess.DEVNULL, stderr=writer, stdin=subprocess.DEVNULL,
            env=dict(os.environ, TERM="xterm"))
        os.close(writer)
        shown = b""
        blocks = []
        try:
            while time.monotonic() < end and sum(blocks) < spans:
                while select.select([reader], [], [], 0.05)[0]:
                    shown += os.read(reader, 65536)
                blocks = self.blocks_in_use(ready)
        finally:
            client.send_signal(signal.SIGINT)
            client.wait()
            os.close(reader)
        self.assertGreaterEqual(sum(blocks), spans, "the prompt was not read in time")
        for rank, count in enumerate(blocks):
            self.assertLessEqual(abs(count - sum(blocks) / NUM_RANKS), 1, (rank, blocks))
        text = shown.decode("utf-8", "replace")
        self.assertIn("reading the prompt", text)
        self.assertIn("of 15,000", text)


if __name__ == "__main__":
    unittest.main()
