# SPDX-License-Identifier: Apache-2.0
"""What an operator asks of a cluster that has keys: its figures, its log, `moebius doctor`."""
import glob
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

import programs

PATIENCE_SECONDS = 60
# Metrics that some clusters have and this one has not.
ELSEWHERE = {
    "moebius_expert_assignments_dropped_total": "without a capacity nothing can be dropped",
    "moebius_tls_certificate_expiry_timestamp_seconds": "without TLS there is no certificate",
    "moebius_tls_reloads_total": "without TLS there are no files",
}


def read(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def wait_until(condition):
    programs.expect_soon(condition, PATIENCE_SECONDS)


class OperatorsTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.keys = os.path.join(self.folder, "keys.json")
        self.key = self.add_key("team-a", "--max-in-flight", "4")
        self.logs = os.path.join(self.folder, "logs")
        self.process = subprocess.Popen(
            [programs.MOEBIUS, "serve", "--model", programs.DEMO, "--experts", "2", "--attention",
             "2", "--api-keys", self.keys, "--json", "--log-dir", self.logs],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        self.addCleanup(self.end)
        self.ready = json.loads(self.process.stdout.readline())
        self.assertEqual(self.ready["event"], "ready", self.ready)
        self.router = self.ready["router"]

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE_SECONDS)
        self.process.stdout.close()

    def add_key(self, client, *flags):
        done = self.run_moebius("keys", "add", client, "--file", self.keys, *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def run_moebius(self, *words, key=None):
        environment = {name: value for name, value in os.environ.items()
                       if name != "MOEBIUS_API_KEY"}
        if key is not None:
            environment["MOEBIUS_API_KEY"] = key
        return subprocess.run([programs.MOEBIUS, *words], capture_output=True, text=True,
                              env=environment, timeout=PATIENCE_SECONDS, check=False)

    def generate(self, key):
        return self.run_moebius("generate", "--router", self.router, "--prompt-ids", "256,72,105",
                                "--max-tokens", "5", "--quiet", key=key)

    def metrics(self, name):
        return read(self.process_named(name)["metrics"])

    def process_named(self, name):
        return next(p for p in self.ready["processes"] if p["name"] == name)

    def value(self, series):
        match = re.search(f"^{re.escape(series)} (.*)$", self.metrics("router"), re.MULTILINE)
        self.assertIsNotNone(match, series)
        return float(match[1])

    def log(self):
        """Of all processes, and what they have said on stdout."""
        text = ""
        for path in glob.glob(os.path.join(self.logs, "*")):
            with open(path, encoding="utf-8", errors="replace") as file:
                text += file.read()
        return text

    def test_clients_have_figures_and_strangers_flood_no_log(self):
        self.assertEqual(self.generate(self.key).returncode, 0)
        self.assertEqual(self.generate(None).returncode, 1)
        for _ in range(19):
            self.assertEqual(self.run_moebius("status", "--router", self.router,
                                              key="moebius_wrong").returncode, 1)
        self.assertEqual(self.value("moebius_unauthenticated_requests_total"), 20)
        self.assertEqual(self.value('moebius_client_requests_total{client="team-a"}'), 1)
        self.assertEqual(self.value('moebius_client_tokens_total{client="team-a"}'), 8)
        wait_until(lambda: self.value('moebius_client_requests_in_flight{client="team-a"}') == 0)
        # Ten lines a minute of one host; how many there were is told when the minute is over.
        wait_until(lambda: "caller=\"team-a\"" in self.log())
        self.assertLessEqual(self.log().count("refused a call of 127.0.0.1: "), 20)
        self.assertGreaterEqual(self.value('moebius_log_lines_total{outcome="suppressed"}'), 1)
        self.assertGreaterEqual(self.log().count("refused a call of 127.0.0.1: "), 10)

    def test_a_key_is_shown_nowhere(self):
        self.assertEqual(self.generate(self.key).returncode, 0)
        self.generate(self.key + "x")
        seen = self.log() + read(self.ready["status"])
        for process in self.ready["processes"]:
            seen += read(process["metrics"])
            with open(f"/proc/{process['pid']}/cmdline", encoding="utf-8") as file:
                seen += file.read()
        with open(self.keys, encoding="utf-8") as file:
            seen += file.read()
        self.assertNotIn(self.key, seen)

    def test_every_metric_of_the_list_is_shown_by_somebody(self):
        self.assertEqual(self.generate(self.key).returncode, 0)
        with open(os.path.join(programs.SOURCE, "docs", "metrics.md"), encoding="utf-8") as file:
            listed = set(re.findall(r"^\| `((?:moebius|process)_[a-z_]+)` \| (?:counter|gauge|histogram)",
                                    file.read(), re.MULTILINE))
        self.assertGreater(len(listed), 80)
        shown = set()
        for process in self.ready["processes"]:
            text = read(process["metrics"])
            series = set(re.findall(r"^([a-z_]+)(?:\{| )", text, re.MULTILINE))
            shown |= {re.sub("_(bucket|sum|count)$", "", name) for name in series} | series
        self.assertEqual(listed - shown, set(ELSEWHERE))

    def test_keys_that_are_made_at_the_same_time_are_all_there(self):
        path = os.path.join(self.folder, "many.json")
        makers = [subprocess.Popen([programs.MOEBIUS, "keys", "add", f"client-{i}", "--file", path],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                  for i in range(8)]
        self.assertEqual([maker.wait(PATIENCE_SECONDS) for maker in makers], [0] * 8)
        listed = json.loads(self.run_moebius("keys", "list", "--file", path, "--json").stdout)
        self.assertEqual({client["name"] for client in listed["clients"]},
                         {f"client-{i}" for i in range(8)})

    def test_a_key_that_no_header_takes_is_an_error_in_words(self):
        for key in ("a\nb", "a b", "\u00e4"):
            done = self.run_moebius("status", "--router", self.router, key=key)
            self.assertIn("the API key has a space", done.stderr)
            self.assertIn(done.returncode, (1, 2, 3))

    def test_a_client_is_told_of_its_own_requests_and_an_operator_of_all(self):
        other = self.add_key("team-b")
        # The router looks at the list every five seconds.
        wait_until(lambda: self.run_moebius("status", "--router", self.router,
                                            key=other).returncode == 0)
        done = self.run_moebius("generate", "--router", self.router, "--prompt-ids", "256,72",
                                "--max-tokens", "2", "--request-id", "mine", "--quiet", key=self.key)
        self.assertEqual(done.returncode, 0, done.stderr)

        def explain(request, key):
            return self.run_moebius("explain", request, "--router", self.router, key=key)
        self.assertEqual(explain("mine", self.key).returncode, 0)
        hidden, absent = explain("mine", other), explain("nobody", other)
        self.assertEqual((hidden.returncode, absent.returncode), (1, 1))
        self.assertEqual(hidden.stderr.replace("mine", "nobody"), absent.stderr)

    def test_keys_in_clear_text_are_warned_of_at_the_start_in_status_and_by_doctor(self):
        service = programs.Service(
            "router", "--listen=127.0.0.1:0", "--grpc-listen=0.0.0.0:0", "--http-listen=127.0.0.1:0",
            "--admin-listen=127.0.0.1:0", "--experts=1", "--insecure", f"--api-keys={self.keys}")
        self.addCleanup(service.close)
        router = service.ports["grpc"].replace("0.0.0.0", "127.0.0.1")
        wait_until(lambda: "API keys come in clear text to 0.0.0.0:" in service.stderr())
        warnings = json.loads(self.run_moebius("status", "--router", router, "--json",
                                               key=self.key).stdout)["warnings"]
        self.assertEqual(len(warnings), 1, warnings)
        done = self.run_moebius("doctor", "--router", router, "--json", key=self.key)
        check, = [c for c in json.loads(done.stdout)["checks"] if c["name"] == "exposure"]
        self.assertEqual(check["state"], "warning")
        self.assertIn("give --tls-ca", check["hint"])
        # Nobody listens on the way within a host.
        status = self.run_moebius("status", "--router", self.router, "--json", key=self.key)
        self.assertEqual(json.loads(status.stdout)["warnings"], [])

    def test_doctor_says_which_address_is_taken_and_by_whom(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            free_address = f"127.0.0.1:{free.getsockname()[1]}"
        self.assertIn(f"ok       addresses       {free_address} is free",
                      self.run_moebius("doctor", "--listen", free_address).stdout)
        done = self.run_moebius("doctor", "--listen", f"{free_address},{self.router}")
        self.assertEqual(done.returncode, 3)
        self.assertIn(f"fault    addresses       address already in use: {self.router} is held by "
                      f"pid {self.process_named('router')['pid']}", done.stdout)
        for words in (("--listen", "7410"), ("--listen", free_address, "--router", self.router)):
            done = self.run_moebius("doctor", *words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn("--listen", done.stderr)

    def test_doctor_looks_at_a_cluster_and_names_who_is_missing(self):
        done = self.run_moebius("doctor", "--router", self.router, "--json", key=self.key)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
        self.assertEqual(set(checks), {"router", "services", "answering", "health", "version",
                                       "configuration", "placement", "clocks"})
        self.assertEqual({check["state"] for check in checks.values()}, {"ok"}, checks)
        self.assertIn("all 5 HTTP ports answer", checks["answering"]["detail"])

        peers = ",".join(p["metrics"].split("/")[2] for p in self.ready["processes"])
        os.kill(self.process_named("expert-1")["pid"], signal.SIGKILL)
        done = self.run_moebius("doctor", "--peers", peers)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(self.process_named("expert-1")["metrics"].split("/")[2], done.stdout)
        wait_until(lambda: "expert-1 is " in self.run_moebius("doctor", "--router", self.router,
                                                              key=self.key).stdout)
        # The other one carries its experts: nothing is missing, and the table says what it knows.
        status = self.run_moebius("status", "--router", self.router, key=self.key).stdout
        self.assertRegex(status, r"expert-1 +expert +empty +– +it has gone")
        self.assertIn("   ready", status)
        done = self.run_moebius("doctor", "--router", self.router)
        self.assertEqual(done.returncode, 1)
        self.assertIn("this router wants a key", done.stdout)
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(8)
            begin = time.monotonic()
            done = self.run_moebius("doctor", "--peers", f"127.0.0.1:{silent.getsockname()[1]}")
            self.assertEqual(done.returncode, 1)
            self.assertLess(time.monotonic() - begin, 20)


if __name__ == "__main__":
    unittest.main()
