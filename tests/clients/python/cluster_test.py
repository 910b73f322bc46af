# SPDX-License-Identifier: Apache-2.0
"""The Python client against the programs: a cluster of `moebius serve` with the demo model."""
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import environment

environment.enter()

# The client is there from here on.
# pylint: disable=wrong-import-position
import moebius  # noqa: E402
import numpy as np  # noqa: E402

MOEBIUS = os.path.join(os.environ["MOEBIUS_PROGRAM_DIR"], "moebius")
DEMO = os.path.join(environment.SOURCE, "models", "demo")
START_SECONDS = 120
LIMIT_SECONDS = 60


def load_case(name):
    with open(os.path.join(DEMO, "expected.json"), encoding="utf-8") as file:
        return next(case for case in json.load(file)["cases"] if case["name"] == name)


def read_examples(folder):
    """The Python blocks of a folder's README."""
    with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
        return re.findall(r"^```python\n(.*?)^```", file.read(), re.DOTALL | re.MULTILINE)


class Cluster:
    """`moebius serve` until the block ends."""

    def __init__(self, folder):
        self._log = open(os.path.join(folder, "serve.txt"), "w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [MOEBIUS, "serve", "--model", DEMO, "--experts", "2", "--attention", "1", "--threads",
             "1", "--log-dir", folder, "--json"],
            stdout=subprocess.PIPE, stderr=self._log, stdin=subprocess.DEVNULL, text=True)

    def __enter__(self):
        # A cluster that never gets ready ends here, and so does the wait for its line.
        limit = threading.Timer(START_SECONDS, self._process.kill)
        limit.start()
        line = self._process.stdout.readline()
        limit.cancel()
        if not line:
            self._log.seek(0)
            raise AssertionError(f"no cluster within {START_SECONDS} s:\n{self._log.read()}")
        self.target = json.loads(line)["router"]
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.communicate(timeout=LIMIT_SECONDS)
        finally:
            self._process.kill()
            self._log.close()


class ClusterTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.cluster = cls.enterClassContext(Cluster(folder))
        cls.client = cls.enterClassContext(moebius.Client(cls.cluster.target))
        cls.client.wait_until_ready(LIMIT_SECONDS)
        cls.model = cls.client.model_info()

    def wait_for(self, condition):
        limit = time.monotonic() + LIMIT_SECONDS
        while not condition():
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.02)

    def load_at_rest(self):
        """The load when no step runs: one may go on a little after its request has ended."""
        self.wait_for(lambda: self.client.server_info().running_requests == 0)
        return self.client.expert_load()

    def request(self, name, **changes):
        case = load_case(name)
        return moebius.GenerateRequest(**{
            "token_ids": self.model.encode(case["prompt"]), "max_tokens": case["max_tokens"],
            "temperature": case["temperature"], "top_p": case["top_p"], "seed": case["seed"],
            **changes})

    def test_answers_have_the_recorded_bits(self):
        for name in ("greedy", "sampled"):
            case, answer = load_case(name), self.client.generate(self.request(name))
            self.assertEqual(list(answer.token_ids), case["token_ids"])
            self.assertEqual(answer.logits_hash, case["logits_hash"])
            self.assertTrue(answer.exactness.exact, answer.exactness)
            self.assertEqual(answer.seed, case["seed"])
            self.assertEqual(answer.config_hash, self.model.config_hash)

    def test_the_chunks_of_a_stream_are_the_answer(self):
        with self.client.generate_stream(self.request("greedy", logprobs=2)) as stream:
            chunks = list(stream)
        tokens = [token for chunk in chunks for token in chunk.token_ids]
        self.assertEqual(tokens, load_case("greedy")["token_ids"])
        self.assertGreater(len(chunks), 2)
        answer = stream.answer()
        self.assertEqual(len(answer.logprobs), len(tokens))
        for position, token in zip(answer.logprobs, tokens):
            self.assertEqual(position.chosen.token_id, token)
            self.assertEqual(position.top[0], position.chosen)

    def test_the_router_names_what_it_refuses(self):
        with self.assertRaises(moebius.InvalidArgumentError) as caught:
            self.client.generate(moebius.GenerateRequest([1, self.model.vocab_size]))
        self.assertIn(str(self.model.vocab_size), caught.exception.message)
        self.assertFalse(caught.exception.retryable)
        for wrong in ({"temperature": -1.0}, {"max_tokens": 0}, {"token_ids": []}, {"top_p": 1.5}):
            with self.subTest(wrong), self.assertRaises(moebius.InvalidArgumentError):
                self.client.generate(self.request("greedy", **wrong))
        with self.assertRaises(moebius.FailedPreconditionError):
            self.client.generate(self.request("greedy", config_hash="0123456789abcdef"))

    def test_an_id_runs_once_and_can_be_explained(self):
        request = self.request("greedy", request_id="python-once", max_tokens=2)
        answer = self.client.generate(request)
        explanation = self.client.explain("python-once")
        self.assertEqual(explanation.state, moebius.RequestState.FINISHED)
        self.assertEqual(explanation.last.logits_hash, answer.logits_hash)
        with self.assertRaises(moebius.AlreadyExistsError):
            self.client.generate(request)
        with self.assertRaises(moebius.NotFoundError):
            self.client.explain("python-never")

    def test_leaving_a_stream_frees_the_router(self):
        request = self.request("greedy", max_tokens=10_000, ignore_eos=True,
                               request_id="python-left")
        with self.client.generate_stream(request) as stream:
            next(chunk for chunk in stream if chunk.token_ids)
        self.wait_for(lambda: self.client.server_info().running_requests == 0)
        explanation = self.client.explain("python-left")
        self.assertLess(explanation.last.completion_tokens, 10_000)

    def test_a_deadline_ends_an_answer(self):
        request = self.request("greedy", max_tokens=10_000, ignore_eos=True, deadline_seconds=0.3)
        with self.assertRaises(moebius.DeadlineExceededError):
            self.client.generate(request)

    def test_rows_have_the_same_bits_alone_and_together(self):
        layer = self.model.moe_layers[0]
        rows = np.random.default_rng(5).standard_normal((5, self.model.hidden_size), np.float32)
        together = self.client.forward(layer, rows, config_hash=self.model.config_hash)
        self.assertTrue(together.exactness.exact)
        self.assertEqual(together.assignments, 5 * self.model.top_k)
        self.assertTrue(np.isfinite(moebius.from_bf16(together.rows)).all())
        for index in range(5):
            alone = self.client.forward(layer, moebius.to_bf16(rows[index:index + 1]))
            np.testing.assert_array_equal(alone.rows, together.rows[index:index + 1])

    def test_the_limit_of_rows_is_reached_and_not_passed(self):
        limits = {limit.name: limit for limit in self.client.server_info().limits}
        most, layer = limits["max_forward_rows"].value, self.model.moe_layers[0]
        rows = np.zeros((most + 1, self.model.hidden_size), np.uint16)
        self.assertEqual(self.client.forward(layer, rows[1:]).num_rows, most)
        with self.assertRaisesRegex(moebius.ResourceExhaustedError, str(most)):
            self.client.forward(layer, rows)

    def test_a_route_counts_what_its_tokens_chose(self):
        ids, layer = self.model.encode("And the king"), self.model.moe_layers[1]
        before = self.load_at_rest()
        route = self.client.route(ids, layer)
        self.assertEqual(route.expert_ids.shape, (len(ids), self.model.top_k))
        self.assertEqual(route.weights.shape, route.expert_ids.shape)
        counts = np.bincount(route.expert_ids.ravel(), minlength=self.model.num_experts)
        np.testing.assert_array_equal(route.load, counts)
        self.assertEqual(len(route.services), 2)
        self.assertEqual(len(self.client.route(ids, layer, num_services=4).services), 4)
        np.testing.assert_array_equal(self.client.expert_load().demand, before.demand)

    def test_the_load_of_experts_grows_by_the_rows_of_an_answer(self):
        before = self.load_at_rest()
        answer = self.client.generate(self.request("greedy", max_tokens=4))
        grown = self.client.expert_load().demand - before.demand
        self.assertEqual(before.layer_ids, self.model.moe_layers)
        # The last token of an answer is never computed.
        rows = answer.prompt_tokens + answer.completion_tokens - 1
        self.assertEqual(set(grown.sum(axis=1)), {rows * self.model.top_k})

    def test_a_ready_router_says_so(self):
        self.assertTrue(self.client.health())
        self.assertTrue(self.client.health("liveness"))
        info = self.client.server_info()
        self.assertTrue(info.ready, info.missing)
        self.assertEqual({service.role for service in info.services},
                         {"router", "expert", "attention"})

    def run_examples(self, folder, count):
        """What the examples of a README print."""
        examples = read_examples(folder)
        self.assertEqual(len(examples), count)
        out = io.StringIO()
        for example in examples:
            self.assertIn("127.0.0.1:7000", example)
            with contextlib.redirect_stdout(out):
                exec(example.replace("127.0.0.1:7000", self.cluster.target), {})
        return out.getvalue()

    def test_the_examples_of_the_documents_run(self):
        for folder, count in ((environment.CLIENT, 2), (environment.SOURCE, 1)):
            printed = self.run_examples(folder, count)
            self.assertIn("The king said unto them", printed)
            self.assertIn(load_case("greedy")["logits_hash"], printed)


if __name__ == "__main__":
    unittest.main()
