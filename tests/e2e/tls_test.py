# SPDX-License-Identifier: Apache-2.0
"""Mutual TLS on every port: the certificates of `moebius certs init`, and those of strangers."""
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading
import unittest
import urllib.request

import programs

END_SECONDS = 30
PATIENCE_SECONDS = 120
EXPIRY = "moebius_tls_certificate_expiry_timestamp_seconds"
RELOADS = 'moebius_tls_reloads_total{{outcome="{}"}}'


def make_certificates(folder, *flags):
    """`moebius certs init`; returns its JSON."""
    done = programs.run(programs.MOEBIUS, "certs", "init", "--out", folder, "--json", *flags)
    if done.code != 0:
        raise AssertionError(str(done))
    return done.json()


def end_of(certificate):
    """Of its validity, in seconds since 1970."""
    done = subprocess.run(["openssl", "x509", "-enddate", "-noout", "-in", certificate],
                          capture_output=True, text=True, check=True)
    return ssl.cert_time_to_seconds(done.stdout.strip().partition("=")[2])


def value_of(process, series):
    with urllib.request.urlopen(process["metrics"], timeout=PATIENCE_SECONDS) as answer:
        text = answer.read().decode()
    return float(re.search(f"^{re.escape(series)} (.*)$", text, re.MULTILINE)[1])


def write(path, text):
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


def wait_until(condition):
    programs.expect_soon(condition, PATIENCE_SECONDS)


class TlsTest(unittest.TestCase):
    """One cluster of processes for all tests; each stranger comes for itself."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.certs = make_certificates(os.path.join(cls.folder.name, "certs"))
        cls.strangers = make_certificates(os.path.join(cls.folder.name, "strangers"))
        cls.router = cls.start("router", "--log-format=json", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0",
                               "--http-listen=", "--grpc-listen=127.0.0.1:0", "--experts=2",
                               *cls.flags_of("router"))
        join = f"--join={cls.router.ports['data']}"
        cls.start("attention", join, "--http-listen=", *cls.flags_of("attention"))
        for _ in range(2):
            cls.start("expert", join, "--http-listen=", *cls.flags_of("expert"))
        cls.grpc = cls.router.ports["grpc"]
        done = cls.call("wait", *cls.flags_of("client"), "--timeout", "120s")
        if done.code != 0:
            raise AssertionError(f"{done}\n{cls.router.stderr()}")

    @classmethod
    def start(cls, role, *flags):
        process = programs.Service(role, *flags)
        cls.addClassCleanup(process.close)
        return process

    @classmethod
    def flags_of(cls, role):
        return cls.certs["roles"][role]["flags"]

    @classmethod
    def call(cls, command, *flags):
        return programs.run(programs.MOEBIUS, command, "--router", cls.grpc, *flags)

    def assert_serves(self):
        done = self.call("health", *self.flags_of("client"))
        self.assertEqual(done.code, 0, str(done))

    def test_answers_have_the_recorded_bits(self):
        expected = programs.expected_case("greedy")
        done = self.call("generate", *programs.flags_of_case(expected), *self.flags_of("client"))
        self.assertEqual(done.code, 0, str(done))
        self.assertEqual(done.json()["token_ids"], expected["token_ids"])
        self.assertEqual(done.json()["logits_hash"], expected["logits_hash"])

    def test_status_and_health_answer(self):
        for port, command in (("grpc", "status"), ("grpc", "health"), ("admin", "health")):
            done = programs.run(programs.MOEBIUS, command, "--router", self.router.ports[port],
                                *self.flags_of("client"))
            self.assertEqual(done.code, 0, f"{port} {command}: {done}")

    def test_a_caller_without_a_certificate_is_refused_and_told_what_to_give(self):
        for flags in ((), ("--tls-ca", self.certs["ca"])):
            done = self.call("status", *flags)
            self.assertEqual(done.code, 1, f"{flags}: {done}")
            self.assertIn("cannot reach a router", done.err)
            self.assertIn("--tls-cert", done.err)
        self.assert_serves()
        # What gRPC says of it is a line of the log like any other.
        lines = self.router.stderr().splitlines()
        self.assertTrue(all(line.startswith("{") for line in lines), lines)
        self.assertTrue(any("grpc: " in json.loads(line)["message"] for line in lines), lines)

    # A rotation replaces one file after the other.
    def test_a_caller_that_starts_in_the_middle_of_a_rotation_waits_for_its_end(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--tls-ca", self.certs["ca"]]
            for flag, source in (("--tls-cert", "client"), ("--tls-key", "expert")):
                given = self.flags_of(source)
                path = os.path.join(folder, flag.strip("-"))
                shutil.copy(given[given.index(flag) + 1], path)
                flags += [flag, path]
            done = self.call("health", *flags)
            self.assertEqual(done.code, 3, str(done))
            self.assertRegex(done.err, r"tls-key: it is not the key of \S+tls-cert")
            given = self.flags_of("client")
            with open(given[given.index("--tls-key") + 1], encoding="utf-8") as file:
                rotation = threading.Timer(0.2, write, (flags[-1], file.read()))
            rotation.start()
            done = self.call("health", *flags)
            rotation.join()
            self.assertEqual(done.code, 0, str(done))

    def test_a_caller_of_another_authority_is_refused(self):
        # Who trusts the router, and shows a certificate that it cannot know.
        client = self.strangers["roles"]["client"]
        done = self.call("status", "--tls-ca", self.certs["ca"], "--tls-cert", client["cert"],
                         "--tls-key", client["key"])
        self.assertEqual(done.code, 1, str(done))
        self.assertIn("cannot reach a router", done.err)
        # Who is known, and does not trust the router.
        client = self.certs["roles"]["client"]
        done = self.call("status", "--tls-ca", self.strangers["ca"], "--tls-cert", client["cert"],
                         "--tls-key", client["key"])
        self.assertEqual(done.code, 1, str(done))
        self.assertIn("certificate verify failed", done.err.lower())
        self.assert_serves()

    def refused_expert(self, *flags):
        """The words of an expert service that the router does not let in."""
        process = programs.Service("expert", f"--join={self.router.ports['data']}", "--http-listen=", *flags)
        self.addCleanup(process.close)
        self.assertTrue(programs.wait_until(lambda: "no router at" in process.stderr(),
                                            END_SECONDS), process.stderr())
        return process.stderr()

    def test_a_peer_without_tls_or_of_another_authority_does_not_join(self):
        self.refused_expert()
        self.refused_expert(*self.strangers["roles"]["expert"]["flags"])
        self.assert_serves()

    def test_a_clients_certificate_makes_no_expert(self):
        words = self.refused_expert(*self.flags_of("client"))
        self.assertIn("its certificate is for a client, it says that it is an expert", words)
        self.assert_serves()


class ServeTlsTest(unittest.TestCase):
    def test_a_local_cluster_runs_with_the_certificates_of_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            certs = make_certificates(os.path.join(folder, "certs"))
            with subprocess.Popen(
                    [programs.MOEBIUS, "serve", "--model", programs.DEMO, "--experts", "2",
                     "--attention", "2", "--certs", os.path.join(folder, "certs"), "--json",
                     "--log-dir", os.path.join(folder, "logs")],
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                    text=True) as serve:
                try:
                    ready = json.loads(serve.stdout.readline())
                    router = ready["router"]
                    expected = programs.expected_case("sampled")
                    done = programs.run(
                        programs.MOEBIUS, "generate", "--router", router,
                        *programs.flags_of_case(expected), *certs["roles"]["client"]["flags"])
                    plain = programs.run(programs.MOEBIUS, "status", "--router", router)
                finally:
                    serve.send_signal(signal.SIGINT)
                    err = serve.communicate(timeout=END_SECONDS)[1]
        self.assertEqual(done.code, 0, str(done))
        self.assertEqual(done.json()["logits_hash"], expected["logits_hash"])
        self.assertEqual(plain.code, 1, str(plain))
        self.assertIn("mutual TLS: callers give --tls-ca", err)
        self.assertEqual(serve.returncode, 0, err)

    def test_metrics_tell_when_certificates_end_and_what_became_of_new_ones(self):
        with tempfile.TemporaryDirectory() as folder:
            certs = os.path.join(folder, "certs")
            make_certificates(certs, "--days", "2")
            with subprocess.Popen(
                    [programs.MOEBIUS, "serve", "--model", programs.DEMO, "--certs", certs, "--json",
                     "--log-dir", os.path.join(folder, "logs")], stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True) as serve:
                try:
                    processes = json.loads(serve.stdout.readline())["processes"]
                    self.assertEqual(len(processes), 3)
                    for process in processes:
                        own = os.path.join(certs, process["role"] + ".pem")
                        self.assertAlmostEqual(value_of(process, EXPIRY), end_of(own), delta=2)
                    router = next(p for p in processes if p["role"] == "router")
                    own = os.path.join(certs, "router.pem")
                    before = end_of(own)
                    self.assertEqual(value_of(router, RELOADS.format("refused")), 0)
                    # Nothing that can be used: what was there stays.
                    write(own, "no certificate")
                    wait_until(lambda: value_of(router, RELOADS.format("refused")) > 0)
                    self.assertAlmostEqual(value_of(router, EXPIRY), before, delta=2)
                    make_certificates(certs, "--days", "30", "--keep-ca")
                    self.assertGreater(end_of(own), before + 27 * 86400)
                    wait_until(lambda: value_of(router, EXPIRY) > before + 27 * 86400)
                    self.assertAlmostEqual(value_of(router, EXPIRY), end_of(own), delta=2)
                    self.assertGreaterEqual(value_of(router, RELOADS.format("used")), 1)
                finally:
                    serve.send_signal(signal.SIGINT)
                    serve.stdout.read()
                    serve.wait(END_SECONDS)

    def test_a_folder_without_certificates_ends_it_with_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            done = programs.run(programs.MOEBIUS, "serve", "--model", programs.DEMO, "--certs",
                                folder, "--json", "--log-dir", os.path.join(folder, "logs"))
        self.assertEqual(done.code, 3, str(done))
        self.assertIn(os.path.join(folder, "ca.pem"), done.err)


class CertsCommandTest(unittest.TestCase):
    def test_prints_the_flags_of_each_process_and_replaces_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "certs")
            made = programs.run(programs.MOEBIUS, "certs", "init", "--out", out + "/", "--host",
                                "node-7.example", "--days", "30")
            self.assertEqual(made.code, 0, str(made))
            for role in ("router", "expert", "attention"):
                self.assertRegex(made.out, rf"moebius-{role} +--tls-ca {out}/ca.pem --tls-cert "
                                           rf"{out}/{role}.pem --tls-key {out}/{role}.key\n")
            self.assertIn("node-7.example", made.out)
            again = programs.run(programs.MOEBIUS, "certs", "init", "--out", out)
            self.assertEqual(again.code, 1, str(again))
            self.assertIn(f"{out}/ca.pem is there already; nothing was written", again.err)
            renewed = programs.run(programs.MOEBIUS, "certs", "init", "--out", out, "--keep-ca")
            self.assertEqual(renewed.code, 0, str(renewed))
            shown = programs.run(programs.MOEBIUS, "certs", "show", f"{out}/router.pem", "--json")
            self.assertEqual(shown.code, 0, str(shown))
            self.assertIn("URI:spiffe://moebius/router", shown.json()["names"])
            self.assertEqual(shown.json()["days_left"], 364)

    def test_wrong_words_are_usage_errors(self):
        cases = [("certs", "init"), ("certs", "init", "--out", "x", "--host", "a:1"),
                 ("certs", "init", "--out", "x", "--days", "0"), ("certs", "innit"),
                 ("certs", "init", "--out", "x", "--force", "--keep-ca"), ("certs", "show")]
        for words in cases:
            done = programs.run(programs.MOEBIUS, *words, folder=tempfile.gettempdir())
            self.assertEqual(done.code, 2, f"{words}: {done}")
            self.assertTrue(done.err.startswith("error: "), str(done))


if __name__ == "__main__":
    unittest.main()
