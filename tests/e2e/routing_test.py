# SPDX-License-Identifier: Apache-2.0
"""Capacity, biases and placement of a cluster of processes: what they change, and what is told."""
import json
import os
import tempfile
import unittest

import programs

READY_SECONDS = 60
PROMPT = ["--prompt", "And the king said to them, Go ye into the city", "--seed", "7"]


class Cluster:
    """A router with flags of its own, expert services and one attention rank; ready."""

    def __init__(self, *router_flags, num_experts=2, expert_flags=None):
        self.services = []
        try:
            self.router = self.start(
                "router", "--listen=127.0.0.1:0", "--grpc-listen=127.0.0.1:0",
                "--admin-listen=127.0.0.1:0", "--http-listen=127.0.0.1:0",
                f"--experts={num_experts}", *router_flags)
            join = f"--join={self.router.ports['data']}"
            for slot in range(num_experts):
                self.start("expert", join, f"--slot={slot}", *(expert_flags or {}).get(slot, []))
            self.start("attention", join, "--listen=127.0.0.1:0")
            done = programs.run(programs.MOEBIUS, "wait", "--router", self.grpc(), "--timeout",
                                f"{READY_SECONDS}s")
            if done.code != 0:
                raise AssertionError(f"{done}\n{self.router.stderr()}")
        except BaseException:
            self.close()
            raise

    def start(self, role, *flags):
        service = programs.Service(role, *flags)
        self.services.append(service)
        return service

    def grpc(self):
        return self.router.ports["grpc"]

    def admin(self):
        return self.router.ports["admin"]

    def generate(self, *flags):
        done = programs.run(programs.MOEBIUS, "generate", "--router", self.grpc(), "--json",
                            "--temperature", "0", *flags)
        if done.code != 0:
            raise AssertionError(str(done))
        return done.json()

    def command(self, *words):
        return programs.run(programs.MOEBIUS, *words)

    def metric(self, series):
        text = programs.fetch(self.router.ports["http"], "/metrics")[1]
        for line in text.splitlines():
            if line.startswith(series + " "):
                return float(line.rsplit(" ", 1)[1])
        return None

    def close(self):
        for service in reversed(self.services):
            service.close()


class RoutingTest(unittest.TestCase):
    def cluster(self, *router_flags, **options):
        cluster = Cluster(*router_flags, **options)
        self.addCleanup(cluster.close)
        return cluster

    def test_a_capacity_gives_the_bits_of_one_process_and_counts_what_it_dropped(self):
        for overflow in ("drop", "next_best"):
            flags = ["--capacity-factor=1", f"--capacity-overflow={overflow}"]
            expected = programs.generate(*PROMPT, "--max-tokens", "8", *flags)
            self.assertFalse(expected["exactness"]["exact"])
            cluster = self.cluster(*flags)
            answer = cluster.generate(*PROMPT, "--max-tokens", "8")
            self.assertEqual(answer["token_ids"], expected["token_ids"])
            self.assertEqual(answer["logits_hash"], expected["logits_hash"])
            self.assertEqual(answer["exactness"], expected["exactness"])
            dropped = answer["exactness"]["dropped"]
            self.assertEqual(cluster.metric('moebius_assignments_dropped_total{reason="capacity"}'),
                             dropped)
            self.assertEqual(cluster.metric("moebius_assignments_rerouted_total"),
                             answer["exactness"]["rerouted"])
            self.assertEqual(cluster.metric('moebius_assignments_total{stage="routed"}'),
                             cluster.metric('moebius_assignments_total{stage="combined"}') + dropped)
            self.assertEqual(cluster.metric('moebius_assignments_total{stage="dispatched"}'),
                             cluster.metric('moebius_assignments_total{stage="combined"}'))
            self.assertEqual(cluster.metric('moebius_assignments_dropped_total{reason="nonfinite"}'),
                             0)
            self.assertEqual(cluster.metric("moebius_token_conservation_errors_total"), 0)
            self.assertEqual(
                cluster.metric('moebius_degraded_responses_total{reason="capacity"}'), 1)
            table = cluster.command("experts", "--router", cluster.grpc(), "--json").json()
            self.assertEqual(sum(map(sum, table["dropped"])), dropped)

    def check_load_spread(self, cluster, shown):
        """Every assignment that the gates asked for is shown at the one replica that served it."""
        table = cluster.command("experts", "--router", cluster.grpc(), "--json").json()
        layers = [layer for layer in shown["layers"] if layer["has_experts"]]
        self.assertEqual([layer["layer"] for layer in layers], table["layer_ids"])
        by_service = [0] * len(shown["services"])
        for layer, demand in zip(layers, table["demand"]):
            for holders, served in zip(layer["services_of"], layer["served_of"]):
                self.assertEqual(len(holders), len(served))
            self.assertEqual([sum(served) for served in layer["served_of"][:32]], demand)
            for holders, served in zip(layer["services_of"][:32], layer["served_of"]):
                for holder, count in zip(holders, served):
                    by_service[holder] += count
        self.assertEqual([service["served"] for service in shown["services"]], by_service)
        self.assertEqual(sum(by_service), cluster.metric(
            'moebius_assignments_total{stage="combined"}'))
        self.assertGreater(min(by_service), 0)
        self.assertAlmostEqual(shown["served_max_over_mean"],
                               max(by_service) * len(by_service) / sum(by_service), places=5)
        self.assertGreaterEqual(shown["busiest_replica_share"], 0.5)
        text = cluster.command("placement", "show", "--router", cluster.grpc(), "--all").out
        self.assertIn("services' max/mean", text)
        self.assertIn("expert:assignments that were served there", text)

    def test_biases_are_told_kept_and_reset(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        file = os.path.join(folder.name, "biases.json")
        flags = ["--bias-balancer=on", f"--bias-file={file}", "--bias-window=1",
                 "--bias-gamma=0.05"]
        one_token = [*PROMPT, "--max-tokens", "1"]
        exact = programs.generate(*one_token)

        cluster = self.cluster(*flags)
        first = cluster.generate(*one_token)
        self.assertTrue(first["exactness"]["bias_override"])
        self.assertEqual(first["logits_hash"], exact["logits_hash"], "nothing had moved yet")
        moved = cluster.generate(*one_token)
        self.assertNotEqual(moved["logits_hash"], exact["logits_hash"])
        self.assertIn("the balancer's biases, version ", moved["exactness"]["reasons"][0])

        def shown():
            done = cluster.command("bias", "show", "--router", cluster.grpc(), "--json")
            self.assertEqual(done.code, 0, done)
            return done.json()

        biases = shown()
        self.assertGreater(biases["version"], 0)
        self.assertEqual(biases["file"], file)
        self.assertEqual(cluster.metric("moebius_bias_version"), biases["version"])

        def kept():
            if not os.path.exists(file):
                return None
            with open(file, encoding="utf-8") as text:
                return json.load(text)

        self.assertTrue(programs.wait_until(
            lambda: (kept() or {}).get("version") == biases["version"], 20))
        for entry, layer in zip(kept()["layers"], biases["layers"]):
            self.assertEqual(entry["bias"], layer["bias"])

        # A new router goes on where the old one ended.
        cluster.close()
        cluster = self.cluster(*flags)
        self.assertEqual(shown()["version"], biases["version"])
        self.assertEqual([layer["bias"] for layer in shown()["layers"]],
                         [layer["bias"] for layer in biases["layers"]])

        # The public port changes nothing; the operators' does.
        refused = cluster.command("bias", "reset", "--admin", cluster.grpc())
        self.assertEqual(refused.code, 1, refused)
        done = cluster.command("bias", "reset", "--admin", cluster.admin(), "--json")
        self.assertEqual(done.code, 0, done)
        self.assertEqual(done.json()["version"], biases["version"] + 1)
        self.assertEqual(cluster.generate(*one_token)["logits_hash"], exact["logits_hash"])
        stale = cluster.command("bias", "reset", "--admin", cluster.admin(), "--expected-version",
                                "1", "--json")
        self.assertEqual(stale.code, 1, stale)
        self.assertIn("ABORTED", stale.err)

    def test_says_what_a_level_placement_would_move_and_the_file_of_it_keeps_the_bits(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        file = os.path.join(folder.name, "placement.json")
        cluster = self.cluster(num_experts=3)
        early = cluster.command("placement", "apply", "--dry-run", "--router", cluster.grpc())
        self.assertEqual(early.code, 1, early)
        self.assertIn("nothing has been routed yet", early.err)
        expected = cluster.generate(*PROMPT, "--max-tokens", "8")
        self.assertTrue(expected["exactness"]["exact"])

        shown = cluster.command("placement", "show", "--router", cluster.grpc(), "--json").json()
        self.assertEqual(len(shown["services"]), 3)
        self.assertEqual({service["state"] for service in shown["services"]}, {"usable"})
        experts = sum(service["num_experts_held"] for service in shown["services"])
        self.assertEqual(experts, 5 * 32 * 2, "five layers of 32 experts, two replicas")
        self.check_load_spread(cluster, shown)

        live = cluster.command("placement", "apply", "--router", cluster.grpc())
        self.assertEqual(live.code, 2, live)
        self.assertIn("a running router does not change its placement", live.err)
        done = cluster.command("placement", "apply", "--dry-run", "--router", cluster.grpc(),
                               "--out", file, "--json")
        self.assertEqual(done.code, 0, done)
        plan = done.json()
        self.assertTrue(plan["dry_run"])
        for before, after, bound in zip(plan["max_over_mean_before"], plan["max_over_mean"],
                                        plan["lower_bound"]):
            self.assertLessEqual(after, before)
            self.assertGreaterEqual(after, bound - 1e-6)
        self.assertLess(max(plan["max_over_mean"]), max(plan["max_over_mean_before"]))
        loads = sum(len(service["loads"]) for service in plan["services"])
        self.assertEqual(plan["moved_replicas"], loads)
        self.assertEqual(plan["moved_bytes"], loads * shown["expert_bytes"])
        tight = cluster.command("placement", "apply", "--dry-run", "--router", cluster.grpc(),
                                "--move-budget", str(2 * shown["expert_bytes"]), "--json").json()
        self.assertLessEqual(tight["moved_bytes"], 2 * shown["expert_bytes"])

        moved = self.cluster(f"--placement={file}", num_experts=3)
        answer = moved.generate(*PROMPT, "--max-tokens", "8")
        self.assertEqual(answer["logits_hash"], expected["logits_hash"])
        again = moved.command("placement", "show", "--router", moved.grpc(), "--json").json()
        held = {service["name"]: service["num_experts_held"] for service in again["services"]}
        self.assertEqual(sum(held.values()), experts)


if __name__ == "__main__":
    unittest.main()
