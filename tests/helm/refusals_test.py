# SPDX-License-Identifier: Apache-2.0
"""Values that the chart must refuse, by its schema or by a sentence of a template."""
import tempfile
import unittest

import operation_tools

operation_tools.enter()

# pylint: disable=wrong-import-position
import yaml  # noqa: E402

import chart  # noqa: E402

# The file's text, and a piece of the message that helm must print.
BY_SCHEMA = [
    ("modle: {name: x}", "additional properties 'modle' not allowed"),
    ("router: {replicas: 2}", "additional properties 'replicas' not allowed"),
    ("router: {rowBugdet: 512}", "additional properties 'rowBugdet' not allowed"),
    ("router: {rowBudget: 0}", "/router/rowBudget"),
    ("router: {reflection: 'yes'}", "/router/reflection"),
    ("router: {tier: sse4}", "/router/tier"),
    ("router: {extraArgs: [threads=4]}", "/router/extraArgs/0"),
    ("experts: {replicas: 3}", "additional properties 'replicas' not allowed"),
    ("experts: {pools: {default: null}}", "/experts/pools"),
    ("experts: {pools: {Large: {replicas: 1}}}", "'Large' not allowed"),
    ("experts: {pools: {default: {replicas: 0}}}", "/experts/pools/default/replicas"),
    ("experts: {pools: {default: {replicas: 2, gpu: 1}}}", "additional properties 'gpu' not allowed"),
    ("experts: {resources: {limits: {memory: 1 GB}}}", "/experts/resources/limits/memory"),
    ("attention: {replicas: two}", "/attention/replicas"),
    ("attention: {kvBudget: lots}", "/attention/kvBudget"),
    ("attention: {method: ring}", "/attention/method"),
    ("model: {uri: s3://bucket/model}", "/model/uri"),
    ("model: {uri: models/demo}", "/model/uri"),
    ("model: {name: 'two words'}", "/model/name"),
    ("model: {dtype: fp8}", "/model/dtype"),
    ("model: {init: {image: 'registry.example/fetch:latest'}}", "/model/init/image"),
    ("image: {tag: latest}", "/image/tag"),
    ("image: {digest: 'sha256:12'}", "/image/digest"),
    ("image: {repository: 'moebius:1.0'}", "/image/repository"),
    ("drainSeconds: 2m", "/drainSeconds"),
    ("logFormat: xml", "/logFormat"),
    ("transport: nccl", "/transport"),
    ("tls: {mode: 'off'}", "/tls/mode"),
    ("tls: {certManager: {issuerRef: {name: ca, kind: Vault}}}", "/tls/certManager/issuerRef/kind"),
    ("service: {type: ExternalName}", "/service/type"),
    ("service: {port: 70000}", "/service/port"),
    ("network: {ipFamily: IPv5}", "/network/ipFamily"),
    ("apiKeys: {secret: Team_A}", "/apiKeys/secret"),
    ("apiKeys: {file: clients.json}", "additional properties 'file' not allowed"),
    ("tracing: {endpoint: 'https://collector:4318/v1/traces'}", "/tracing/endpoint"),
    ("tracing: {endpoint: 'http://collector/v1/traces'}", "/tracing/endpoint"),
    ("tracing: {sampleRatio: 1.5}", "/tracing/sampleRatio"),
    ("tracing: {callerRate: -1}", "/tracing/callerRate"),
    ("networkPolicy: {prometheusNamespace: [monitoring]}", "/networkPolicy/prometheusNamespace"),
    ("podDisruptionBudget: {maxUnavailable: 0}", "/podDisruptionBudget/maxUnavailable"),
    ("probes: {startup: {failureThreshold: 0}}", "/probes/startup/failureThreshold"),
    ("podMonitor: {interval: 15}", "/podMonitor/interval"),
    ("commonLabels: {app.kubernetes.io/name: other}", "/commonLabels"),
    ("commonLabels: {'two words': x}", "/commonLabels"),
    ("commonLabels: {team: 'two words'}", "/commonLabels/team"),
    ("commonAnnotations: {'two words': x}", "/commonAnnotations"),
    ("router: {podLabels: {app.kubernetes.io/component: expert}}", "/router/podLabels"),
    ("experts: {pools: {default: {podLabels: {moebius/pool: other}}}}", "podLabels"),
    ("attention: {podLabels: {moebius/model: other}}", "/attention/podLabels"),
    ("podMonitor: {labels: {app.kubernetes.io/instance: other}}", "/podMonitor/labels"),
    ('router: {extraArgs: ["--threads=4\\n--insecure"]}', "/router/extraArgs/0"),
    ('tls: {allowedPeers: ["spiffe://a b"]}', "/tls/allowedPeers/0"),
]
BY_TEMPLATE = [
    ("experts: {replicasPerExpert: 3}", "experts.replicasPerExpert is 3"),
    ("router: {rowBudget: 64, chunk: 128}", "router.chunk is more than router.rowBudget"),
    ("apiKeys: {secret: clients}", "apiKeys.testSecret is empty"),
    ("tls: {mode: secret}", "tls.secrets.router is empty"),
    ("tls: {mode: certManager}", "tls.certManager.issuerRef.name is empty"),
]


class RefusalsTest(unittest.TestCase):
    def refuse(self, text, message):
        with self.subTest(text), tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            done = chart.helm("template", chart.RELEASE, chart.CHART, "--values", file.name)
            self.assertNotEqual(done.returncode, 0, text)
            self.assertIn(message, done.stderr)

    def test_the_schema_refuses_what_it_does_not_know(self):
        self.assertGreaterEqual(len(BY_SCHEMA), 20)
        for text, message in BY_SCHEMA:
            self.refuse(text, message)

    def test_templates_refuse_what_does_not_fit_together(self):
        for text, message in BY_TEMPLATE:
            self.refuse(text, message)

    def test_every_default_is_in_the_schema_and_the_other_way_round(self):
        values = yaml.safe_load(chart.helm("show", "values", chart.CHART).stdout)
        with open(f"{chart.CHART}/values.schema.json", encoding="utf-8") as file:
            schema = yaml.safe_load(file)
        self.assertEqual(set(schema["properties"]) - {"global"}, set(values))
        for role in ("router", "attention"):
            self.assertEqual(set(schema["properties"][role]["properties"]), set(values[role]))
        for key in ("model", "tls", "network", "service", "networkPolicy", "probes", "test",
                    "apiKeys", "tracing"):
            self.assertEqual(set(schema["properties"][key]["properties"]), set(values[key]), key)


if __name__ == "__main__":
    unittest.main()
