# SPDX-License-Identifier: Apache-2.0
"""What the chart starts, started: the real programs with the rendered commands, flags and secrets."""
import json
import os
import sys
import tempfile
import threading
import time
import unittest

import operation_tools

operation_tools.enter()

# pylint: disable=wrong-import-position
import chart  # noqa: E402
import pods  # noqa: E402
import report_tests  # noqa: E402
import trace_collector  # noqa: E402

STOP_SECONDS = 60


def expected_answer():
    """The same request, answered by one process without any cluster."""
    done = operation_tools.run(os.path.join(pods.PROGRAMS, "moebius"), "generate", "--model",
                               pods.DEMO, "--prompt", "And the king said", "--max-tokens", "8",
                               "--temperature", "0", "--json")
    return json.loads(done.stdout)


class Traffic:
    """Requests one after another, for as long as the block runs."""

    def __init__(self, router):
        self.router, self.done, self.failures = router, 0, []
        self.changed, self.ended = threading.Condition(), False
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        while not self.ended:
            done = operation_tools.run(
                os.path.join(pods.PROGRAMS, "moebius"), "generate", "--router", self.router,
                "--prompt", "And the king said", "--max-tokens", "4", "--json")
            with self.changed:
                self.done += 1
                if done.returncode != 0:
                    self.failures.append(done.stderr)
                self.changed.notify_all()

    def wait_for(self, count):
        """Returns when so many have ended."""
        with self.changed:
            self.changed.wait_for(lambda: self.done >= count, STOP_SECONDS)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended = True
        self.thread.join()


def moebius(*arguments):
    return operation_tools.run(os.path.join(pods.PROGRAMS, "moebius"), *arguments)


class PodsTest(unittest.TestCase):
    def serve(self, value_set):
        """Starts the pods, lets `helm test` ask them, and stops them."""
        with pods.Cluster(chart.render(chart.value_sets()[value_set])) as cluster:
            cluster.wait_until_ready()
            answer = json.loads(cluster.run_test_hook())
            codes = cluster.stop(STOP_SECONDS)
            self.assertEqual(set(codes.values()), {0},
                             "\n".join(c.describe() for c in cluster.services()))
        return answer

    def test_without_values_the_pods_answer_over_tls_with_the_bits_of_one_process(self):
        answer = self.serve("default")
        self.assertTrue(answer["exactness"]["exact"])
        for key in ("text", "tokens_hash", "logits_hash"):
            self.assertEqual(answer[key], expected_answer()[key])

    def test_without_tls_they_answer_too(self):
        self.assertEqual(self.serve("insecure")["logits_hash"], expected_answer()["logits_hash"])

    def test_with_keys_who_has_none_is_refused_and_spans_reach_the_collector(self):
        collector = trace_collector.Collector()
        self.addCleanup(collector.close)
        with tempfile.TemporaryDirectory() as folder:
            clients = os.path.join(folder, "clients.json")
            key = moebius("keys", "add", "helm-test", "--file", clients).stdout
            with open(clients, encoding="utf-8") as file:
                secrets = {"moebius-clients": {"clients.json": file.read()},
                           "moebius-test-key": {"key": key}}
            objects = chart.render(chart.value_sets()["keys_and_tracing"], flags=(
                "--set", "tls.mode=disabled", "--set", "tracing.sampleRatio=1",
                "--set", f"tracing.endpoint={collector.url()}"))
            with pods.Cluster(objects, secrets) as cluster:
                cluster.wait_until_ready()
                answer = json.loads(cluster.run_test_hook())
                self.assertEqual(answer["logits_hash"], expected_answer()["logits_hash"])
                (router,) = [c.pod for c in cluster.services() if c.manifest["name"] == "router"]
                ask = ("generate", "--router", f"{router.address}:7413", "--prompt", "x",
                       "--max-tokens", "1")
                refused = moebius(*ask)
                self.assertEqual(refused.returncode, 1)
                self.assertIn("key", refused.stderr)
                # A key of a client that joins the list counts from then on, without a restart.
                with open(os.path.join(folder, "key"), "w", encoding="utf-8") as file:
                    file.write(moebius("keys", "add", "late", "--file", clients).stdout)
                with open(clients, encoding="utf-8") as file:
                    cluster.write_secret("moebius-clients", {"clients.json": file.read()})
                end = time.monotonic() + STOP_SECONDS
                while moebius(*ask, "--api-key-file", os.path.join(folder, "key")).returncode != 0:
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.5)
                cluster.stop(STOP_SECONDS)
        self.assertTrue({"generate", "admission", "gate", "forward"} <=
                        {span["name"] for span in collector.spans()})

    def test_a_rolling_update_of_the_experts_fails_no_request(self):
        with pods.Cluster(chart.render(chart.value_sets()["insecure"])) as cluster:
            cluster.wait_until_ready()
            (router,) = [c.pod for c in cluster.services() if c.manifest["name"] == "router"]
            with Traffic(f"{router.address}:7413") as traffic:
                for container in cluster.services():
                    if container.manifest["name"] == "expert":
                        self.assertEqual(cluster.restart(container, STOP_SECONDS), 0)
                        cluster.wait_until_ready()
                        traffic.wait_for(traffic.done + 2)
            self.assertEqual(traffic.failures, [])

    def test_the_programs_accept_the_flags_of_every_value_set(self):
        for name, path in chart.value_sets().items():
            for pod_name, labels, spec in chart.pod_templates(chart.render(path)):
                if labels["app.kubernetes.io/component"] == "test":
                    continue
                pod = pods.Pod(pod_name, "127.0.0.1", labels, spec)
                program, *flags = pod.command(spec["containers"][0])
                done = operation_tools.run(
                    os.path.join(pods.PROGRAMS, os.path.basename(program)), *flags, "--check-config")
                self.assertEqual(done.returncode, 0, f"{name}: {pod_name}: {done.stderr}")


if __name__ == "__main__":
    if not report_tests.sandbox_works():
        print("MOEBIUS_SKIP: this host lets nobody make namespaces")
        sys.exit(77)
    unittest.main()
