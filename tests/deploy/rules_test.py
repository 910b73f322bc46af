# SPDX-License-Identifier: Apache-2.0
"""Recording rules and alerts, judged by promtool: each alert fires on its input and on no other."""
import os
import re
import tempfile
import unittest

import operation_tools

operation_tools.enter()

# pylint: disable=wrong-import-position
import yaml  # noqa: E402

FOLDER = os.path.join(operation_tools.SOURCE, "deploy", "prometheus")
RULE_FILES = [os.path.join(FOLDER, name) for name in ("recording_rules.yml", "alerts.yml")]
CASES = os.path.join(operation_tools.SOURCE, "tests", "deploy", "alert_cases.yml")
TARGET_LABELS = {"namespace": "prod", "model": "demo", "pod": "demo-router-0", "role": "router"}
SERIES = re.compile(r"^([a-z_:]+)(?:\{(.*)\})?$")
LABEL = re.compile(r'([a-z_]+)="([^"]*)"')


def load(path):
    with open(path, encoding="utf-8") as file:
        return yaml.safe_load(file)


def alerts():
    return {rule["alert"]: rule for group in load(RULE_FILES[1])["groups"]
            for rule in group["rules"]}


def with_target_labels(series):
    """The series with the labels that a scrape gives its target, where it does not name them."""
    name, inside = SERIES.match(series).groups()
    labels = {**TARGET_LABELS, **dict(LABEL.findall(inside or ""))}
    return name + "{" + ", ".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


def input_series(case, kind):
    values = case[kind]
    if "experts" in case:
        values = {f'moebius_expert_assignments_total{{layer="3", expert="{expert}"}}':
                  values["others" if expert else "hottest"] for expert in range(case["experts"])}
    return [{"series": with_target_labels(series), "values": str(text)}
            for series, text in values.items()]


def told(template, case):
    """An annotation as Prometheus would expand it."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: case["labels"].get(match[1], ""),
                  template)
    return re.sub(r"\{\{ \$value(?: \| \w+)? \}\}", lambda match: str(case["value"]), text)


def promtool_test(name, alert, case, kind):
    expected = []
    if kind == "fires":
        expected = [{"exp_labels": {**alert["labels"], **case["labels"]},
                     "exp_annotations": {key: told(text, case)
                                         for key, text in alert["annotations"].items()}}]
    return {"name": f"{name} {kind}", "interval": "1m", "input_series": input_series(case, kind),
            "alert_rule_test": [{"eval_time": case["at"], "alertname": name,
                                 "exp_alerts": expected}]}


class RulesTest(unittest.TestCase):
    def test_promtool_accepts_the_rules(self):
        done = operation_tools.run(operation_tools.PROMTOOL, "check", "rules", *RULE_FILES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_alert_has_a_case(self):
        self.assertEqual(sorted(load(CASES)), sorted(alerts()))

    def test_every_alert_fires_on_its_input_and_stays_silent_without(self):
        cases = load(CASES)
        tests = [promtool_test(name, alert, cases[name], kind)
                 for name, alert in alerts().items() for kind in ("fires", "quiet")]
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            yaml.safe_dump({"rule_files": RULE_FILES, "evaluation_interval": "30s",
                            "tests": tests}, file)
            file.flush()
            done = operation_tools.run(operation_tools.PROMTOOL, "test", "rules", file.name)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_alert_says_what_is_wrong_and_where_to_read_on(self):
        with open(os.path.join(operation_tools.SOURCE, "docs", "operations.md"),
                  encoding="utf-8") as file:
            headings = re.findall(r"^#+ (.*)$", file.read(), re.MULTILINE)
        for name, alert in alerts().items():
            self.assertIn(alert["labels"]["severity"], ("page", "warning"), name)
            annotations = alert["annotations"]
            self.assertEqual(sorted(annotations), ["description", "runbook_url", "summary"], name)
            self.assertEqual(annotations["runbook_url"], f"docs/operations.md#{name.lower()}")
            self.assertIn(name, headings)


if __name__ == "__main__":
    unittest.main()
