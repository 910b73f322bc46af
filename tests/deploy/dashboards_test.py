# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboards: made from their table, of Grafana's schema, importable anywhere."""
import json
import os
import re
import unittest

import operation_tools

operation_tools.enter()

# pylint: disable=wrong-import-position
import expressions  # noqa: E402
import grafana_foundation_sdk.cog.plugins  # noqa: E402
from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: E402
from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: E402

GENERATOR = os.path.join(operation_tools.SOURCE, "deploy", "grafana", "make_dashboards.py")
# Of the Prometheus data source, which Grafana's schema of annotations leaves open.
OUTSIDE_SCHEMA = re.compile(r"/annotations/list\[\d+\]/titleFormat$")
GRID_COLUMNS = 24


def lost(before, after, path=""):
    """Places that a decoded and encoded dashboard no longer has as they were."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key not in after:
                yield f"{path}/{key}"
            else:
                yield from lost(value, after[key], f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after)):
            yield from lost(*pair, f"{path}[{index}]")
    elif before != after:
        yield path


class DashboardsTest(unittest.TestCase):
    def test_dashboards_and_their_page_are_those_of_the_table(self):
        done = operation_tools.run("/usr/bin/python3", GENERATOR, "--check")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_there_are_four(self):
        self.assertEqual([dashboard["title"] for dashboard in expressions.dashboards().values()],
                         ["Moebius / Attention", "Moebius / Experts", "Moebius / Overview",
                          "Moebius / Transport and faults"])

    def test_grafana_knows_every_field(self):
        grafana_foundation_sdk.cog.plugins.register_default_plugins()
        for name, dashboard in expressions.dashboards().items():
            again = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
            unknown = [path for path in lost(dashboard, again) if not OUTSIDE_SCHEMA.search(path)]
            self.assertEqual(unknown, [], name)

    def test_a_field_that_grafana_does_not_know_is_found(self):
        dashboard = dict(next(iter(expressions.dashboards().values())), colour="red")
        again = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
        self.assertIn("/colour", list(lost(dashboard, again)))

    def test_no_dashboard_is_bound_to_one_grafana(self):
        for name, dashboard in expressions.dashboards().items():
            self.assertNotIn("uid", dashboard, name)
            text = json.dumps(dashboard)
            self.assertEqual(set(re.findall(r'"uid": "([^"]*)"', text)), {"${datasource}"}, name)
            variables = [variable["name"] for variable in dashboard["templating"]["list"]]
            self.assertEqual(variables[:4], ["datasource", "namespace", "model", "pod"], name)

    def test_every_query_follows_the_choice_of_namespace_and_model(self):
        for name, dashboard in expressions.dashboards().items():
            for panel in expressions.panels(dashboard):
                for target in panel["targets"]:
                    selectors = re.findall(r"\{([^{}]*)\}", target["expr"])
                    self.assertTrue(selectors, f"{name}: {panel['title']}")
                    for selector in selectors:
                        self.assertIn('namespace=~"$namespace", model=~"$model"', selector)

    def test_every_panel_says_what_it_means_and_overlaps_none(self):
        for name, dashboard in expressions.dashboards().items():
            taken = set()
            for panel in dashboard["panels"]:
                place = panel["gridPos"]
                cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                         for y in range(place["y"], place["y"] + place["h"])}
                self.assertFalse(cells & taken, f"{name}: {panel['title']}")
                self.assertLessEqual(place["x"] + place["w"], GRID_COLUMNS)
                taken |= cells
                if panel["type"] != "row":
                    self.assertIn("\n\n", panel["description"])

    def test_every_metric_of_a_query_is_documented(self):
        with open(os.path.join(operation_tools.SOURCE, "docs", "metrics.md"),
                  encoding="utf-8") as file:
            documented = set(re.findall(r"`([a-z_]+)`", file.read()))
        recorded = {where for where, _ in expressions.rule_expressions()}
        for where, expression in [*expressions.dashboard_expressions(),
                                  *expressions.rule_expressions()]:
            for metric in re.findall(r"\b(?:moebius|process)[a-z_:0-9]+\b", expression):
                known = metric in recorded or re.sub(r"_bucket$", "", metric) in documented
                self.assertTrue(known, f"{where}: {metric}")


if __name__ == "__main__":
    unittest.main()
