# SPDX-License-Identifier: Apache-2.0
"""Known traffic through a real cluster: every counter of the router against the count it must have."""
import json
import os
import re
import signal
import subprocess
import unittest

import programs
from routing_test import Cluster

# What depends on time, on the wire's own business, or on who looks: no traffic fixes these.
FREE = re.compile(
    r"^(process_|moebius_(transport_|http_|log_lines|step_phase_seconds|step_stall_seconds|"
    r"attention_exposed_wait|metrics_errors|peer_rtt|slow_steps)|.*_seconds_(bucket|sum)|.*_bucket\{|.*_sum\b)")
IDS = "256,65,110,100"
NUM_IDS = 4


def counters(cluster):
    """Every counter of the router: series and value. Histograms count with their `_count`."""
    text = programs.fetch(cluster.router.ports["http"], "/metrics")[1]
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    found = {}
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        series, value = line.rsplit(" ", 1)
        name = series.split("{")[0]
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        if kinds.get(name) == "counter" or kinds.get(base) == "histogram":
            if not FREE.match(series):
                found[series] = float(value)
    return found


class CountersTest(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        model = self.cluster.command("model", "inspect", "--model", programs.DEMO, "--json").json()
        kinds = model["config"]["layers"]
        self.moe_layers = [layer for layer, kind in enumerate(kinds) if kind == "m"]
        self.top_k = model["config"]["gate"]["top_k"]

    def quiet(self):
        """Waits until no request is under way, and what ended one is counted."""
        def is_quiet():
            return (self.cluster.metric("moebius_sessions_running") == 0
                    and self.cluster.metric("moebius_requests_queued") == 0
                    and self.cluster.metric('moebius_requests_in_flight{service="router",'
                                            'method="Generate"}') == 0)
        self.assertTrue(programs.wait_until(is_quiet, 30))

    def moved(self, act):
        """What `act` returns, and the counters that it moved: series and by how much."""
        self.quiet()
        before = counters(self.cluster)
        result = act()
        self.quiet()
        after = counters(self.cluster)
        self.assertGreaterEqual(set(after), set(before))
        by = {series: value - before.get(series, 0) for series, value in after.items()}
        return result, {series: value for series, value in by.items() if value != 0}

    def calls(self, **codes):
        """Ended calls by method and code: GetModelInfo_OK=1."""
        series = {}
        for name, count in codes.items():
            method, code = name.split("_", 1)
            series[f'moebius_requests_total{{service="router",method="{method}",code="{code}"}}'] = count
            key = f'moebius_request_duration_seconds_count{{service="router",method="{method}"}}'
            series[key] = series.get(key, 0) + count
        return series

    def steps(self, answer):
        """What the steps of one answer, alone on the router, must have counted."""
        timing = answer["timing"]
        steps = timing["prefill_steps"] + timing["decode_steps"]
        rows = answer["prompt_tokens"] + answer["completion_tokens"] - 1
        assignments = rows * len(self.moe_layers) * self.top_k
        self.assertEqual(timing["assignments"], assignments)
        return {
            "moebius_steps_total": steps,
            "moebius_step_rows_total": rows,
            'moebius_assignments_total{stage="routed"}': assignments,
            'moebius_assignments_total{stage="dispatched"}': assignments,
            'moebius_assignments_total{stage="combined"}': assignments,
            "moebius_dispatched_rows_total": timing["dispatched_rows"],
            "moebius_reply_rows_total": timing["reply_rows"],
            "moebius_prompt_tokens_total": answer["prompt_tokens"],
            "moebius_generated_tokens_total": answer["completion_tokens"],
            "moebius_time_to_first_token_seconds_count": 1,
            "moebius_inter_token_latency_seconds_count": answer["completion_tokens"] - 1,
            "moebius_queue_wait_seconds_count": 1,
        }

    def check_experts(self, moved, rows):
        """Takes the demand by layer and expert out of what has moved: rows × k in every layer."""
        by_layer = {}
        for series in [s for s in moved if s.startswith("moebius_expert_assignments_total{")]:
            layer = int(re.search(r'layer="(\d+)"', series).group(1))
            by_layer[layer] = by_layer.get(layer, 0) + moved.pop(series)
        self.assertEqual(by_layer, {layer: rows * self.top_k for layer in self.moe_layers})

    def test_an_answer_counts_its_tokens_rows_and_assignments_once(self):
        for length in (1, 9):
            answer, moved = self.moved(lambda: self.cluster.generate(
                "--prompt-ids", IDS, "--max-tokens", str(length), "--ignore-eos"))
            rows = NUM_IDS + length - 1
            self.check_experts(moved, rows)
            # The command asks what is served before it asks for the answer.
            expected = {**self.steps(answer), "moebius_requests_finished_total": 1,
                        **self.calls(Generate_OK=1, GetModelInfo_OK=1, GetServerInfo_OK=1)}
            if length == 1:
                del expected["moebius_inter_token_latency_seconds_count"]
            mismatches = answer["timing"].get("group_fill_mismatches", 0)
            moved.pop("moebius_gate_group_fill_mismatch_total", mismatches)
            self.assertEqual(moved, expected)

    def test_refused_requests_count_nothing_but_the_refusal(self):
        def refused(*flags):
            done = self.cluster.command("generate", "--router", self.cluster.grpc(), "--prompt-ids",
                                        IDS, *flags)
            self.assertNotEqual(done.code, 0, done)

        self.cluster.generate("--prompt-ids", IDS, "--max-tokens", "1", "--request-id", "used")
        for code, flags in (("ALREADY_EXISTS", ("--request-id", "used", "--max-tokens", "1")),
                            ("INVALID_ARGUMENT", ("--max-tokens", "100000000"))):
            _, moved = self.moved(lambda: refused(*flags))
            self.assertEqual(moved, {
                f'moebius_requests_rejected_total{{reason="{code.lower()}"}}': 1,
                **self.calls(**{f"Generate_{code}": 1}, GetModelInfo_OK=1, GetServerInfo_OK=1)})

    def test_a_cancelled_answer_is_counted_as_such_and_its_tokens_as_sampled(self):
        def cancel():
            with subprocess.Popen(
                    [programs.MOEBIUS, "generate", "--router", self.cluster.grpc(), "--prompt-ids",
                     IDS, "--ignore-eos", "--max-tokens", "4000", "--request-id", "left"],
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                process.stdout.read(1)
                os.kill(process.pid, signal.SIGKILL)
            self.quiet()
            return self.cluster.command("explain", "left", "--router", self.cluster.grpc(),
                                        "--json").json()

        explained, moved = self.moved(cancel)
        sampled = explained["completion_tokens"]
        self.assertGreater(sampled, 0)
        self.assertLess(sampled, 4000)
        self.assertEqual(moved["moebius_generated_tokens_total"], sampled)
        self.assertEqual(moved["moebius_prompt_tokens_total"], NUM_IDS)
        self.assertEqual(moved["moebius_requests_cancelled_total"], 1)
        self.assertNotIn("moebius_requests_finished_total", moved)
        # A step that was under way when the caller went may have computed one row more.
        rows = moved["moebius_step_rows_total"]
        self.assertIn(rows - (NUM_IDS + sampled - 1), (0, 1))
        self.check_experts(moved, rows)

    def test_an_answer_across_a_silent_replica_counts_its_rows_once_and_what_was_sent_again(self):
        def survive():
            with subprocess.Popen(
                    [programs.MOEBIUS, "generate", "--router", self.cluster.grpc(), "--json",
                     "--prompt-ids", IDS, "--ignore-eos", "--max-tokens", "1500"],
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                self.assertTrue(programs.wait_until(
                    lambda: self.cluster.metric("moebius_generated_tokens_total") > 20, 30))
                # Stopped, not killed: rows go there before anybody knows.
                os.kill(self.cluster.services[1].process.pid, signal.SIGSTOP)
                out, errors = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, errors)
            return json.loads(out)

        answer, moved = self.moved(survive)
        self.assertTrue(answer["exactness"]["exact"])
        timing = answer["timing"]
        self.assertGreater(timing["resends"], 0, "it was stopped when the answer was over")
        self.check_experts(moved, NUM_IDS + 1500 - 1)
        for series, count in {**self.steps(answer), "moebius_requests_finished_total": 1}.items():
            self.assertEqual(moved.get(series), count, series)
        self.assertEqual(moved['moebius_recomputed_total{what="rows"}'], timing["resent_rows"])
        self.assertEqual(moved['moebius_recomputed_total{what="dispatch_rounds"}'],
                         timing["resends"])
        # It was given up while it was suspect; or, where others were not asked in time, dead.
        failovers = sum(count for series, count in moved.items()
                        if series.startswith("moebius_failovers_total{"))
        self.assertGreater(failovers, 0)
        self.assertLessEqual(failovers, timing["resends"] + moved.get("moebius_step_retries_total", 0))
        self.assertNotIn("moebius_token_conservation_errors_total", moved)


if __name__ == "__main__":
    unittest.main()
