# SPDX-License-Identifier: Apache-2.0
"""A served cluster of the demo model and a Prometheus that scrapes it, for as long as a test runs."""
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import operation_tools
import yaml

PROGRAMS = os.environ["MOEBIUS_PROGRAM_DIR"]
MOEBIUS = os.path.join(PROGRAMS, "moebius")
DEMO = os.path.join(operation_tools.SOURCE, "models", "demo")
END_SECONDS = 30


def wait_until(condition, seconds):
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def free_port():
    """For a program that cannot choose one and tell, or has to come back to it: none of those that
    connections are given, so that it stays free while nobody listens."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="utf-8") as file:
        given = int(file.read().split()[0])
    for _ in range(1000):
        port = random.randrange(max(1024, given - 12000), max(2048, given))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AssertionError("a thousand ports were taken")


def make_certificates(folder, *flags):
    done = operation_tools.run(MOEBIUS, "certs", "init", "--out", folder, *flags)
    if done.returncode != 0:
        raise AssertionError(done.stderr)


class Process:
    """A program whose output goes to a file; it ends with the block."""

    def __init__(self, *command, stop=signal.SIGTERM):
        self.stop_signal = stop
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()

    def output(self):
        self.log.seek(0)
        return self.log.read().decode("utf-8", "replace")


class Cluster(Process):
    """`moebius serve` of the demo, ready when the block begins."""

    READY_SECONDS = 120

    def __init__(self, folder, *flags, certs=None):
        """`certs` is a folder that `make_certificates` has filled: mutual TLS on every port."""
        super().__init__(MOEBIUS, "serve", "--model", DEMO, "--json", "--log-dir",
                         os.path.join(folder, "logs"), *(["--certs", certs] if certs else []),
                         *flags, stop=signal.SIGINT)
        self.certs = certs
        self.ready = None

    def __enter__(self):
        if not wait_until(self._is_ready, self.READY_SECONDS):
            output = self.output()
            self.__exit__()
            raise AssertionError(f"the cluster is not ready:\n{output}")
        return self

    def _is_ready(self):
        for line in self.output().splitlines():
            if line.startswith('{"event":"ready"'):
                self.ready = json.loads(line)
        return self.ready is not None or self.process.poll() is not None

    def targets(self):
        """Static scrape targets with the labels that the chart's PodMonitor gives."""
        return [{"targets": [urllib.parse.urlsplit(process["metrics"]).netloc],
                 "labels": {"namespace": "test", "model": "demo", "role": process["role"],
                            "pod": f"demo-{process['name']}"}}
                for process in self.ready["processes"]]

    def pids(self, *names):
        pids = {process["name"]: process["pid"] for process in self.ready["processes"]}
        return [pids[name] for name in names]

    def flags_of(self, role):
        """Who a process that joins or asks says it is."""
        if self.certs is None:
            return []
        return ["--tls-ca", os.path.join(self.certs, "ca.pem"),
                "--tls-cert", os.path.join(self.certs, f"{role}.pem"),
                "--tls-key", os.path.join(self.certs, f"{role}.key")]

    def generate(self, *flags):
        return operation_tools.run(MOEBIUS, "generate", "--router", self.ready["router"],
                                   "--json", *self.flags_of("client"), *flags)


class Traffic:
    """Short requests, one after another, until the block ends."""

    def __init__(self, cluster):
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(cluster,))

    def _run(self, cluster):
        while not self.ended.is_set():
            cluster.generate("--prompt", "And the king said", "--max-tokens", "8")
            cluster.generate("--prompt-ids", "99999999")
            self.ended.wait(0.2)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


class Prometheus(Process):
    """A Prometheus with the deployed rules; it scrapes and evaluates every second."""

    def __init__(self, folder, targets, rule_files):
        config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                  "rule_files": self._every_second(folder, rule_files),
                  "scrape_configs": [{"job_name": "moebius", "static_configs": targets}]}
        path = os.path.join(folder, "prometheus.yml")
        with open(path, "w", encoding="utf-8") as file:
            yaml.safe_dump(config, file)
        self.address_file = path
        self.url = f"http://127.0.0.1:{free_port()}"
        super().__init__(operation_tools.PROMETHEUS, f"--config.file={path}",
                         f"--storage.tsdb.path={os.path.join(folder, 'data')}",
                         f"--web.listen-address={self.url[len('http://'):]}")

    @staticmethod
    def _every_second(folder, rule_files):
        """Copies of the rules without their own intervals."""
        copies = []
        for path in rule_files:
            with open(path, encoding="utf-8") as file:
                rules = yaml.safe_load(file)
            for group in rules["groups"]:
                group.pop("interval", None)
            copies.append(os.path.join(folder, os.path.basename(path)))
            with open(copies[-1], "w", encoding="utf-8") as file:
                yaml.safe_dump(rules, file)
        return copies

    def ask(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def values(self, expression):
        """The samples of an instant query that are numbers."""
        result = self.ask("query", query=expression)["result"]
        return [sample for sample in result if sample["value"][1] != "NaN"]

    def is_ready(self):
        try:
            with urllib.request.urlopen(self.url + "/-/ready", timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False
