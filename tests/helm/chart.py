# SPDX-License-Identifier: Apache-2.0
"""The chart as the tests see it: rendered by the real helm, parsed, and cut where it is random."""
import glob
import os

import operation_tools
import yaml

CHART = os.path.join(operation_tools.SOURCE, "helm", "moebius")
FOLDER = os.path.join(operation_tools.SOURCE, "tests", "helm")
RELEASE, NAMESPACE = "prod", "llm"
WORKLOADS = ("StatefulSet",)


def value_sets():
    """{name: path} of the value files that have a golden file."""
    return {os.path.splitext(os.path.basename(path))[0]: path
            for path in sorted(glob.glob(os.path.join(FOLDER, "values", "*.yaml")))}


def helm(*arguments):
    return operation_tools.run(operation_tools.HELM, *arguments)


def render(*values, chart=CHART, flags=()):
    """All objects of the chart with these value files, hooks too."""
    files = [flag for path in values for flag in ("--values", path)]
    done = helm("template", RELEASE, chart, "--namespace", NAMESPACE, *files, *flags)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [document for document in yaml.load_all(done.stdout, yaml.CSafeLoader) if document]


def of_kind(objects, kind):
    return [entry for entry in objects if entry["kind"] == kind]


def pod_templates(objects):
    """(name, labels, pod spec) of everything that becomes pods."""
    for entry in objects:
        if entry["kind"] in WORKLOADS:
            template = entry["spec"]["template"]
            yield entry["metadata"]["name"], template["metadata"]["labels"], template["spec"]
        elif entry["kind"] == "Pod":
            yield entry["metadata"]["name"], entry["metadata"]["labels"], entry["spec"]


def containers(pod):
    return [*pod.get("initContainers", []), *pod["containers"]]


def selects(selector, labels):
    """Whether a selector of matchLabels takes these labels."""
    wanted = selector.get("matchLabels", {})
    return all(labels.get(key) == value for key, value in wanted.items())


def without_noise(objects):
    """The objects with what is random, or a copy of a file with tests of its own, cut."""
    for entry in objects:
        if entry["kind"] == "Secret":
            entry["data"] = {key: "(generated)" for key in entry["data"]}
        elif entry["kind"] == "PrometheusRule":
            for group in entry["spec"]["groups"]:
                group["rules"] = [rule.get("alert") or rule["record"] for rule in group["rules"]]
        elif entry["kind"] == "ConfigMap" and entry["metadata"].get("labels", {}).get("grafana_dashboard"):
            entry["data"] = {key: "(the file)" for key in entry["data"]}
    return objects
