# SPDX-License-Identifier: Apache-2.0
"""Every method of the per-degree sum under every layout but the default, with real processes: what
must be equal is."""
import subprocess
import tempfile
import unittest

import per_degree_test
import programs
import serve_test
import windows_test

NUM_RANKS = 4
SPAN = 64  # two key blocks: a unit of the prompt is not a stripe
METHODS = ("ring-pass-kv", "all-gather", "ring-pass-q", "ulysses", "2d")
PROMPT_TOKENS = 1100  # whole units of both layouts and a shorter one


class PerDegreeMethodsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.model = folder.name + "/model"
        subprocess.run([programs.MOEBIUS, "model", "make", "--family", "qwen3_moe", "--layers", "2",
                        "--positions", "2048", "--out", cls.model, "--quiet"], check=True,
                       stdout=subprocess.DEVNULL, timeout=programs.TIMEOUT_SECONDS)
        programs.change_json(cls.model, "moebius.json", {"span": SPAN})
        cls.alone = cls.generate("--model", cls.model)

    @classmethod
    def generate(cls, *flags):
        words = (f"{number} of {number * number % 97}. " for number in range(PROMPT_TOKENS))
        done = programs.run(programs.MOEBIUS, "generate", *flags, "--prompt",
                            "".join(words)[:PROMPT_TOKENS - 1], "--max-tokens", "20",
                            "--temperature", "0", "--ignore-eos", "--logprobs", "1", "--json")
        assert done.code == 0, str(done)
        return done.json()

    # The answer of a cluster of its own.
    def answer(self, layout, method, *flags):
        served = serve_test.Served("--attention", str(NUM_RANKS), "--attention-sum", "per-degree",
                                   "--attention-layout", layout, "--attention-method", method,
                                   *flags, model=self.model)
        try:
            ready = served.event()
            self.assertEqual(ready["event"], "ready", ready)
            answer = self.generate("--router", ready["router"])
            self.assertEqual(served.stop(), 0, served.stderr())
        finally:
            served.close()
        of = f"{method}, {layout}"
        self.assertEqual(answer["exactness"]["reasons"],
                         [per_degree_test.reason(NUM_RANKS, layout)], of)
        self.assertEqual(answer["timing"]["attention_methods"], [method])
        first, expected = answer["logprobs"][0], self.alone["logprobs"][0]
        self.assertAlmostEqual(first["logprob"], expected["logprob"],
                               delta=windows_test.TOLERANCE, msg=of)
        return answer

    # Neither the transport nor chunks change a bit. All-gather sums in the order of the ring, the
    # other methods each in an order of their own.
    def check(self, layout):
        bits = {}
        for method in METHODS:
            answer = self.answer(layout, method, "--transport", "shm")
            chunked = self.answer(layout, method, "--transport", "grpc", "--chunk", "192")
            for field in ("prompt_tokens", "token_ids", "logits_hash", "config_hash"):
                self.assertEqual(chunked[field], answer[field], f"{field}: {method}, {layout}")
            bits[method] = answer["logits_hash"]
        self.assertEqual(bits["all-gather"], bits["ring-pass-kv"], layout)
        self.assertEqual(len(set(bits.values()) | {self.alone["logits_hash"]}), len(METHODS), bits)

    def test_contiguous(self):
        self.check("contiguous")

    def test_striped(self):
        self.check("striped")


if __name__ == "__main__":
    unittest.main()
