# SPDX-License-Identifier: Apache-2.0
"""Images, the compose file and the systemd units: clean, and of the flags that the programs have."""
import json
import os
import re
import unittest

import operation_tools

operation_tools.enter()

# pylint: disable=wrong-import-position
import yaml  # noqa: E402

DEPLOY = os.path.join(operation_tools.SOURCE, "deploy")
PROGRAMS = os.environ["MOEBIUS_PROGRAM_DIR"]
UNITS = os.path.join(DEPLOY, "systemd")
DOCKERFILE = os.path.join(DEPLOY, "images", "Dockerfile")
COMPOSE = os.path.join(DEPLOY, "compose", "compose.yaml")
INSTALLED = "/usr/local/bin/"
GRACE_SECONDS = 15


def load(path):
    with open(path, encoding="utf-8") as file:
        return yaml.safe_load(file)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def check_config(path, *flags):
    """The program of an installed path, asked whether it would take these flags."""
    return operation_tools.run(os.path.join(PROGRAMS, os.path.basename(path)), *flags,
                               "--check-config")


class ImagesTest(unittest.TestCase):
    def test_hadolint_finds_nothing(self):
        done = operation_tools.run(operation_tools.HADOLINT, DOCKERFILE)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_every_role_has_a_target_that_starts_its_program_without_a_shell(self):
        stages = re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", read(DOCKERFILE), re.M | re.S)
        for role, program in (("router", "moebius-router"), ("expert", "moebius-expert"),
                              ("attention", "moebius-attention"), ("moebius", "moebius")):
            body = dict(stages)[role]
            self.assertIn(f'ENTRYPOINT ["{INSTALLED}{program}"]', body)
        self.assertIn("USER 65532:65532", dict(stages)["base"])

    def test_nothing_of_the_build_tree_but_the_package_goes_into_the_context(self):
        lines = read(os.path.join(operation_tools.SOURCE, ".dockerignore")).splitlines()
        self.assertEqual(lines[1:], [".git", "build", "!build/package"])


class ComposeTest(unittest.TestCase):
    def services(self):
        return {name: service for name, service in load(COMPOSE)["services"].items()
                if service["image"].startswith("moebius:")}

    def test_the_programs_accept_their_flags(self):
        self.assertEqual(len(self.services()), 4)
        for name, service in self.services().items():
            done = check_config(service["entrypoint"][0], *service["command"])
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")

    def test_the_router_waits_for_as_many_as_there_are(self):
        programs = [service["entrypoint"][0] for service in self.services().values()]
        flags = self.services()["router"]["command"]
        self.assertIn(f"--experts={programs.count(INSTALLED + 'moebius-expert')}", flags)
        self.assertIn(f"--attention={programs.count(INSTALLED + 'moebius-attention')}", flags)

    def test_every_service_is_read_only_and_has_time_to_drain(self):
        for name, service in self.services().items():
            self.assertTrue(service["read_only"], name)
            self.assertEqual(service["cap_drop"], ["ALL"], name)
            self.assertEqual(service["stop_grace_period"], f"{120 + GRACE_SECONDS}s", name)

    def test_prometheus_scrapes_exactly_these(self):
        config = load(os.path.join(DEPLOY, "prometheus", "prometheus.yml"))
        targets = {target for group in config["scrape_configs"][0]["static_configs"]
                   for target in group["targets"]}
        self.assertEqual(targets, {f"{name}:7412" for name in self.services()})
        done = operation_tools.run(operation_tools.PROMTOOL, "check", "config",
                                   os.path.join(DEPLOY, "prometheus", "prometheus.yml"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_mounted_folder_is_there_and_grafana_looks_where_it_is_mounted(self):
        mounts = {}
        for service in load(COMPOSE)["services"].values():
            for volume in service.get("volumes", []):
                source, target = volume.split(":")[:2]
                if source.startswith("."):
                    mounts[target] = os.path.join(os.path.dirname(COMPOSE), source)
        for target, path in mounts.items():
            self.assertTrue(os.path.isdir(path), path)
        provider = load(os.path.join(DEPLOY, "grafana", "provisioning", "dashboards",
                                     "moebius.yaml"))["providers"][0]
        self.assertIn(provider["options"]["path"], mounts)


class UnitsTest(unittest.TestCase):
    def commands(self):
        """(unit, words of ExecStart with the unit's specifiers filled in)."""
        for name in sorted(os.listdir(UNITS)):
            if name.endswith(".service"):
                line = re.search(r"^ExecStart=(.*)$", read(os.path.join(UNITS, name)), re.M)[1]
                yield name, line.replace("%H", "host").replace("%i", "30").split()

    def test_the_programs_accept_their_flags_and_files(self):
        self.assertEqual(len(list(self.commands())), 3)
        for name, words in self.commands():
            words = [word.replace("/etc/moebius", UNITS) for word in words]
            done = check_config(*words)
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")

    def test_systemd_waits_longer_than_the_drain_and_gives_up_on_a_wrong_configuration(self):
        for name, words in self.commands():
            text = read(os.path.join(UNITS, name))
            config = json.loads(read(os.path.join(UNITS, os.path.basename(words[2]))))
            drain = config.get("drain-seconds", 120)
            self.assertIn(f"TimeoutStopSec={drain + GRACE_SECONDS}\n", text)
            self.assertIn("RestartPreventExitStatus=2 3 4\n", text)

    def test_each_unit_has_its_file(self):
        self.assertEqual(sorted(name for name in os.listdir(UNITS) if name.endswith(".json")),
                         ["attention.json", "expert.json", "router.json"])


if __name__ == "__main__":
    unittest.main()
