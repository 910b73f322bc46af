# SPDX-License-Identifier: Apache-2.0
"""A step that takes too long is told of in the router's log and counted, with what it waited for."""
import re
import unittest

import programs
from routing_test import Cluster

# Of each layer; the demo has several, so that one step takes longer than a second.
SLOW_MICROSECONDS = 400000
LINE = re.compile(r"warning \S+: a step was slow step=\d+ attempt=0 rows=(\d+) seconds=([\d.]+) "
                  r'stage="experts" stage_seconds=([\d.]+) (?:usual_stage_seconds=[\d.]+ )?'
                  r'expert_slot=(\d+) expert_slot_seconds=([\d.]+) requests=1 '
                  r'request_ids="(\S+)"')


class SlowStepTest(unittest.TestCase):
    def cluster(self, *flags, slow_slot=1, delay=SLOW_MICROSECONDS):
        # One replica of each expert: most layers need both services.
        cluster = Cluster("--expert-replicas=1", *flags, expert_flags={
            slot: ["--mock", f"--mock-delay-us={delay if slot == slow_slot else 0}"]
            for slot in range(2)})
        self.addCleanup(cluster.close)
        return cluster

    def test_the_log_names_the_requests_the_stage_and_the_service_that_was_waited_for(self):
        cluster = self.cluster()
        answer = cluster.generate("--prompt-ids", "256,65,110", "--max-tokens", "1", "--request-id",
                                  "waited")
        self.assertEqual(answer["completion_tokens"], 1)
        self.assertTrue(programs.wait_until(lambda: LINE.search(cluster.router.stderr()), 20),
                        cluster.router.stderr())
        rows, seconds, stage, slot, wait, request_ids = LINE.search(cluster.router.stderr()).groups()
        self.assertEqual((rows, slot, request_ids), ("3", "1", "waited"))
        self.assertGreater(float(wait), 1)
        self.assertLessEqual(float(wait), float(stage) + 0.01)
        self.assertLessEqual(float(stage), float(seconds))
        self.assertEqual(cluster.metric('moebius_slow_steps_total{stage="experts"}'), 1)

    def test_the_operator_says_what_is_slow(self):
        for flag, delay, is_told in (("--slow-step-ms=50", 40000, True),
                                     ("--slow-step-ms=0", SLOW_MICROSECONDS, False)):
            with self.subTest(flag):
                cluster = self.cluster(flag, delay=delay)
                cluster.generate("--prompt-ids", "256,65,110", "--max-tokens", "1")
                counted = cluster.metric('moebius_slow_steps_total{stage="experts"}')
                self.assertEqual(counted > 0, is_told)
                told = programs.wait_until(lambda: LINE.search(cluster.router.stderr()),
                                           20 if is_told else 0.5)
                self.assertEqual(bool(told), is_told, cluster.router.stderr())

    def test_steps_in_time_are_not_told_of(self):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        cluster.generate("--prompt-ids", "256,65,110", "--max-tokens", "2")
        told = len(re.findall("a step was slow", cluster.router.stderr()))
        counted = sum(cluster.metric(f'moebius_slow_steps_total{{stage="{stage}"}}')
                      for stage in ("embed", "attention", "norm", "gate", "plan", "experts",
                                    "combine", "head", "other"))
        # None, unless the machine stood still for a second; then it is told of.
        self.assertLessEqual(told, counted)
        self.assertLessEqual(counted, 1)


if __name__ == "__main__":
    unittest.main()
