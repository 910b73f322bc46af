# SPDX-License-Identifier: Apache-2.0
"""Alerts that a real Prometheus fires for what happens to a real cluster, and takes back after it.

The deployed rules with shorter durations and nothing else changed: minutes pass in seconds."""
import contextlib
import os
import re
import signal
import socket
import tempfile
import threading
import unittest

import operation_tools

operation_tools.enter()

# pylint: disable=wrong-import-position
import expressions  # noqa: E402
import served  # noqa: E402
import yaml  # noqa: E402

# How much shorter a `for` and a window are. Windows are longer than a busy machine's hiccups.
FOR_HASTE = 120
WINDOW_HASTE = 30
# Generous: a busy machine is slow, and a fault does not heal by waiting.
WAIT_SECONDS = 150
UNITS = {"s": 1, "m": 60, "h": 3600}
DURATION = re.compile(r"(\d+)([smh])")


def shortened(duration, haste):
    count, unit = DURATION.fullmatch(duration).groups()
    return f"{int(count) * UNITS[unit] * 1000 // haste}ms"


def hasten(rule):
    """The rule with its `for` and its windows shortened."""
    expr = re.sub(r"\[(\d+[smh])\]",
                  lambda match: f"[{shortened(match[1], WINDOW_HASTE)}]", rule["expr"])
    changed = {**rule, "expr": expr}
    if "for" in rule:
        changed["for"] = shortened(rule["for"], FOR_HASTE)
    return changed


def hastened_rules(folder):
    paths = []
    for path in expressions.RULE_FILES:
        with open(path, encoding="utf-8") as file:
            rules = yaml.safe_load(file)
        for group in rules["groups"]:
            group.pop("interval", None)
            group["rules"] = [hasten(rule) for rule in group["rules"]]
        paths.append(os.path.join(folder, "hastened-" + os.path.basename(path)))
        with open(paths[-1], "w", encoding="utf-8") as file:
            yaml.safe_dump(rules, file)
    return paths


class Loop:
    """Calls `act` again and again on a thread, until the block ends."""

    def __init__(self, act):
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(act,))

    def _run(self, act):
        while not self.ended.wait(0.05):
            act()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


class FiringTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        # An expert takes no more than its even share of a step's rows: prompts lose assignments.
        cls.cluster = cls.enterClassContext(served.Cluster(
            folder.name, "--experts", "2", "--capacity-factor", "1", "--transport", "grpc"))
        cls.prometheus = cls.enterClassContext(served.Prometheus(
            folder.name, cls.cluster.targets(), hastened_rules(folder.name)))
        if not served.wait_until(cls.prometheus.is_ready, WAIT_SECONDS):
            raise AssertionError(cls.prometheus.output())

    def firing(self):
        return {alert["labels"]["alertname"]
                for alert in self.prometheus.ask("alerts")["alerts"] if alert["state"] == "firing"}

    def assert_fires(self, *names):
        fired = set()

        def all_have_fired():
            fired.update(self.firing())
            return fired.issuperset(names)
        served.wait_until(all_have_fired, WAIT_SECONDS)
        self.assertEqual(set(names) - fired, set(), self.cluster.output())

    def assert_ends(self, *names):
        still_firing = set(names)

        def all_have_ended():
            still_firing.intersection_update(self.firing())
            return not still_firing
        served.wait_until(all_have_ended, WAIT_SECONDS)
        self.assertEqual(still_firing, set(), self.cluster.output())

    @contextlib.contextmanager
    def stopped(self, *names):
        """Processes that stand still, as on a host that freezes."""
        pids = [process["pid"] for process in self.cluster.ready["processes"]
                if process["name"] in names]
        self.assertEqual(len(pids), len(names))
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def data_port(self):
        host, port = self.cluster.ready["join"].rsplit(":", 1)
        return host, int(port)

    def wait_until_answering(self):
        self.assertTrue(served.wait_until(
            lambda: self.cluster.generate("--prompt-ids", "5", "--max-tokens", "1").returncode == 0,
            WAIT_SECONDS))

    def test_nothing_but_durations_is_changed(self):
        rule = {"alert": "A", "for": "10m", "expr": "increase(x_5m[10m]) > 300 * time()"}
        self.assertEqual(hasten(rule), {"alert": "A", "for": "5000ms",
                                        "expr": "increase(x_5m[20000ms]) > 300 * time()"})
        self.assertEqual(hasten({"record": "r", "expr": "x"}), {"record": "r", "expr": "x"})

    def test_alerts_fire_for_what_happens_and_end_when_it_is_over(self):
        happened = [self.lose_assignments_and_miss_deadlines(), self.freeze_the_experts(),
                    self.knock_at_the_data_port(), self.freeze_the_router()]
        self.wait_until_answering()
        self.assert_ends(*[name for names in happened for name in names])

    def lose_assignments_and_miss_deadlines(self):
        def lose_assignments():
            self.cluster.generate("--prompt", "And the king said unto them, Go ye into the city",
                                  "--max-tokens", "2")

        def miss_the_deadline():
            self.cluster.generate("--prompt-ids", "5,6", "--max-tokens", "4000", "--ignore-eos",
                                  "--deadline", "100ms")
        names = ["MoebiusDegradedResponses", "MoebiusTokensDropped", "MoebiusHighErrorRate"]
        with self.again_and_again(lose_assignments, miss_the_deadline):
            self.assert_fires(*names)
            # What is empty where no capacity is set.
            self.assertTrue(self.prometheus.values(
                "moebius:assignments_dropped:ratio_rate5m > 0 and on (namespace, model) "
                "moebius_expert_assignments_dropped_total"))
        return names

    def freeze_the_experts(self):
        def ask():
            self.cluster.generate("--prompt-ids", "5", "--max-tokens", "1")
        names = ["MoebiusExpertUnavailable", "MoebiusExpertUnderReplicated", "MoebiusNotReady",
                 "MoebiusTargetDown", "MoebiusTransportPeerDead", "MoebiusRequestsRejected"]
        # Several ask, as a request that is refused is tried again for a while.
        with self.stopped("expert-0", "expert-1"), self.again_and_again(ask, ask, ask):
            self.assert_fires(*names)
        self.wait_until_answering()
        return names

    def knock_at_the_data_port(self):
        join = "{}:{}".format(*self.data_port())

        def knock():
            socket.create_connection(self.data_port(), timeout=10).close()

        def join_with_another_configuration():
            operation_tools.run(
                os.path.join(served.PROGRAMS, "moebius-expert"), "--model", served.DEMO, "--join",
                join, "--span", "64", "--http-listen=", "--admin-listen=", "--transport", "grpc")
        names = ["MoebiusTransportErrors", "MoebiusJoinsRefused"]
        with self.again_and_again(knock, join_with_another_configuration):
            self.assert_fires(*names)
        return names

    def freeze_the_router(self):
        names = ["MoebiusRouterDown", "MoebiusMetricsAbsent"]
        with self.stopped("router"):
            self.assert_fires(*names)
        return names

    @contextlib.contextmanager
    def again_and_again(self, *acts):
        with contextlib.ExitStack() as loops:
            for act in acts:
                loops.enter_context(Loop(act))
            yield


if __name__ == "__main__":
    unittest.main()
