# SPDX-License-Identifier: Apache-2.0
"""The Helm chart: golden files, Kubernetes' schemas, and rules that every rendering keeps.

MOEBIUS_UPDATE_GOLDEN=1 writes the golden files anew; look at the difference before it is kept.
"""
import copy
import functools
import json
import os
import re
import shutil
import tempfile
import unittest

import operation_tools

operation_tools.enter()

# pylint: disable=wrong-import-position
import cloudcoil.models.cert_manager.v1 as cert_manager  # noqa: E402
import cloudcoil.models.prometheus_operator.v1 as prometheus_operator  # noqa: E402
import jsonschema  # noqa: E402
import kubernetes_validate  # noqa: E402
import yaml  # noqa: E402

import chart  # noqa: E402

GOLDEN = os.path.join(chart.FOLDER, "golden")
# A pure reader of files, which it would parse again for each object.
kubernetes_validate.utils.schema_contents = functools.lru_cache(
    kubernetes_validate.utils.schema_contents)
KUBERNETES_VERSIONS = ("1.27", "1.35")
CUSTOM_KINDS = {"PodMonitor": prometheus_operator.PodMonitor,
                "PrometheusRule": prometheus_operator.PrometheusRule,
                "Certificate": cert_manager.Certificate}
STARTUP_SECONDS = 30 * 60
MAX_NAME = 52  # of a StatefulSet: its pods' labels end at 63
CPU = re.compile(r"^(\d+)(m?)$")
MEMORY_UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}


def strict(schema):
    """The schema, refusing fields that it does not name; Go's place for (?i) becomes Python's."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            schema["pattern"] = schema["pattern"].replace("^(?i)", "(?i)^")
        if isinstance(schema.get("properties"), dict):
            schema.setdefault("additionalProperties", False)
        for value in schema.values():
            strict(value)
    elif isinstance(schema, list):
        for value in schema:
            strict(value)
    return schema


def golden_text(objects, known):
    """What a golden file holds: the objects that are not among the known ones, and a list of those
    that are."""
    same = [f"{entry['kind']} {entry['metadata']['name']}" for entry in objects if entry in known]
    differing = [entry for entry in objects if entry not in known]
    head = [{"as in default.yaml": same}] if known else []
    text = yaml.safe_dump_all([*head, *differing], width=100)
    return f"# SPDX-License-Identifier: Apache-2.0\n{text}"


def millicores(text):
    count, unit = CPU.match(str(text)).groups()
    return int(count) * (1 if unit else 1000)


def mebibytes(text):
    return int(text[:-2]) * MEMORY_UNITS[text[-2:]] >> 20


class OnceEach(yaml.SafeLoader):
    """A loader that refuses a map with one key twice."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len(set(keys)) != len(keys):
            raise yaml.constructor.ConstructorError(None, None, f"a key twice: {keys}",
                                                    node.start_mark)
        return super().construct_mapping(node, deep)


class ChartTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rendered = {name: chart.render(path) for name, path in chart.value_sets().items()}

    def every_object(self):
        for name, objects in self.rendered.items():
            for entry in objects:
                yield f"{name}: {entry['kind']} {entry['metadata']['name']}", entry

    def every_pod(self):
        for name, objects in self.rendered.items():
            for pod_name, labels, pod in chart.pod_templates(objects):
                yield f"{name}: {pod_name}", labels, pod

    def every_service_container(self):
        for where, labels, pod in self.every_pod():
            if labels["app.kubernetes.io/component"] != "test":
                yield where, pod, pod["containers"][0]

    # --- As a whole.

    def test_helm_lints_it(self):
        for name in ("default", "pools", "monitoring"):
            done = chart.helm("lint", "--strict", chart.CHART, "--values", chart.value_sets()[name])
            self.assertEqual(done.returncode, 0, f"{name}\n{done.stdout}")

    def test_every_value_set_renders_its_golden_file(self):
        self.assertGreaterEqual(len(self.rendered), 8)
        quiet = {name: chart.without_noise(copy.deepcopy(objects))
                 for name, objects in self.rendered.items()}
        default = quiet["default"]
        for name, objects in quiet.items():
            text = golden_text(objects, [] if name == "default" else default)
            golden = os.path.join(GOLDEN, f"{name}.yaml")
            if os.environ.get("MOEBIUS_UPDATE_GOLDEN"):
                with open(golden, "w", encoding="utf-8") as file:
                    file.write(text)
            with open(golden, encoding="utf-8") as file:
                self.assertEqual(file.read(), text, name)

    def test_kubernetes_knows_every_field(self):
        different = {json.dumps(entry, sort_keys=True): (where, entry)
                     for where, entry in self.every_object()}
        for where, entry in different.values():
            with self.subTest(where):
                if entry["kind"] in CUSTOM_KINDS:
                    schema = CUSTOM_KINDS[entry["kind"]].model_json_schema()
                    jsonschema.validate(entry, strict(schema))
                    continue
                # A kind that a version does not know is an exception, too.
                for version in KUBERNETES_VERSIONS:
                    kubernetes_validate.validate(entry, version, strict=True)

    def test_a_field_that_kubernetes_does_not_know_is_found(self):
        entry = dict(chart.of_kind(self.rendered["default"], "StatefulSet")[0], colour="red")
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(entry, "1.30", strict=True)
        monitor = chart.of_kind(self.rendered["monitoring"], "PodMonitor")[0]
        schema = strict(prometheus_operator.PodMonitor.model_json_schema())
        with self.assertRaises(jsonschema.ValidationError):
            jsonschema.validate({**monitor, "spec": {**monitor["spec"], "colour": "red"}}, schema)

    def test_its_notes_say_where_it_answers_and_what_is_open(self):
        for name, told in (("default", "secret prod-moebius-client-tls"),
                           ("insecure", "WARNING: without TLS")):
            done = chart.helm("install", chart.RELEASE, chart.CHART, "--dry-run=client",
                              "--namespace", chart.NAMESPACE, "--values",
                              chart.value_sets()[name])
            notes = done.stdout.partition("NOTES:")[2]
            self.assertIn("prod-moebius.llm.svc:7413", notes, done.stderr)
            self.assertIn(told, notes)

    def test_packaged_it_brings_rules_and_dashboards_along(self):
        with tempfile.TemporaryDirectory() as folder:
            done = chart.helm("package", chart.CHART, "--destination", folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            (archive,) = os.listdir(folder)
            objects = chart.render(chart.value_sets()["monitoring"],
                                   chart=os.path.join(folder, archive))
        with open(os.path.join(operation_tools.SOURCE, "deploy", "grafana", "dashboards",
                               "moebius-overview.json"), encoding="utf-8") as file:
            overview = json.load(file)
        shown = {key: json.loads(text) for entry in chart.of_kind(objects, "ConfigMap")
                 for key, text in entry["data"].items()}
        self.assertEqual(len(shown), 4)
        self.assertEqual(shown["moebius-overview.json"], overview)
        (rules,) = chart.of_kind(objects, "PrometheusRule")
        alerts = [rule for group in rules["spec"]["groups"] for rule in group["rules"]
                  if "alert" in rule]
        self.assertGreater(len(alerts), 15)
        for alert in alerts:
            self.assertEqual(
                alert["annotations"]["runbook_url"],
                f"https://git.example/moebius/docs/operations.md#{alert['alert'].lower()}")

    def test_its_versions_are_those_of_the_programs(self):
        with open(os.path.join(chart.CHART, "Chart.yaml"), encoding="utf-8") as file:
            facts = yaml.safe_load(file)
        with open(os.path.join(operation_tools.SOURCE, "CMakeLists.txt"), encoding="utf-8") as file:
            version = re.search(r"project\(moebius VERSION (\S+)", file.read())[1]
        self.assertEqual(facts["appVersion"], version)

    def test_another_version_changes_nothing_that_is_immutable(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, "moebius")
            shutil.copytree(chart.CHART, copy)
            path = os.path.join(copy, "Chart.yaml")
            with open(path, encoding="utf-8") as file:
                facts = yaml.safe_load(file)
            with open(path, "w", encoding="utf-8") as file:
                yaml.safe_dump({**facts, "version": "0.2.0", "appVersion": "0.2.1"}, file)
            for name in ("default", "pools", "model_fetched"):
                values = chart.value_sets()[name]
                before, after = ({entry["metadata"]["name"]: entry["spec"]
                                  for entry in chart.of_kind(objects, "StatefulSet")}
                                 for objects in (self.rendered[name],
                                                 chart.render(values, chart=copy)))
                self.assertEqual(set(before), set(after))
                for key in ("selector", "serviceName", "podManagementPolicy",
                            "volumeClaimTemplates"):
                    for workload, spec in before.items():
                        self.assertEqual(spec.get(key), after[workload].get(key), key)

    def test_no_name_is_too_long_for_what_kubernetes_makes_of_it(self):
        long_pool = {"experts": {"pools": {"p" * 14: {"replicas": 1}}}, "fullnameOverride": "n" * 60}
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(long_pool, file)
            file.flush()
            for entry in chart.of_kind(chart.render(file.name), "StatefulSet"):
                self.assertLessEqual(len(entry["metadata"]["name"]), MAX_NAME)

    # --- Rules that every rendering keeps.

    def test_every_object_has_the_recommended_labels_and_its_namespace(self):
        for where, entry in self.every_object():
            if entry["metadata"]["name"] == "prod-extra":
                continue
            labels = entry["metadata"]["labels"]
            for key in ("name", "instance", "version", "component", "part-of", "managed-by"):
                self.assertIn(f"app.kubernetes.io/{key}", labels, where)
            self.assertEqual(entry["metadata"]["namespace"], chart.NAMESPACE, where)

    def test_of_labels_that_meet_the_nearer_one_stays_and_no_key_comes_twice(self):
        values = ("commonLabels.release=far", "podMonitor.enabled=true",
                  "podMonitor.labels.release=near", "router.podLabels.release=near")
        text = chart.helm("template", chart.RELEASE, chart.CHART, "--namespace", chart.NAMESPACE,
                          *(word for value in values for word in ("--set", value))).stdout
        labels = {(entry["kind"], entry["metadata"]["name"]): entry["metadata"]["labels"]["release"]
                  for entry in yaml.load_all(text, OnceEach) if entry}
        near = {key for key, label in labels.items() if label == "near"}
        self.assertEqual({kind for kind, _ in near}, {"PodMonitor"})

    def test_every_service_has_probes_with_time_to_load(self):
        for where, _, container in self.every_service_container():
            for probe, path in (("startupProbe", "/startupz"), ("readinessProbe", "/readyz"),
                                ("livenessProbe", "/livez")):
                self.assertEqual(container[probe]["httpGet"], {"path": path, "port": "http"}, where)
            startup = container["startupProbe"]
            self.assertGreaterEqual(startup["failureThreshold"] * startup["periodSeconds"],
                                    STARTUP_SECONDS, where)

    def test_every_pod_is_restricted(self):
        for where, _, pod in self.every_pod():
            self.assertFalse(pod["automountServiceAccountToken"], where)
            context = pod["securityContext"]
            self.assertTrue(context["runAsNonRoot"], where)
            self.assertEqual(context["seccompProfile"], {"type": "RuntimeDefault"}, where)
            for container in chart.containers(pod):
                self.assertEqual(container["securityContext"],
                                 {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                  "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}, where)
            for forbidden in ("hostNetwork", "hostPID", "hostIPC"):
                self.assertNotIn(forbidden, pod, where)
            for volume in pod.get("volumes", []):
                self.assertNotIn("hostPath", volume, where)

    def test_every_container_has_resources_and_an_image_that_stays(self):
        for where, _, pod in self.every_pod():
            for container in chart.containers(pod):
                self.assertIn("memory", container["resources"].get("limits", {}), where)
                image = container["image"]
                self.assertRegex(image, r"(:[^:/]+|@sha256:[0-9a-f]{64})$", where)
                self.assertFalse(image.endswith(":latest"), where)

    def test_no_process_is_below_a_shell(self):
        for where, _, pod in self.every_pod():
            for container in pod["containers"]:
                self.assertRegex(container["command"][0], r"^/usr/local/bin/moebius", where)

    def test_kubernetes_waits_longer_than_the_drain(self):
        for where, pod, container in self.every_service_container():
            (drain,) = [int(flag.split("=")[1]) for flag in container["args"]
                        if flag.startswith("--drain-seconds=")]
            self.assertEqual(pod["terminationGracePeriodSeconds"], drain + 15, where)

    def test_every_selector_takes_pods_and_every_port_is_one_of_theirs(self):
        for name, objects in self.rendered.items():
            pods = list(chart.pod_templates(objects))
            for entry in chart.of_kind(objects, "Service"):
                taken = [pod for _, labels, pod in pods
                         if chart.selects({"matchLabels": entry["spec"]["selector"]}, labels)]
                self.assertTrue(taken, f"{name}: {entry['metadata']['name']}")
                for pod in taken:
                    ports = {port["name"] for port in pod["containers"][0]["ports"]}
                    for port in entry["spec"]["ports"]:
                        self.assertIn(port["targetPort"], ports)
            for entry in chart.of_kind(objects, "StatefulSet"):
                self.assertTrue(chart.selects(entry["spec"]["selector"],
                                              entry["spec"]["template"]["metadata"]["labels"]))
                self.assertIn(entry["spec"]["serviceName"],
                              [service["metadata"]["name"]
                               for service in chart.of_kind(objects, "Service")])
            for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
                for entry in chart.of_kind(objects, kind):
                    self.assertTrue(any(chart.selects(entry["spec"][key], labels)
                                        for _, labels, _ in pods), entry["metadata"]["name"])

    def test_selectors_of_different_roles_do_not_overlap(self):
        for name, objects in self.rendered.items():
            for entry in chart.of_kind(objects, "StatefulSet"):
                takes = [other["metadata"]["name"] for other in chart.of_kind(objects, "StatefulSet")
                         if chart.selects(entry["spec"]["selector"],
                                          other["spec"]["template"]["metadata"]["labels"])]
                self.assertEqual(takes, [entry["metadata"]["name"]], name)

    def test_network_policies_cover_every_pod_both_ways(self):
        for name, objects in self.rendered.items():
            policies = chart.of_kind(objects, "NetworkPolicy")
            if name == "insecure":
                self.assertEqual(policies, [])
                continue
            for pod_name, labels, _ in chart.pod_templates(objects):
                covering = [policy for policy in policies
                            if chart.selects(policy["spec"]["podSelector"], labels)]
                self.assertTrue(covering, f"{name}: {pod_name}")
                for policy in covering:
                    self.assertEqual(policy["spec"]["policyTypes"], ["Ingress", "Egress"])

    def test_administration_is_in_no_service_and_on_the_loopback_address(self):
        for where, entry in self.every_object():
            if entry["kind"] == "Service":
                self.assertNotIn(7411, [port["port"] for port in entry["spec"]["ports"]], where)
        for where, _, container in self.every_service_container():
            self.assertIn([f for f in container["args"] if f.startswith("--admin-listen=")][0],
                          ("--admin-listen=127.0.0.1:7411", "--admin-listen=[::1]:7411"), where)
            self.assertNotIn(7411, [port["containerPort"] for port in container["ports"]], where)

    def test_without_tls_only_where_it_was_asked_for(self):
        for where, _, container in self.every_service_container():
            insecure = "--insecure" in container["args"]
            self.assertEqual(insecure, where.startswith("insecure:"), where)
            self.assertNotEqual(insecure, any(f.startswith("--tls-key") for f in container["args"]))

    def test_the_defaults_fit_on_a_laptop(self):
        cpu = memory = 0
        for entry in chart.of_kind(self.rendered["default"], "StatefulSet"):
            for container in entry["spec"]["template"]["spec"]["containers"]:
                requests = container["resources"]["requests"]
                cpu += entry["spec"]["replicas"] * millicores(requests["cpu"])
                memory += entry["spec"]["replicas"] * mebibytes(requests["memory"])
        self.assertLessEqual(cpu, 2000)
        self.assertLessEqual(memory, 4096)

    def test_every_role_can_be_placed_and_sized(self):
        settings = {
            "nodeSelector": {"disk": "ssd"}, "priorityClassName": "high",
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "zone",
                                           "whenUnsatisfiable": "ScheduleAnyway"}],
            "resources": {"limits": {"memory": "3Gi"}}, "podAnnotations": {"note": "x"},
            "podLabels": {"team": "llm"}, "extraArgs": ["--threads=3"],
            "extraEnv": [{"name": "A", "value": "b"}]}
        values = {role: settings for role in ("router", "experts", "attention")}
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump({**values, "imagePullSecrets": [{"name": "pull"}]}, file)
            file.flush()
            workloads = chart.of_kind(chart.render(file.name), "StatefulSet")
        self.assertEqual(len(workloads), 3)
        for entry in workloads:
            template = entry["spec"]["template"]
            pod, container = template["spec"], template["spec"]["containers"][0]
            for key in ("nodeSelector", "priorityClassName", "tolerations", "affinity",
                        "topologySpreadConstraints"):
                self.assertEqual(pod[key], settings[key], key)
            self.assertEqual(pod["imagePullSecrets"], [{"name": "pull"}])
            self.assertEqual(container["resources"]["limits"]["memory"], "3Gi")
            self.assertEqual(container["args"][-1], "--threads=3")
            self.assertIn({"name": "A", "value": "b"}, container["env"])
            self.assertEqual(template["metadata"]["annotations"], {"note": "x"})
            self.assertEqual(template["metadata"]["labels"]["team"], "llm")

    def test_the_router_waits_for_as_many_as_there_are(self):
        for name, objects in self.rendered.items():
            replicas = {}
            for entry in chart.of_kind(objects, "StatefulSet"):
                role = entry["metadata"]["labels"]["app.kubernetes.io/component"]
                replicas[role] = replicas.get(role, 0) + entry["spec"]["replicas"]
                if role == "router":
                    flags = entry["spec"]["template"]["spec"]["containers"][0]["args"]
            self.assertEqual(replicas["router"], 1)
            self.assertIn(f"--experts={replicas['expert']}", flags, name)
            self.assertIn(f"--attention={replicas['attention']}", flags, name)

    def test_kubectl_reads_every_object_and_finds_no_name_twice(self):
        for name, objects in self.rendered.items():
            with tempfile.TemporaryDirectory() as folder:
                for file_name, documents in (("all.yaml", objects), ("kustomization.yaml",
                                                                     [{"resources": ["all.yaml"]}])):
                    with open(os.path.join(folder, file_name), "w", encoding="utf-8") as file:
                        yaml.safe_dump_all(documents, file)
                done = operation_tools.run(operation_tools.KUBECTL, "kustomize", folder)
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")
            self.assertEqual(len(list(yaml.safe_load_all(done.stdout))), len(objects), name)


if __name__ == "__main__":
    unittest.main()
