# SPDX-License-Identifier: Apache-2.0
"""tools/bench_report.py: reports put together, the summary, and the table of bench/README.md."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ["MOEBIUS_SOURCE_DIR"]
SCRIPT = os.path.join(SOURCE, "tools", "bench_report.py")


def result(name, ratio, target, unit="s", value=2e-5):
    baseline = None if ratio is None else "limit"
    return {"name": name, "unit": unit, "value": value, "spread": 0.1, "baseline": baseline,
            "baseline_value": None if ratio is None else 1e-5, "ratio": ratio, "target": target}


def report(*results):
    return {"host": "h", "cpu": "CPU", "tier": "avx2", "threads": 2, "seed": 1,
            "date": "2026-11-30T01:02:03Z", "results": list(results)}


class BenchReportTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, content):
        with open(self.path(name), "w", encoding="utf-8") as file:
            json.dump(content, file)

    def run_script(self, *flags):
        return subprocess.run([sys.executable, SCRIPT, self.folder.name, *flags], check=False,
                              capture_output=True, text=True, timeout=60)

    def test_counts_targets_and_names_those_that_are_missed(self):
        self.write("plan.json", report(result("plan_combine", 1.2, 1.0)))
        self.write("cluster.json", report(result("cluster.grpc.outside_kernels", 0.5, 1.0),
                                          result("no.ceiling", None, None)))
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1 of 2 targets are met, 3 results", done.stdout)
        self.assertIn("missed: cluster.grpc.outside_kernels: 0.50 of 1.00 (20 µs; limit)",
                      done.stdout)
        # A second run does not take its own report for a measurement.
        self.assertIn("3 results", self.run_script().stdout)

    def test_tells_models_apart(self):
        self.write("olmoe-4.json", report(result("cluster.grpc.decode_token", 0.9, None)))
        self.write("cluster.json", report(result("cluster.grpc.decode_token", 0.1, None)))
        self.run_script()
        with open(self.path("report.json"), encoding="utf-8") as file:
            names = [one["name"] for one in json.load(file)["results"]]
        self.assertEqual(names, ["cluster.grpc.decode_token",
                                 "olmoe-4.cluster.grpc.decode_token"])

    def test_replaces_the_table_and_nothing_else(self):
        readme = self.path("README.md")
        begin = "<!-- written by ./dev bench --update: begin -->"
        end = "<!-- written by ./dev bench --update: end -->"
        with open(readme, "w", encoding="utf-8") as file:
            file.write(f"above\n{begin}\n\n### CPU, 2 threads, avx2, 2026-11-29\n\nold\n\n"
                       f"### Other CPU, 4 threads, amx, 2026-11-28\n\n| kept |\n\n{end}\nbelow\n")
        self.write("plan.json", report(result("plan_combine", 0.5, 1.0)))
        self.assertEqual(self.run_script("--update", readme).returncode, 0)
        with open(readme, encoding="utf-8") as file:
            text = file.read()
        self.assertTrue(text.startswith("above\n") and text.endswith(end + "\nbelow\n"), text)
        self.assertNotIn("old", text)
        self.assertIn("\n\n### CPU, 2 threads, avx2, 2026-11-30\n\n| result ", text)
        self.assertIn("\n\n### Other CPU, 4 threads, amx, 2026-11-28\n\n| kept |\n\n<!--", text)
        self.assertLess(text.index("2026-11-30"), text.index("2026-11-28"))
        # Another run on the same kind of machine leaves the same.
        self.assertEqual(self.run_script("--update", readme).returncode, 0)
        with open(readme, encoding="utf-8") as file:
            self.assertEqual(file.read(), text)
        self.assertIn("| `plan_combine` | 20 µs | 10 % | 0.50 | 1, **missed** | limit, 10 µs |",
                      text)

    def test_the_readme_has_a_place_for_the_table(self):
        with open(os.path.join(SOURCE, "bench", "README.md"), encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(text.count("written by ./dev bench --update: begin"), 1)
        self.assertEqual(text.count("written by ./dev bench --update: end"), 1)

    def test_a_folder_without_reports_is_refused(self):
        done = self.run_script()
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no reports", done.stderr)


if __name__ == "__main__":
    unittest.main()
