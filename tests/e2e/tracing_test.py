# SPDX-License-Identifier: Apache-2.0
"""Spans of a real cluster at a real collector: what a trace holds, who is traced, what it costs."""
import os
import time
import unittest

import programs
import trace_collector
from routing_test import Cluster

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
NOT_SAMPLED = f"00-{TRACE}-{CALLER}-00"
PHASES = ["attention", "gate", "dispatch", "forward", "combine"]
IDS = ("--prompt-ids", "256,65,110,100")
PATIENCE_SECONDS = 30


class TracingTest(unittest.TestCase):
    def collector(self):
        collector = trace_collector.Collector()
        self.addCleanup(collector.close)
        return collector

    def cluster(self, collector, *flags):
        cluster = Cluster(f"--trace-endpoint={collector.url()}", *flags)
        self.addCleanup(cluster.close)
        return cluster

    def roots(self, collector, count):
        """So many roots, once they are there with all that came before them."""
        def found():
            return [span for span in collector.spans() if span["name"] == "generate"]
        self.assertTrue(programs.wait_until(lambda: len(found()) >= count, PATIENCE_SECONDS))
        self.assertEqual(len(found()), count)
        return found()

    def check_nesting(self, spans):
        """Every parent but the caller's exists, has the same trace, and holds its children."""
        by_id = {span["spanId"]: span for span in spans}
        self.assertEqual(len(by_id), len(spans), "ids are distinct")
        for span in spans:
            begin, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
            self.assertLessEqual(begin, end)
            if span["name"] == "generate":
                continue
            parent = by_id[span["parentSpanId"]]
            self.assertEqual(span["traceId"], parent["traceId"])
            self.assertGreaterEqual(begin, int(parent["startTimeUnixNano"]), span)
            self.assertLessEqual(end, int(parent["endTimeUnixNano"]), span)

    def test_a_callers_trace_holds_every_part_of_its_answer_and_changes_no_bit(self):
        collector = self.collector()
        cluster = self.cluster(collector, "--trace-sample-ratio=0", "--log-format=json")
        case = programs.expected_case("short")
        begin = time.time_ns()
        done = programs.run(programs.MOEBIUS, "generate", "--router", cluster.grpc(),
                            *programs.flags_of_case(case), "--request-id", "traced",
                            "--traceparent", SAMPLED)
        end = time.time_ns()
        self.assertEqual(done.code, 0, done)
        answer = done.json()
        self.assertEqual(answer["logits_hash"], case["logits_hash"])
        root, = self.roots(collector, 1)
        spans = collector.spans()
        self.check_nesting(spans)

        self.assertEqual({span["traceId"] for span in spans}, {TRACE})
        self.assertEqual(root["parentSpanId"], CALLER)
        self.assertEqual(root["kind"], 2)
        self.assertEqual(root["status"], {})
        self.assertGreaterEqual(int(root["startTimeUnixNano"]), begin)
        self.assertLessEqual(int(root["endTimeUnixNano"]), end)
        facts = trace_collector.attributes(root)
        self.assertEqual(facts, {
            "moebius.request_id": "traced", "moebius.prompt_tokens": answer["prompt_tokens"],
            "moebius.completion_tokens": answer["completion_tokens"],
            "moebius.finish_reason": answer["finish_reason"], "moebius.status": "OK",
            "moebius.steps_without_phases": 0, "moebius.steps_left_out": 0})

        steps = [span for span in spans if span["name"] == "step"]
        self.assertEqual(len(steps), answer["timing"]["prefill_steps"]
                         + answer["timing"]["decode_steps"])
        self.assertEqual(len([span for span in spans if span["name"] == "admission"]), 1)
        model = cluster.command("model", "inspect", "--model", programs.DEMO, "--json").json()
        layers = range(len(model["config"]["layers"]))
        for step in steps:
            self.assertEqual(step["parentSpanId"], root["spanId"])
            children = sorted((span for span in spans if span.get("parentSpanId") == step["spanId"]),
                              key=lambda span: int(span["startTimeUnixNano"]))
            self.assertEqual([(trace_collector.attributes(child)["moebius.layer"], child["name"])
                              for child in children],
                             [(layer, phase) for layer in layers for phase in PHASES])
            # They are measured one after the other, and take most of what the step takes.
            for before, after in zip(children, children[1:]):
                self.assertLessEqual(int(before["endTimeUnixNano"]), int(after["startTimeUnixNano"]))
            self.assertGreater(sum(map(trace_collector.milliseconds, children)),
                               trace_collector.milliseconds(step) / 4)
        # What the phases took is what the answer's own figures say, and nothing was made up.
        for figure, phases in (("attention_seconds", ["attention"]), ("expert_seconds", ["forward"]),
                               ("gate_seconds", ["gate", "dispatch"]),
                               ("combine_seconds", ["combine"])):
            seconds = sum(trace_collector.milliseconds(span) for span in spans
                          if span["name"] in phases) / 1e3
            self.assertGreater(seconds, 0)
            self.assertLessEqual(seconds, answer["timing"][figure] * 1.001, figure)

        self.assertEqual(collector.resources[0]["service.name"], "moebius-router")
        self.assertTrue(programs.wait_until(
            lambda: cluster.metric("moebius_trace_spans_exported_total") == len(spans),
            PATIENCE_SECONDS))
        for reason in ("queue_full", "unreachable", "refused", "stopped"):
            self.assertEqual(
                cluster.metric(f'moebius_trace_spans_dropped_total{{reason="{reason}"}}'), 0)
        self.assertTrue(programs.wait_until(
            lambda: f'"request_id":"traced","trace_id":"{TRACE}"' in cluster.router.stderr(),
            PATIENCE_SECONDS))

    def test_the_ratio_decides_where_the_caller_does_not(self):
        collector = self.collector()
        cluster = self.cluster(collector, "--trace-sample-ratio=1")
        for _ in range(2):
            cluster.generate(*IDS, "--max-tokens", "3")
        cluster.generate(*IDS, "--max-tokens", "3", "--traceparent", NOT_SAMPLED)
        roots = self.roots(collector, 2)
        self.check_nesting(collector.spans())
        self.assertEqual(len({root["traceId"] for root in roots}), 2, "a trace of their own")
        self.assertFalse(any("parentSpanId" in root for root in roots))
        self.assertNotIn(TRACE, {root["traceId"] for root in roots})

    def test_a_ratio_of_zero_exports_nothing(self):
        collector = self.collector()
        cluster = self.cluster(collector, "--trace-sample-ratio=0")
        cluster.generate(*IDS, "--max-tokens", "3")
        cluster.generate(*IDS, "--max-tokens", "3", "--traceparent", NOT_SAMPLED)
        # A last call that is sampled: what was before it would have come by then.
        cluster.generate(*IDS, "--max-tokens", "1", "--traceparent", SAMPLED)
        self.roots(collector, 1)
        self.assertEqual({span["traceId"] for span in collector.spans()}, {TRACE})
        # Counted when the collector's answer is there, which is after it has the spans.
        self.assertTrue(programs.wait_until(
            lambda: cluster.metric("moebius_trace_spans_exported_total") == len(collector.spans()),
            PATIENCE_SECONDS))

    def test_callers_have_no_more_calls_traced_than_their_rate_allows(self):
        collector = self.collector()
        # One, and the next in a thousand seconds.
        cluster = self.cluster(collector, "--trace-sample-ratio=0", "--trace-caller-rate=0.001")
        for _ in range(4):
            answer = cluster.generate(*IDS, "--max-tokens", "1", "--traceparent", SAMPLED)
            self.assertTrue(answer["exactness"]["exact"])
        self.roots(collector, 1)
        self.assertEqual(cluster.metric("moebius_trace_calls_over_rate_total"), 3)

    def test_a_collector_that_is_gone_or_refuses_takes_nothing_from_an_answer(self):
        collector = self.collector()
        collector.code = 500
        cluster = self.cluster(collector, "--trace-sample-ratio=1")
        self.assertTrue(cluster.generate(*IDS, "--max-tokens", "3")["exactness"]["exact"])
        refused = 'moebius_trace_spans_dropped_total{reason="refused"}'
        self.assertTrue(programs.wait_until(lambda: cluster.metric(refused) > 0, PATIENCE_SECONDS))
        self.assertTrue(programs.wait_until(
            lambda: "trace spans were dropped" in cluster.router.stderr(), PATIENCE_SECONDS))
        collector.server.shutdown()
        collector.server.server_close()
        cluster.generate(*IDS, "--max-tokens", "3")
        gone = 'moebius_trace_spans_dropped_total{reason="unreachable"}'
        self.assertTrue(programs.wait_until(lambda: cluster.metric(gone) > 0, PATIENCE_SECONDS))

    def test_a_router_that_stops_sends_what_it_has(self):
        collector = self.collector()
        cluster = self.cluster(collector, "--trace-sample-ratio=1")
        cluster.generate(*IDS, "--max-tokens", "2")
        cluster.router.process.terminate()
        self.assertEqual(cluster.router.process.wait(PATIENCE_SECONDS), 0)
        self.assertEqual(len(self.roots(collector, 1)), 1)
        self.check_nesting(collector.spans())

    def test_settings_that_cannot_be_are_refused_by_name(self):
        for flag, value in (("--trace-endpoint", "https://collector:4318/v1/traces"),
                            ("--trace-endpoint", "collector"), ("--trace-sample-ratio", "1.5"),
                            ("--trace-sample-ratio", "nan"), ("--trace-sample-ratio", "often"),
                            ("--trace-caller-rate", "-1"), ("--trace-caller-rate", "nan"),
                            ("--trace-caller-rate", "1e7")):
            done = programs.run(os.path.join(programs.PROGRAMS, "moebius-router"), "--model",
                                programs.DEMO, f"{flag}={value}", "--check-config")
            self.assertNotEqual(done.code, 0, value)
            self.assertIn(flag, done.err)
        done = programs.run(programs.MOEBIUS, "generate", "--router", programs.NOBODY, *IDS,
                            "--traceparent", "00-0-0-01")
        self.assertEqual(done.code, 2, done)


if __name__ == "__main__":
    unittest.main()
