# SPDX-License-Identifier: Apache-2.0
"""`moebius bench transport` as people and scripts use it: between real processes, but too short to
mean anything. Speed is judged by ./dev bench, never by a test."""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.environ["MOEBIUS_SOURCE_DIR"], "tests", "e2e"))
import programs  # noqa: E402

SHORT = ("--seconds", "0.01", "--repetitions", "2", "--sizes", "64,64KiB", "--quiet")
FIELDS = ["baseline", "baseline_value", "name", "ratio", "spread", "target", "unit", "value"]


def bench(*flags):
    return programs.run(programs.MOEBIUS, "bench", "transport", *flags)


def moebius_processes():
    """Process ids of this program's far ends."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if b"--serve" in words and os.path.realpath(f"/proc/{pid}/exe") == programs.MOEBIUS:
            found.append(pid)
    return found


class BenchTransportTest(unittest.TestCase):
    def test_prints_one_report_between_processes_and_leaves_none_behind(self):
        done = bench(*SHORT, "--json")
        self.assertEqual(done.code, 0, str(done))
        report = done.json()
        self.assertEqual(sorted(report),
                         ["cpu", "date", "host", "results", "seed", "threads", "tier"])
        results = {result["name"]: result for result in report["results"]}
        for result in results.values():
            self.assertEqual(sorted(result), FIELDS)
            self.assertGreaterEqual(result["value"], 0)
        for kind in ("loopback", "grpc", "shm"):
            for size in (64, 65536):
                self.assertEqual(results[f"transport.{kind}.{size}.bandwidth"]["unit"], "B/s")
                self.assertEqual(results[f"transport.{kind}.{size}.cpu"]["unit"], "s/GB")
            self.assertEqual(results[f"transport.{kind}.round_trip"]["unit"], "s")
        grpc = results["transport.grpc.65536.bandwidth"]
        self.assertEqual((grpc["baseline"], grpc["target"]), ("plain gRPC stream", 0.9))
        self.assertGreater(grpc["baseline_value"], 0)
        shm = results["transport.shm.65536.bandwidth"]
        self.assertEqual((shm["baseline"], shm["target"]), ("cold memcpy", 0.5))
        self.assertIsNone(results["transport.shm.64.bandwidth"]["target"])
        wake = results["transport.shm.round_trip"]
        self.assertEqual((wake["baseline"], wake["target"]), ("futex ping-pong", 0.667))
        self.assertEqual(moebius_processes(), [])

    def test_prints_a_table_writes_a_file_and_compares_two(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            done = bench(*SHORT, "--transports", "loopback", "--json-out", path)
            self.assertEqual(done.code, 0, str(done))
            self.assertRegex(done.out, r"transport\.loopback\.64\.bandwidth +[\d.]+ GB/s")
            with open(path, encoding="utf-8") as file:
                self.assertEqual(len(json.load(file)["results"]), 5)
            compared = bench("--compare", path, path)
            self.assertEqual(compared.code, 0, str(compared))
            self.assertRegex(compared.out, r"transport\.loopback\.round_trip .* \+0\.0 %")

    def test_refuses_what_it_cannot_measure_before_it_starts(self):
        for flags in (["--transports", "pigeon"], ["--sizes", "7"], ["--sizes", "x"],
                      ["--seconds", "0"], ["--repetitions", "0"],
                      ["--compare", "/nonexistent", "/nonexistent"]):
            done = bench(*flags)
            self.assertEqual(done.code, 2, str(done))
            self.assertTrue(done.err.startswith("error: "), done.err)
            self.assertEqual(done.out, "")

    def test_help_shows_examples_first(self):
        done = bench("--help")
        self.assertEqual(done.code, 0)
        self.assertIn("moebius bench transport --json-out before.json", done.out[:600])
        self.assertNotIn("--serve", done.out)


if __name__ == "__main__":
    unittest.main()
