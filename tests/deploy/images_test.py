# SPDX-License-Identifier: Apache-2.0
"""The images, made of the programs of this tree and run: each role's, and those of the compose file.

Every container has a read-only root, a user that no image knows, and no capabilities.
"""
import contextlib
import json
import os
import sys
import unittest

import containers
import operation_tools

containers.check_host()
operation_tools.enter()

# pylint: disable=wrong-import-position
import yaml  # noqa: E402

SOURCE = containers.SOURCE
COMPOSE = os.path.join(SOURCE, "deploy", "compose", "compose.yaml")
PODMAN_COMPOSE = os.path.join(operation_tools.ENVIRONMENT.folder, "bin", "podman-compose")
VERSION = "0.1.0"
MODEL = "/opt/moebius/models/demo"
USER = "12345:23456"
ROUTER = "127.0.0.1:7413"
CONFINED = ("--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges")
# Nothing of these can be had without a registry.
FROM_A_REGISTRY = {"prometheus", "grafana"}


def make_images():
    made = containers.run(sys.executable, os.path.join(SOURCE, "tools", "make_package.py"),
                          os.environ["MOEBIUS_BINARY_DIR"],
                          os.path.join(SOURCE, "build", "package"))
    if made.returncode != 0:
        raise AssertionError(made.stdout + made.stderr)
    with contextlib.closing(containers.Containers()) as made:
        made.check(containers.BUILD, "--from-package")


def demo_case():
    with open(os.path.join(SOURCE, "models", "demo", "expected.json"), encoding="utf-8") as file:
        return json.load(file)["cases"][0]


class ImagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.containers = containers.Containers()
        cls.addClassCleanup(cls.containers.close)

    def setUp(self):
        self.addCleanup(self.containers.run, "podman", "rm", "--all", "--force", "--time", "0")

    def start(self, name, role, *flags):
        self.containers.check(
            "podman", "run", "--detach", "--name", name, "--network", "host", "--user", USER,
            *CONFINED, f"moebius-{role}:{VERSION}", f"--name={name}", f"--model={MODEL}",
            "--threads=1", "--transport=grpc", *flags)

    def moebius(self, *words, network="host"):
        """The command line, from its image."""
        return self.containers.run("podman", "run", "--rm", "--network", network, "--user", USER,
                                   *CONFINED, f"moebius:{VERSION}", *words)

    def check_answer(self):
        case = demo_case()
        done = self.moebius(
            "generate", "--router", ROUTER, "--prompt", case["prompt"], "--max-tokens",
            str(case["max_tokens"]), "--temperature", str(case["temperature"]), "--seed",
            str(case["seed"]), "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        answer = json.loads(done.stdout)
        self.assertEqual(answer["token_ids"], case["token_ids"])
        self.assertEqual(answer["logits_hash"], case["logits_hash"])

    def wait(self):
        if self.moebius("wait", "--router", ROUTER, "--timeout", "120s").returncode == 0:
            return
        logs = [self.containers.run("podman", "logs", "--tail", "20", name) for name in
                self.containers.check("podman", "ps", "-a", "--format", "{{.Names}}").split()]
        self.fail("\n".join(log.stdout + log.stderr for log in logs))

    def test_each_roles_image_is_one_of_a_cluster_that_answers_with_the_recorded_bits(self):
        self.start("router", "router", "--experts=2", "--attention=2")
        for i in range(2):
            self.start(f"expert-{i}", "expert", "--join=127.0.0.1:7410",
                       f"--http-listen=127.0.0.1:742{i}", "--admin-listen=127.0.0.1:0")
            self.start(f"attention-{i}", "attention", "--join=127.0.0.1:7410",
                       f"--listen=127.0.0.1:743{i}", f"--http-listen=127.0.0.1:744{i}",
                       "--admin-listen=127.0.0.1:0", "--kv-budget=64MiB")
        self.wait()
        self.check_answer()
        self.containers.check("podman", "kill", "expert-0")
        self.check_answer()
        # Process 1 drains at SIGTERM.
        names = ["expert-1", "attention-0", "attention-1", "router"]
        self.containers.check("podman", "stop", "--time", "60", *names)
        for name in names:
            self.assertEqual(self.containers.check(
                "podman", "inspect", "--format", "{{.State.ExitCode}}", name).strip(), "0", name)

    def test_images_start_their_program_and_name_a_user_without_rights(self):
        for name in ("moebius", "moebius-router", "moebius-expert", "moebius-attention"):
            config = json.loads(self.containers.check("podman", "inspect", f"{name}:{VERSION}"))[0]
            self.assertEqual(config["User"], "65532:65532", name)
            self.assertEqual(config["Config"]["Entrypoint"], [f"/usr/local/bin/{name}"])

    def test_what_compose_starts_answers_and_prometheus_would_reach_everybody(self):
        with open(COMPOSE, encoding="utf-8") as file:
            compose = yaml.safe_load(file)
        services = [name for name in compose["services"] if name not in FROM_A_REGISTRY]
        command = (PODMAN_COMPOSE, "--file", COMPOSE)
        self.addCleanup(self.containers.run, *command, "down")
        self.containers.check(*command, "up", "--detach", "--no-build", *services)
        self.wait()
        self.check_answer()
        # By the names that the targets of Prometheus have.
        network = f"{compose['name']}_default"
        done = self.moebius("doctor", "--router", "router:7413", "--peers",
                            ",".join(f"{name}:7412" for name in services), network=network)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("HTTP ports answer", done.stdout)


if __name__ == "__main__":
    containers.enter(make_images)
    unittest.main()
