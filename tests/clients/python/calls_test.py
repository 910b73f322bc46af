# SPDX-License-Identifier: Apache-2.0
"""The Python client's calls, against a server whose answers the tests write."""
import threading
import time
import unittest

import environment

environment.enter()

# The client is there from here on.
# pylint: disable=wrong-import-position
import grpc  # noqa: E402
import moebius  # noqa: E402
import numpy as np  # noqa: E402
from fake_router import CallTest, Detail, fail, message  # noqa: E402

# A wait that ends by itself when a test is right.
LIMIT_SECONDS = 30


def chunk(ids=(), finish="FINISH_REASON_NONE", **fields):
    if finish != "FINISH_REASON_NONE":
        fields = {"exactness": {"exact": True}, "timing": {}, **fields}
    return message("Generate", token_ids=ids, finish_reason=finish, request_id="r1", **fields)


def answering(*chunks):
    return lambda request, context: iter(chunks)


class GenerateTest(CallTest):
    def test_a_whole_answer_has_the_tokens_of_all_chunks_and_the_rest_of_the_last(self):
        logprobs = [{"chosen": {"token_id": 7, "logprob": -0.5},
                     "top": [{"token_id": 8, "logprob": -0.25}]}]
        missing = {"exact": False, "missing_experts": [{"layer": 2, "expert": 9}], "reasons": ["x"]}
        client = self.router(Generate=answering(
            chunk(prompt_tokens=3), chunk([7], logprobs=logprobs), chunk([4, 5], logprobs=2 * logprobs),
            chunk([6], "FINISH_REASON_STOP", logprobs=logprobs, matched_stop="eos 6",
                  completion_tokens=4, sampling={"seed": 2**64 - 1}, exactness=missing,
                  timing={"figures": {"resends": 3}}, logits_hash="00f0", tokens_hash="0a")))
        answer = client.generate(moebius.GenerateRequest([1, 2, 3]))
        self.assertEqual((answer.token_ids, answer.completion_tokens), ((7, 4, 5, 6), 4))
        self.assertEqual((answer.finish_reason, answer.matched_stop), ("stop", "eos 6"))
        self.assertEqual((answer.seed, answer.logits_hash, answer.tokens_hash),
                         (2**64 - 1, "00f0", "0a"))
        self.assertEqual(answer.exactness.missing_experts, (moebius.LayerExpert(2, 9),))
        self.assertEqual(answer.exactness.reasons, ("x",))
        self.assertEqual(answer.timing.figures.resends, 3)
        self.assertEqual(len(answer.logprobs), 4)
        self.assertEqual(answer.logprobs[0].top, (moebius.RankedToken(8, -0.25),))

    def test_chunks_come_as_they_are_sent(self):
        seen = threading.Event()

        def generate(request, context):
            yield chunk([request.token_ids[0]])
            self.assertTrue(seen.wait(LIMIT_SECONDS))
            yield chunk([2], "FINISH_REASON_LENGTH")

        client = self.router(Generate=generate)
        with client.generate_stream(moebius.GenerateRequest(np.array([1]))) as stream:
            first = next(stream)
            self.assertEqual((first.token_ids, first.finish_reason, first.exactness),
                             ((1,), moebius.FinishReason.NONE, None))
            seen.set()
            self.assertEqual([later.token_ids for later in stream], [(2,)])
            self.assertEqual(stream.answer().token_ids, (1, 2))

    def cancelled(self, leave):
        """Whether the router hears that a caller has gone who leaves so behind a first chunk."""
        gone = threading.Event()

        def generate(request, context):
            context.add_callback(gone.set)
            yield chunk([1])
            gone.wait(LIMIT_SECONDS)

        client = self.router(Generate=generate)
        leave(client.generate_stream(moebius.GenerateRequest([1])))
        return gone.wait(LIMIT_SECONDS)

    def test_leaving_the_block_ends_the_request_at_the_router(self):
        def leave(stream):
            with stream:
                next(stream)

        self.assertTrue(self.cancelled(leave))

    def test_an_exception_in_the_block_ends_it_and_passes(self):
        def leave(stream):
            with self.assertRaises(KeyboardInterrupt), stream:
                next(stream)
                raise KeyboardInterrupt

        self.assertTrue(self.cancelled(leave))

    def test_dropping_the_stream_ends_it(self):
        self.assertTrue(self.cancelled(next))

    def test_cancel_ends_a_wait_of_another_thread(self):
        def leave(stream):
            next(stream)
            canceller = threading.Thread(target=stream.cancel)
            canceller.start()
            with self.assertRaises(moebius.CancelledError):
                next(stream)
            canceller.join()

        self.assertTrue(self.cancelled(leave))

    def test_the_deadline_goes_along_and_ends_the_call(self):
        asked, over = [], threading.Event()

        def generate(request, context):
            asked.append((request.deadline_ms, context.time_remaining()))
            context.add_callback(over.set)
            over.wait(LIMIT_SECONDS)
            yield chunk()

        client = self.router(Generate=generate)
        started = time.monotonic()
        with self.assertRaisesRegex(moebius.DeadlineExceededError, "no answer from 127.0.0.1"):
            client.generate(moebius.GenerateRequest([1], deadline_seconds=0.2))
        self.assertLess(time.monotonic() - started, 5)
        self.assertEqual(asked[0][0], 200)
        self.assertLess(asked[0][1], 1.3)  # the router's own word is waited for

    def test_the_key_goes_along_with_every_call(self):
        keys = []

        def note(context):
            keys.append(dict(context.invocation_metadata()).get("authorization"))

        def generate(request, context):
            note(context)
            yield chunk([1], "FINISH_REASON_LENGTH")

        def explain(request, context):
            note(context)
            return message("Explain", request_id="r1", state="REQUEST_STATE_FINISHED", last=chunk())

        client = self.router(Generate=generate, Explain=explain,
                             options=moebius.ClientOptions(api_key="moebius_abc"))
        client.generate(moebius.GenerateRequest([1]))
        client.explain("r1")
        self.assertEqual(keys, ["Bearer moebius_abc"] * 2)

    def test_a_trace_goes_along_with_the_call_that_belongs_to_it(self):
        traces = []

        def generate(request, context):
            traces.append(dict(context.invocation_metadata()).get("traceparent"))
            yield chunk([1], "FINISH_REASON_LENGTH")

        client = self.router(Generate=generate)
        traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        client.generate(moebius.GenerateRequest([1]), traceparent=traceparent)
        client.generate(moebius.GenerateRequest([1]))
        self.assertEqual(traces, [traceparent, None])

    def test_without_a_deadline_there_is_none(self):
        def generate(request, context):
            self.assertFalse(request.HasField("deadline_ms"))
            # gRPC's way to say so is a time beyond a century.
            self.assertGreater(context.time_remaining() or 1e10, 1e9)
            yield chunk([], "FINISH_REASON_LENGTH")

        self.router(Generate=generate).generate(moebius.GenerateRequest([1]))

    def test_a_failure_behind_chunks_is_raised_and_what_came_stays(self):
        def generate(request, context):
            yield chunk([3])
            fail(context, grpc.StatusCode.UNAVAILABLE, "draining",
                 Detail(code=14, message="draining", retryable=True).SerializeToString())

        stream = self.router(Generate=generate).generate_stream(moebius.GenerateRequest([1]))
        self.assertEqual(next(stream).token_ids, (3,))
        with self.assertRaisesRegex(moebius.UnavailableError, "^UNAVAILABLE: draining$"):
            next(stream)

    def test_streams_that_cannot_be_right_are_refused(self):
        for chunks, why in (([], "without a finish_reason"),
                            ([chunk([1])], "without a finish_reason"),
                            ([chunk(finish=0)], "finish_reason is 0"),
                            ([chunk(finish=77)], "finish_reason is 77"),
                            ([chunk([1, 2], logprobs=[{}])], "1 logprobs for 2 tokens"),
                            ([message("Generate", finish_reason=2)], "no exactness")):
            with self.subTest(why), self.assertRaisesRegex(moebius.InternalError, why):
                self.router(Generate=answering(*chunks)).generate(moebius.GenerateRequest([1]))


class ForwardTest(CallTest):
    def echo(self, request, context):
        return message("Forward", num_rows=request.num_rows, hidden_size=request.hidden_size,
                       rows=request.rows, assignments=request.layer, exactness={"exact": True})

    def test_rows_go_as_bf16_and_come_back_in_their_shape(self):
        client = self.router(Forward=self.echo)
        bits = np.arange(6 * 64, dtype=np.uint16).reshape(6, 64)
        answer = client.forward(3, bits)
        np.testing.assert_array_equal(answer.rows, bits)
        self.assertEqual((answer.assignments, answer.exactness.exact), (3, True))
        np.testing.assert_array_equal(client.forward(3, bits[::2, 1:].T).rows, bits[::2, 1:].T)
        floats = np.array([[1.0, -2.5]], dtype=np.float32)
        np.testing.assert_array_equal(moebius.from_bf16(client.forward(1, floats).rows), floats)
        self.assertEqual(client.forward(1, np.zeros((0, 8), np.uint16)).rows.shape, (0, 8))

    def test_rows_beyond_grpcs_own_limit_pass_both_ways(self):
        rows = np.ones((4097, 1024), dtype=np.uint16)  # 8 MiB and 2 KiB
        answer = self.router(Forward=self.echo).forward(1, rows)
        self.assertEqual(int(answer.rows.sum(dtype=np.int64)), 4097 * 1024)

    def test_what_are_no_rows_never_leaves(self):
        client = self.router(Forward=self.echo)
        with self.assertRaisesRegex(ValueError, "1-dimensional"):
            client.forward(1, np.zeros(4, np.uint16))
        with self.assertRaisesRegex(TypeError, "int32"):
            client.forward(1, np.zeros((1, 4), np.int32))

    def test_responses_of_another_shape_are_refused(self):
        for fields in ({"num_rows": 2, "hidden_size": 4, "rows": bytes(16)},
                       {"num_rows": 1, "hidden_size": 4, "rows": bytes(7)}):
            client = self.router(Forward=lambda *_, fields=fields: message("Forward", **fields))
            with self.assertRaises(moebius.InternalError):
                client.forward(1, np.zeros((1, 4), np.uint16))

    def test_the_time_of_a_call_is_the_clients_or_its_own(self):
        left = []

        def forward(request, context):
            left.append(context.time_remaining())
            return self.echo(request, context)

        client = self.router(Forward=forward, options=moebius.ClientOptions(timeout_seconds=500))
        client.forward(1, np.zeros((1, 4), np.uint16))
        client.forward(1, np.zeros((1, 4), np.uint16), timeout_seconds=50)
        # gRPC rounds up what it sends, to three digits.
        self.assertTrue(60 < left[0] <= 510 and 0 < left[1] <= 51, left)


class TablesTest(CallTest):
    ROUTE = {"layer": 2, "num_experts": 3, "top_k": 2, "token_ids": [5, 6], "load": [1, 2, 1],
             "expert_ids": [0, 1, 1, 2], "weights": [0.5, 0.25, 0.75, 0.125], "dropped": [0, 0, 0],
             "rerouted": [0, 1, 0], "services": [{"name": "expert-0", "experts": [0, 1, 2]}]}

    def test_a_route_is_arrays_of_tokens_by_experts(self):
        asked = []

        def route(request, context):
            asked.append(request)
            return message("Route", **self.ROUTE, closest_tie={"token_index": 1, "gap": 0.5})

        client = self.router(Route=route)
        answer = client.route([5, 6], 2, num_services=1)
        self.assertEqual(answer.expert_ids.tolist(), [[0, 1], [1, 2]])
        self.assertEqual(answer.weights.tolist(), [[0.5, 0.25], [0.75, 0.125]])
        self.assertEqual((answer.load.tolist(), answer.rerouted.tolist()), ([1, 2, 1], [0, 1, 0]))
        self.assertEqual(answer.services[0].experts, (0, 1, 2))
        self.assertEqual(answer.closest_tie.gap, 0.5)
        client.route([5, 6], 2)
        self.assertEqual([request.HasField("num_services") for request in asked], [True, False])

    def test_no_tie_is_none(self):
        client = self.router(Route=lambda *_: message("Route", **self.ROUTE))
        self.assertIsNone(client.route([5, 6], 2).closest_tie)

    def test_tables_with_missing_values_are_refused(self):
        for name in ("expert_ids", "weights", "load", "dropped", "rerouted"):
            fields = {**self.ROUTE, name: self.ROUTE[name][1:]}
            client = self.router(Route=lambda *_, fields=fields: message("Route", **fields))
            with self.subTest(name), self.assertRaisesRegex(moebius.InternalError, name):
                client.route([5, 6], 2)

    def test_expert_load_is_layers_by_experts(self):
        client = self.router(GetExpertLoad=lambda *_: message(
            "GetExpertLoad", layer_ids=[1, 4], num_experts=3, demand=[1, 2, 3, 4, 5, 6],
            dropped=[0, 0, 0, 0, 0, 7], active=[3, 2], has_capacity=True))
        load = client.expert_load()
        self.assertEqual((load.layer_ids, load.demand.tolist()), ((1, 4), [[1, 2, 3], [4, 5, 6]]))
        self.assertEqual(load.dropped[1, 2], 7)
        self.assertEqual((load.active, load.has_capacity), ((3, 2), True))

    def test_biases_and_placement_come_as_they_are(self):
        client = self.router(
            GetBias=lambda *_: message("GetBias", mode="shadow", version=12,
                                       layers=[{"layer": 3, "base": [0, 1], "bias": [0.5, 1]}]),
            GetPlacement=lambda *_: message(
                "GetPlacement", epoch=7, num_experts=1,
                services=[{"name": "expert-0", "state": "usable", "held_bytes": 10}],
                layers=[{"layer": 1, "has_experts": True, "ids": [{"services": [0], "served": [12]}]}]))
        bias = client.bias()
        self.assertEqual((bias.mode, bias.version), ("shadow", 12))
        self.assertEqual(bias.layers[0].bias, (0.5, 1.0))
        placement = client.placement()
        replicas = placement.layers[0].ids[0]
        self.assertEqual((replicas.services, replicas.served), ((0,), (12,)))
        self.assertEqual(placement.services[0].held_bytes, 10)

    def test_a_bytes_tokenizer_turns_text_into_ids_and_back(self):
        client = self.router(GetModelInfo=lambda *_: message(
            "GetModelInfo", tokenizer="bytes", bos_token_id=256, vocab_size=259))
        model = client.model_info()
        self.assertEqual(model.encode("ü!"), [256, 0xC3, 0xBC, ord("!")])
        self.assertEqual(model.decode([256, 0xC3, 0xBC, 257, ord("!")]), "ü!")

    def test_without_a_tokenizer_text_is_refused(self):
        model = self.router(GetModelInfo=lambda *_: message("GetModelInfo")).model_info()
        self.assertIsNone(model.bos_token_id)
        with self.assertRaisesRegex(ValueError, "token ids"):
            model.encode("x")

    def test_an_explanation_has_the_state_and_the_reason_of_a_failure(self):
        client = self.router(Explain=lambda request, _: message(
            "Explain", request_id=request.request_id, state="REQUEST_STATE_FAILED",
            failure={"code": 8, "message": "full", "hint": "later"}))
        explanation = client.explain("r7")
        self.assertEqual((explanation.request_id, explanation.state), ("r7", "failed"))
        self.assertEqual((explanation.failure.code, explanation.failure.hint),
                         ("RESOURCE_EXHAUSTED", "later"))
        self.assertIsNone(explanation.last)


if __name__ == "__main__":
    unittest.main()
