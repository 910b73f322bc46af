# SPDX-License-Identifier: Apache-2.0
"""A model whose attention is not causal, over attention ranks: the bits of one process, also after
a rank was lost; and what is refused."""
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import unittest
import urllib.request

import programs
import serve_test

SPAN = 32  # the smallest: the prompt has fourteen
PROMPT = "".join(f"line {number}: {number * number % 97}. " for number in range(31))
MAX_TOKENS = 60
MANY_TOKENS = 900  # a rank is killed while they are generated
CLUSTERS = (("shm", 2, "ring-pass-kv"), ("grpc", 3, "ring-pass-q"), ("grpc", 2, "all-gather"),
            ("shm", 3, "ulysses"), ("shm", 4, "2d"))
TOLERANCE = 0.1  # of a logarithm of a probability


def generated_tokens(router):
    with urllib.request.urlopen(router["metrics"], timeout=programs.TIMEOUT_SECONDS) as answer:
        page = answer.read().decode()
    return float(re.search(r"^moebius_generated_tokens_total (\S+)$", page, re.M)[1])


def make(folder):
    subprocess.run([programs.MOEBIUS, "model", "make", "--family", "qwen3_moe", "--layers", "3",
                    "--positions", "2048", "--out", folder, "--quiet"], check=True,
                   stdout=subprocess.DEVNULL, timeout=programs.TIMEOUT_SECONDS)
    programs.change_json(folder, "moebius.json", {"span": SPAN})


class WholePromptsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = os.path.join(cls.folder.name, "model")
        cls.causal_model = os.path.join(cls.folder.name, "causal")
        make(cls.model)
        make(cls.causal_model)
        programs.change_json(cls.model, "config.json", {"is_causal": False})
        cls.causal = cls.generate("--model", cls.causal_model)
        cls.alone = cls.generate("--model", cls.model)
        assert cls.alone["logits_hash"] != cls.causal["logits_hash"], "the mask hides nothing"
        assert cls.alone["config_hash"] != cls.causal["config_hash"]

    @staticmethod
    def line(*flags, prompt=PROMPT, max_tokens=MAX_TOKENS):
        return [programs.MOEBIUS, "generate", *flags, "--prompt", prompt, "--max-tokens",
                str(max_tokens), "--temperature", "0", "--ignore-eos", "--logprobs", "1", "--json"]

    @classmethod
    def generate(cls, *flags, max_tokens=MAX_TOKENS):
        done = programs.run(*cls.line(*flags, max_tokens=max_tokens))
        assert done.code == 0, str(done)
        return done.json()

    def serve(self, transport, ranks, method, *flags):
        served = serve_test.Served("--transport", transport, "--attention", str(ranks),
                                   "--attention-method", method, *flags, model=self.model)
        self.addCleanup(served.close)
        ready = served.event()
        self.assertEqual(ready["event"], "ready", ready)
        return served, ready

    def assert_same(self, answer, alone=None):
        for field in ("prompt_tokens", "token_ids", "logits_hash", "config_hash"):
            self.assertEqual(answer[field], (alone or self.alone)[field], field)
        self.assertTrue(answer["exactness"]["exact"])

    def test_every_method_gives_the_bits_of_one_process(self):
        for transport, ranks, method in CLUSTERS:
            with self.subTest(f"{method} over {ranks} ranks, {transport}"):
                served, ready = self.serve(transport, ranks, method)
                answer = self.generate("--router", ready["router"])
                self.assert_same(answer)
                self.assertEqual(answer["timing"]["attention_methods"], [method])
                self.assertEqual(answer["timing"]["prefill_steps"], 1)
                self.assertEqual(served.stop(), 0, served.stderr())

    # Several at once share steps, and none of them is cut or sees another.
    def test_answers_in_company_have_the_bits_of_one_alone(self):
        served, ready = self.serve("shm", 3, "ring-pass-kv")
        answers = []
        threads = [threading.Thread(
            target=lambda: answers.append(self.generate("--router", ready["router"])))
                   for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(answers), len(threads))
        for answer in answers:
            self.assert_same(answer)
        self.assertEqual(served.stop(), 0, served.stderr())

    # What it had is read again: the whole prompt in one step, what was generated behind it.
    def test_a_rank_killed_while_tokens_are_generated_changes_no_bit(self):
        alone = self.generate("--model", self.model, max_tokens=MANY_TOKENS)
        for transport, method in (("grpc", "ring-pass-kv"), ("shm", "ring-pass-q")):
            with self.subTest(method):
                served, ready = self.serve(transport, 4, method, "--restart")
                processes = {p["name"]: p for p in ready["processes"]}
                answer = subprocess.Popen(
                    self.line("--router", ready["router"], max_tokens=MANY_TOKENS),
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                programs.expect_soon(lambda: generated_tokens(processes["router"]) >= 3,
                                     programs.TIMEOUT_SECONDS)
                os.kill(processes["attention-1"]["pid"], signal.SIGKILL)
                out, err = answer.communicate(timeout=programs.TIMEOUT_SECONDS)
                self.assertEqual(answer.returncode, 0, err.decode())
                answer = json.loads(out)
                self.assert_same(answer, alone)
                self.assertGreater(answer["timing"]["prefill_steps"], 1)  # it was read again
                self.assertEqual(served.event()["name"], "attention-1")
                self.doCleanups()  # one cluster at a time

    def test_the_per_degree_sum_is_near_it_and_repeats_its_bits(self):
        for method, layout in (("ring-pass-kv", "zigzag"), ("ring-pass-q", "contiguous"),
                               ("ring-pass-kv", "striped")):
            with self.subTest(f"{method}, {layout}"):
                served, ready = self.serve("shm", 3, method, "--attention-sum", "per-degree",
                                           "--attention-layout", layout)
                answer = self.generate("--router", ready["router"])
                self.assertFalse(answer["exactness"]["exact"])
                self.assertAlmostEqual(answer["logprobs"][0]["logprob"],
                                       self.alone["logprobs"][0]["logprob"], delta=TOLERANCE)
                again = self.generate("--router", ready["router"])
                self.assertEqual(again["logits_hash"], answer["logits_hash"])
                self.assertEqual(served.stop(), 0, served.stderr())

    def test_a_prompt_that_no_step_holds_is_refused_with_the_limit(self):
        served, ready = self.serve("shm", 2, "ring-pass-kv", "--chunk", "64")
        done = programs.run(*self.line("--router", ready["router"]))
        self.assertEqual(done.code, 1, str(done))
        self.assertRegex(done.err, r"the prompt has \d+ tokens and goes in one step")
        self.assertIn("a step holds 64", done.err)
        done = programs.run(*self.line("--router", ready["router"], prompt="short", max_tokens=4))
        self.assertEqual(done.code, 0, str(done))
        self.assertEqual(served.stop(), 0, served.stderr())

    # One process has no other use for a bound: it takes every prompt that the model takes.
    def test_a_prompt_of_many_rows_goes_in_one_step(self):
        line = dict(prompt=3 * PROMPT, max_tokens=4)
        alone = programs.run(*self.line("--model", self.model, **line))
        self.assertEqual(alone.code, 0, str(alone))
        self.assertGreater(alone.json()["prompt_tokens"], 1024)
        self.assertEqual(alone.json()["timing"]["prefill_steps"], 1)
        served, ready = self.serve("shm", 2, "ring-pass-kv", "--row-budget", "2048")
        done = programs.run(*self.line("--router", ready["router"], **line))
        self.assertEqual(done.code, 0, str(done))
        self.assert_same(done.json(), alone.json())
        self.assertEqual(served.stop(), 0, served.stderr())

    def test_a_rank_of_another_mask_is_refused(self):
        served, ready = self.serve("grpc", 2, "ring-pass-kv")
        done = programs.run(os.path.join(programs.PROGRAMS, "moebius-attention"), "--model",
                            self.causal_model, "--join", ready["join"], "--http-listen",
                            "127.0.0.1:0", "--kv-budget", "8MiB")
        self.assertEqual(done.code, 3, str(done))
        self.assertIn("the configuration differs", done.err)
        self.assertIn(self.alone["config_hash"], done.err)
        self.assertIn(self.causal["config_hash"], done.err)
        self.assertEqual(served.stop(), 0, served.stderr())

    def test_a_window_of_such_a_model_is_refused_by_name(self):
        folder = os.path.join(self.folder.name, "window")
        make(folder)
        programs.change_json(folder, "config.json", {"use_bidirectional_attention": True,
                                       "use_sliding_window": True, "sliding_window": 50})
        done = programs.run(*self.line("--model", folder, max_tokens=1))
        self.assertNotEqual(done.code, 0)
        self.assertIn("use_bidirectional_attention is true and sliding_window is on", done.err)


if __name__ == "__main__":
    unittest.main()
