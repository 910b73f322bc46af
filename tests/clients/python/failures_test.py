# SPDX-License-Identifier: Apache-2.0
"""How the Python client fails, waits for a router and proves who it is; against a fake router."""
import os
import pickle
import socket
import subprocess
import tempfile
import threading
import unittest

import environment

environment.enter()

# The client is there from here on.
# pylint: disable=wrong-import-position
import grpc  # noqa: E402
import moebius  # noqa: E402
from fake_router import CallTest, Detail, FakeRouter, fail, health, message  # noqa: E402

# A wait that ends by itself when a test is right.
LIMIT_SECONDS = 30


class FailureTest(CallTest):
    def failing(self, code, text="", detail=b""):
        return self.router(GetModelInfo=lambda _, context: fail(context, code, text, detail))

    def raised(self, client):
        with self.assertRaises(moebius.MoebiusError) as caught:
            client.model_info()
        return caught.exception

    def test_every_code_has_its_class_and_brings_the_detail(self):
        for code in grpc.StatusCode:
            if code is grpc.StatusCode.OK:
                continue
            detail = Detail(code=code.value[0], message="why", hint="do this", retryable=True,
                            epoch_seen=4, missing_experts=[1, 9], host="expert-2")
            error = self.raised(self.failing(code, "why", detail.SerializeToString()))
            words = code.name.title().replace("_", "")
            self.assertEqual(type(error).__name__, words.removesuffix("Error") + "Error")
            self.assertEqual((error.code, error.message, error.hint, error.retryable),
                             (code.name, "why", "do this", True))
            self.assertEqual((error.epoch_seen, error.epoch_needed, error.missing_experts,
                              error.host), (4, None, (1, 9), "expert-2"))
            self.assertEqual(str(error), f"{code.name}: why\nhint: do this")

    def test_without_a_detail_the_code_says_whether_to_try_again(self):
        for code, retryable in ((grpc.StatusCode.ABORTED, True), (grpc.StatusCode.INTERNAL, False),
                                (grpc.StatusCode.RESOURCE_EXHAUSTED, True)):
            error = self.raised(self.failing(code, "text"))
            self.assertEqual((error.code, error.message, error.hint, error.retryable),
                             (code.name, "text", "", retryable))

    def test_the_longest_detail_arrives(self):
        detail = Detail(code=14, message="ü" * 1024, hint="h" * 2048, host="x" * 2048,
                        missing_experts=range(1 << 24, (1 << 24) + 1024))
        error = self.raised(self.failing(grpc.StatusCode.UNAVAILABLE, "ü" * 1024,
                                         detail.SerializeToString()))
        self.assertEqual((error.hint, len(error.missing_experts)), ("h" * 2048, 1024))

    def test_a_detail_that_is_unreadable_too_long_or_of_another_code_does_not_count(self):
        other = Detail(code=3, message="other").SerializeToString()
        long = Detail(code=13, message="x" * (17 << 10)).SerializeToString()
        for detail in (b"\xff\xff\xff", other, long):
            error = self.raised(self.failing(grpc.StatusCode.INTERNAL, "text", detail))
            self.assertEqual((error.code, error.hint), ("INTERNAL", ""))

    def test_control_characters_of_others_do_not_reach_a_terminal(self):
        detail = Detail(code=13, message="a\x1b[2Jb\nc").SerializeToString()
        error = self.raised(self.failing(grpc.StatusCode.INTERNAL, "x", detail))
        self.assertEqual(error.message, "a\\x1b[2Jb\nc")

    def test_an_error_can_be_pickled(self):
        error = self.raised(self.failing(grpc.StatusCode.ABORTED, "text"))
        copy = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(copy), copy.detail), (type(error), error.detail))

    def test_a_router_that_is_not_there_is_unavailable_by_its_address(self):
        with socket.create_server(("127.0.0.1", 0)) as held:
            target = f"127.0.0.1:{held.getsockname()[1]}"
        with moebius.Client(target) as client:
            error = self.raised(client)
        self.assertEqual((error.code, error.retryable), ("UNAVAILABLE", True))
        self.assertIn(target, error.message)
        self.assertIn("address", error.hint)


class HealthTest(CallTest):
    def test_health_is_whether_the_name_is_serving(self):
        def check(request, context):
            if request.service == "other":
                fail(context, grpc.StatusCode.NOT_FOUND, "no such name")
            return health(1 if request.service == "liveness" else 2)

        client = self.router(Check=check)
        self.assertTrue(client.health("liveness"))
        self.assertFalse(client.health())
        with self.assertRaises(moebius.NotFoundError):
            client.health("other")

    def test_waits_for_a_router_that_comes_later_and_for_its_word(self):
        said = threading.Event()

        def watch(request, context):
            yield health(2)
            said.set()
            yield health(1)

        with socket.create_server(("127.0.0.1", 0)) as held:
            address = f"127.0.0.1:{held.getsockname()[1]}"
        with moebius.Client(address) as client:
            waiting = threading.Thread(target=client.wait_until_ready, args=(LIMIT_SECONDS,))
            waiting.start()
            with FakeRouter({"Watch": watch}, address=address):
                waiting.join(LIMIT_SECONDS)
                self.assertFalse(waiting.is_alive())
        self.assertTrue(said.is_set())

    def test_one_that_ends_its_watches_is_asked_again(self):
        watches = []

        def watch(request, context):
            watches.append(request)
            yield health(2 if len(watches) < 3 else 1)
            if len(watches) == 1:
                fail(context, grpc.StatusCode.UNAVAILABLE, "draining")

        self.router(Watch=watch).wait_until_ready(LIMIT_SECONDS)
        self.assertEqual(len(watches), 3)

    def test_the_wait_ends(self):
        def watch(request, context):
            over = threading.Event()
            context.add_callback(over.set)
            yield health(2)
            over.wait(LIMIT_SECONDS)

        with self.assertRaisesRegex(moebius.DeadlineExceededError, "not ready within 0.3 s"):
            self.router(Watch=watch).wait_until_ready(0.3)


class TlsTest(CallTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.run_openssl("req", "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
        for name, host in (("server", "router.test"), ("client", "client.test")):
            cls.run_openssl("req", "-x509", "-CA", "ca.pem", "-CAkey", "ca.key", "-keyout",
                            f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={host}",
                            "-addext", f"subjectAltName=DNS:{host}")

    @classmethod
    def run_openssl(cls, command, *arguments):
        subprocess.run(["openssl", command, *arguments, "-days", "2", "-nodes", "-newkey", "ec",
                        "-pkeyopt", "ec_paramgen_curve:P-256"], cwd=cls.folder, check=True,
                       capture_output=True, timeout=60)

    def file(self, name):
        return os.path.join(self.folder, name)

    def bytes_of(self, name):
        with open(self.file(name), "rb") as file:
            return file.read()

    def tls_router(self, tls):
        credentials = grpc.ssl_server_credentials(
            [(self.bytes_of("server.key"), self.bytes_of("server.pem"))],
            root_certificates=self.bytes_of("ca.pem"), require_client_auth=True)
        return self.router(credentials, moebius.ClientOptions(tls=tls),
                           GetModelInfo=lambda *_: message("GetModelInfo", name="demo"))

    def test_both_sides_prove_who_they_are(self):
        client = self.tls_router(moebius.Tls(
            ca_file=self.file("ca.pem"), cert_file=self.file("client.pem"),
            key_file=self.file("client.key"), server_name="router.test"))
        self.assertEqual(client.model_info().name, "demo")

    def test_without_a_certificate_or_for_another_name_there_is_no_call(self):
        for tls in (moebius.Tls(ca_file=self.file("ca.pem"), server_name="router.test"),
                    moebius.Tls(ca_file=self.file("ca.pem"), server_name="other.test",
                                cert_file=self.file("client.pem"),
                                key_file=self.file("client.key"))):
            with self.assertRaisesRegex(moebius.UnavailableError, "Tls"):
                self.tls_router(tls).model_info()

    def test_files_that_cannot_be_used_are_named(self):
        with self.assertRaisesRegex(ValueError, "given together"):
            moebius.Client("a:1", moebius.ClientOptions(moebius.Tls(cert_file="x")))
        with self.assertRaises(FileNotFoundError):
            moebius.Client("a:1", moebius.ClientOptions(moebius.Tls(ca_file="/nowhere/ca.pem")))
        with self.assertRaisesRegex(ValueError, "no PEM file"):
            moebius.Client("a:1", moebius.ClientOptions(moebius.Tls(ca_file=__file__)))


if __name__ == "__main__":
    unittest.main()
