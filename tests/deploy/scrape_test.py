# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes the real programs; every deployed expression finds its data there."""
import re
import tempfile
import unittest
import urllib.request

import operation_tools

operation_tools.enter()

# pylint: disable=wrong-import-position
import expressions  # noqa: E402
import served  # noqa: E402

DATA_SECONDS = 120
# Conditions that have no data while all is well, with the reason.
EMPTY_WHEN_WELL = {
    "moebius_tls_certificate_expiry_timestamp_seconds - time()": "this cluster has no certificates",
    "moebius_expert_assignments_dropped_total": "this cluster has no capacity",
}


class ScrapeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.cluster = cls.enterClassContext(
            served.Cluster(folder.name, "--experts", "2", "--attention", "2"))
        cls.prometheus = cls.enterClassContext(
            served.Prometheus(folder.name, cls.cluster.targets(), expressions.RULE_FILES))
        cls.enterClassContext(served.Traffic(cls.cluster))
        if not served.wait_until(cls.prometheus.is_ready, DATA_SECONDS):
            raise AssertionError(cls.prometheus.output())

    def test_every_expression_has_data(self):
        wanted = {}
        for where, expression in [*expressions.rule_expressions(),
                                  *expressions.dashboard_expressions()]:
            for condition in expressions.conditions(expression):
                wanted.setdefault(condition, []).append(where)
        self.assertGreater(len(wanted), 80)
        missing = set(wanted) - set(EMPTY_WHEN_WELL)

        def all_have_data():
            missing.difference_update([c for c in missing if self.prometheus.values(c)])
            return not missing
        served.wait_until(all_have_data, DATA_SECONDS)
        self.assertEqual({condition: wanted[condition] for condition in missing}, {})

    def test_what_is_listed_as_empty_is_asked_for(self):
        asked = {condition for _, expression in [*expressions.rule_expressions(),
                                                 *expressions.dashboard_expressions()]
                 for condition in expressions.conditions(expression)}
        self.assertEqual(set(EMPTY_WHEN_WELL) - asked, set())

    def test_every_rule_is_evaluated_without_error(self):
        def rules():
            return [rule for group in self.prometheus.ask("rules")["groups"]
                    for rule in group["rules"]]
        served.wait_until(lambda: all(rule["health"] == "ok" for rule in rules()), DATA_SECONDS)
        self.assertEqual([(rule["name"], rule.get("lastError")) for rule in rules()
                          if rule["health"] != "ok"], [])

    def test_nobody_is_woken_by_a_healthy_cluster(self):
        firing = [alert for alert in self.prometheus.ask("alerts")["alerts"]
                  if alert["state"] == "firing" and alert["labels"]["severity"] == "page"]
        self.assertEqual(firing, [])

    def test_what_the_programs_show_is_well_formed(self):
        for process in self.cluster.ready["processes"]:
            with urllib.request.urlopen(process["metrics"], timeout=30) as answer:
                text = answer.read().decode()
            names = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
            self.assertEqual(len(names), len(set(names)), process["name"])
            self.assertIn("moebius_build_info", names)


if __name__ == "__main__":
    unittest.main()
