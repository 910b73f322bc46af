# SPDX-License-Identifier: Apache-2.0
"""A model whose layers see a window of keys, over attention ranks: the bits of one process."""
import os
import subprocess
import tempfile
import unittest

import programs
import serve_test

WINDOW = 50  # reaches over one or two spans
SPAN = 32    # the smallest
# The first layer has no window, so that a step has rounds of both kinds.
WINDOWS = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
PROMPT = "".join(f"line {number}: {number * number % 97} and so on. " for number in range(28))
CLUSTERS = (("shm", 2, "ring-pass-kv"), ("grpc", 3, "ring-pass-q"), ("grpc", 2, "all-gather"),
            ("shm", 3, "ulysses"), ("shm", 4, "2d"))
TOLERANCE = 0.1  # of a logarithm of a probability


class WindowsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = os.path.join(cls.folder.name, "model")
        subprocess.run([programs.MOEBIUS, "model", "make", "--family", "qwen3_moe", "--layers", "3",
                        "--positions", "2048", "--out", cls.model, "--quiet"], check=True,
                       stdout=subprocess.DEVNULL, timeout=programs.TIMEOUT_SECONDS)
        programs.change_json(cls.model, "moebius.json", {"span": SPAN})
        without = cls.generate("--model", cls.model)
        programs.change_json(cls.model, "config.json", WINDOWS)
        cls.alone = cls.generate("--model", cls.model)
        assert cls.alone["logits_hash"] != without["logits_hash"], "the window hides nothing"

    @classmethod
    def generate(cls, *flags):
        done = programs.run(programs.MOEBIUS, "generate", *flags, "--prompt", PROMPT,
                            "--max-tokens", "40", "--temperature", "0", "--ignore-eos",
                            "--logprobs", "1", "--json")
        assert done.code == 0, str(done)
        return done.json()

    def serve(self, transport, ranks, method, *flags):
        served = serve_test.Served("--transport", transport, "--attention", str(ranks),
                                   "--attention-method", method, "--chunk", "256", *flags,
                                   model=self.model)
        self.addCleanup(served.close)
        ready = served.event()
        self.assertEqual(ready["event"], "ready", ready)
        return served, ready["router"]

    def test_every_method_gives_the_bits_of_one_process(self):
        for transport, ranks, method in CLUSTERS:
            with self.subTest(f"{method} over {ranks} ranks, {transport}"):
                served, router = self.serve(transport, ranks, method)
                answer = self.generate("--router", router)
                for field in ("prompt_tokens", "token_ids", "logits_hash", "config_hash"):
                    self.assertEqual(answer[field], self.alone[field], field)
                self.assertTrue(answer["exactness"]["exact"])
                self.assertEqual(answer["timing"]["attention_methods"], [method])
                self.assertEqual(served.stop(), 0, served.stderr())

    def test_the_per_degree_sum_is_near_it_and_repeats_its_bits(self):
        served, router = self.serve("shm", 3, "ring-pass-kv", "--attention-sum", "per-degree")
        answer = self.generate("--router", router)
        self.assertFalse(answer["exactness"]["exact"])
        first, expected = answer["logprobs"][0], self.alone["logprobs"][0]
        self.assertAlmostEqual(first["logprob"], expected["logprob"], delta=TOLERANCE)
        self.assertEqual(self.generate("--router", router)["logits_hash"], answer["logits_hash"])
        self.assertEqual(served.stop(), 0, served.stderr())


if __name__ == "__main__":
    unittest.main()
