# SPDX-License-Identifier: Apache-2.0
"""`moebius bench experts`, `attention`, `cluster` and `plan` as people and scripts use them, but too short to
mean anything. Speed is judged by ./dev bench, never by a test."""
import json
import os
import sys
import tempfile
import unittest

SOURCE = os.environ["MOEBIUS_SOURCE_DIR"]
sys.path.insert(0, os.path.join(SOURCE, "tests", "e2e"))
import programs  # noqa: E402

PEER = f"{sys.executable} {os.path.join(SOURCE, 'tests', 'cli', 'bench_peer.py')}"
SMALL = ("--hidden", "64", "--intermediate", "48", "--experts", "4", "--top-k", "2", "--threads",
         "1", "--tiers", "portable", "--seconds", "0.005", "--repetitions", "2", "--quiet")


def bench(*flags):
    return programs.run(programs.MOEBIUS, "bench", *flags)


def results_of(done):
    return {result["name"]: result for result in done.json()["results"]}


class BenchExpertsTest(unittest.TestCase):
    def test_puts_each_number_of_rows_beside_the_roofline_and_the_plain_loop(self):
        done = bench("experts", *SMALL, "--rows", "1,2,64", "--json")
        self.assertEqual(done.code, 0, str(done))
        results = results_of(done)
        one = results["expert_ffn.bf16.portable.T=1"]
        self.assertEqual((one["baseline"], one["unit"]), ("roofline", "row/s"))
        self.assertGreater(one["ratio"], 0)
        # Nobody said what a GEMM takes, so many rows have no ceiling.
        self.assertIsNone(results["expert_ffn.bf16.portable.T=64"]["ratio"])
        loop = results["expert_ffn.bf16.portable.T=1.over_plain_loop"]
        self.assertEqual(loop["baseline"], "plain loop")
        self.assertIn("expert_ffn.bf16.portable.smallest_step", results)

    def test_asks_a_peer_for_the_gemm_and_compares_with_what_else_it_knows(self):
        done = bench("experts", *SMALL, "--rows", "1,64", "--peer", PEER, "--json")
        self.assertEqual(done.code, 0, str(done))
        results = results_of(done)
        self.assertEqual(results["expert_ffn.bf16.portable.T=64"]["baseline"], "roofline")
        over = results["expert_ffn.bf16.portable.T=1.over_peer0"]
        self.assertEqual((over["baseline"], over["baseline_value"]), ("peer of portable", 4))
        self.assertNotIn("expert_ffn.bf16.portable.T=64.over_peer0", results)

    def test_a_peer_that_breaks_the_rules_is_named(self):
        for command, words in ((PEER + " dies", "has ended"),
                               (PEER + " nonsense", "answers 'fast'"),
                               ("/nonexistent/peer", "--peer /nonexistent/peer")):
            done = bench("experts", *SMALL, "--rows", "1", "--peer", command)
            self.assertEqual(done.code, 1, str(done))
            self.assertIn(words, done.err)

    def test_refuses_what_it_cannot_measure_before_it_starts(self):
        for flags in (["--rows", "2,1"], ["--rows", "0"], ["--tiers", "abacus"], ["--top-k", "9"],
                      ["--seconds", "x"], ["--experts", "-1"], ["--hidden", "65536", "--experts",
                                                                "4096", "--intermediate", "65536"]):
            done = bench("experts", *SMALL, *flags)
            self.assertEqual(done.code, 2, str(done))
            self.assertTrue(done.err.startswith("error: "), done.err)
            self.assertEqual(done.out, "")


class BenchAttentionTest(unittest.TestCase):
    FLAGS = ("--tokens", "96", "--keys", "70", "--query-heads", "4", "--kv-heads", "2",
             "--head-dim", "32", "--tiers", "portable", "--threads", "1", "--seconds", "0.005",
             "--repetitions", "2", "--quiet")

    def test_puts_a_prompt_beside_a_gemm_and_a_row_beside_read_bandwidth(self):
        done = bench("attention", *self.FLAGS, "--peer", PEER, "--json")
        self.assertEqual(done.code, 0, str(done))
        results = results_of(done)
        prefill = results["attention.prefill.portable"]
        self.assertEqual((prefill["unit"], prefill["baseline"]), ("FLOP/s", "peer of portable"))
        self.assertGreater(prefill["ratio"], 0)
        decode = results["attention.decode.portable"]
        self.assertEqual((decode["unit"], decode["baseline"]), ("B/s", "read bandwidth"))
        ranks = results["attention.ranks.N=4.portable"]
        self.assertEqual((ranks["unit"], ranks["baseline"]), ("FLOP/s", "one rank"))
        sums = results["attention.canonical.portable"]
        self.assertEqual((sums["value"], sums["baseline"]), (ranks["value"], "per-degree sum"))
        done = bench("attention", *self.FLAGS, "--json")
        self.assertIsNone(results_of(done)["attention.prefill.portable"]["ratio"])

    def test_refuses_what_it_cannot_measure_before_it_starts(self):
        for flags in (["--tokens", "0"], ["--kv-heads", "3"], ["--head-dim", "33"],
                      ["--tiers", "abacus"]):
            done = bench("attention", *self.FLAGS, *flags)
            self.assertEqual(done.code, 2, str(done))
            self.assertTrue(done.err.startswith("error: "), done.err)


class BenchPlanTest(unittest.TestCase):
    def test_prints_a_table_writes_a_file_and_compares_two(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            done = bench("plan", "--rows", "64", "--seconds", "0.01", "--repetitions", "2",
                         "--json-out", path, "--quiet")
            self.assertEqual(done.code, 0, str(done))
            self.assertRegex(done.out, r"plan_combine +[\d.]+ (ns|µs)")
            with open(path, encoding="utf-8") as file:
                result = json.load(file)["results"][0]
            self.assertEqual((result["target"], result["baseline_value"]), (1, 1.5e-07))
            compared = bench("plan", "--compare", path, path)
            self.assertEqual(compared.code, 0, str(compared))
            self.assertRegex(compared.out, r"plan_combine .* \+0\.0 %")


class BenchClusterTest(unittest.TestCase):
    def test_measures_a_cluster_beside_one_process_and_stops_it(self):
        done = bench("cluster", "--model", os.path.join(SOURCE, "models", "demo"), "--transports",
                     "shm", "--experts", "2", "--attention", "1", "--rows", "16", "--tokens", "4",
                     "--repetitions", "1", "--quiet", "--json")
        self.assertEqual(done.code, 0, str(done))
        results = results_of(done)
        layer = results["moe_layer.cluster.shm.T=1"]
        # Its experts are small: a message about them takes longer than they do.
        self.assertEqual((layer["baseline"], layer["target"]), ("one process", None))
        self.assertIn("moe_layer.cluster.shm.T=16", results)
        outside = results["cluster.shm.outside_kernels"]
        self.assertEqual((outside["unit"], outside["target"]), ("s", 1))
        wire = results["cluster.shm.row_bytes"]
        self.assertEqual(wire["baseline"], "one message per expert")
        # A row goes to each of two services once, with all of its experts there.
        self.assertGreater(wire["ratio"], 1)

    def test_refuses_what_it_cannot_measure_before_it_starts(self):
        for flags in ([], ["--model", "/nonexistent", "--transports", "pigeon"],
                      ["--model", "/nonexistent", "--tokens", "1"]):
            done = bench("cluster", *flags)
            self.assertEqual(done.code, 2, str(done))
            self.assertTrue(done.err.startswith("error: "), done.err)


if __name__ == "__main__":
    unittest.main()
