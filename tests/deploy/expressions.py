# SPDX-License-Identifier: Apache-2.0
"""Every PromQL expression that is deployed, and what of it must have data when all is well."""
import glob
import json
import os
import re

import operation_tools
import promql_parser
import yaml

DEPLOY = os.path.join(operation_tools.SOURCE, "deploy")
RULE_FILES = [os.path.join(DEPLOY, "prometheus", name)
              for name in ("recording_rules.yml", "alerts.yml")]
DASHBOARDS = sorted(glob.glob(os.path.join(DEPLOY, "grafana", "dashboards", "*.json")))
# What Grafana puts in for its variables; "All" is every text.
VARIABLES = {"$namespace": ".*", "$model": ".*", "$pod": ".*", "$layer": "3",
             "$__rate_interval": "1m", "$__interval": "1m"}
LABEL_VALUES = re.compile(r"label_values\((.*), \w+\)$", re.DOTALL)
COMPARISONS = ("==", "!=", ">", "<", ">=", "<=")


def dashboards():
    """{file name: dashboard}."""
    result = {}
    for path in DASHBOARDS:
        with open(path, encoding="utf-8") as file:
            result[os.path.basename(path)] = json.load(file)
    return result


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def fill_in(query):
    """The query as Grafana sends it."""
    for name in sorted(VARIABLES, key=len, reverse=True):
        query = query.replace(name, VARIABLES[name])
    return query


def rule_expressions():
    """(where, expression) of each rule."""
    for path in RULE_FILES:
        with open(path, encoding="utf-8") as file:
            for group in yaml.safe_load(file)["groups"]:
                for rule in group["rules"]:
                    yield rule.get("alert") or rule["record"], rule["expr"]


def dashboard_expressions():
    """(where, expression) of each query, annotation and variable, filled in."""
    for name, dashboard in dashboards().items():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", fill_in(target["expr"])
        for annotation in dashboard["annotations"]["list"]:
            yield f"{name}: {annotation['name']}", fill_in(annotation["expr"])
        for variable in dashboard["templating"]["list"]:
            match = LABEL_VALUES.match(variable["query"])
            if match:
                yield f"{name}: ${variable['name']}", fill_in(match[1])


def conditions(expression):
    """What must have data: the sides of comparisons, of and, and of or, what absent() looks for."""
    tree = promql_parser.parse(expression)
    while isinstance(tree, promql_parser.ParenExpr):
        tree = tree.expr
    if isinstance(tree, promql_parser.NumberLiteral):
        return []
    if isinstance(tree, promql_parser.BinaryExpr) and str(tree.op) in COMPARISONS + ("and", "or"):
        return conditions(tree.lhs.prettify()) + conditions(tree.rhs.prettify())
    if isinstance(tree, promql_parser.Call) and tree.func.name == "absent":
        return [argument.prettify() for argument in tree.args]
    return [tree.prettify()]
