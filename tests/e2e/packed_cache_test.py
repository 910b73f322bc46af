# SPDX-License-Identifier: Apache-2.0
"""Packed weights that are kept between starts: of a cluster's processes, and of one process."""
import glob
import os
import re
import stat
import tempfile
import unittest

import programs
import serve_test

SERIES = re.compile(r'^moebius_packed_cache_total\{.*outcome="(\w+)".*\} (\d+)$', re.MULTILINE)


class PackedCacheTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.kept = os.path.join(self.folder.name, "kept")
        self.case = programs.expected_case("greedy")

    def files(self, role=""):
        return sorted(glob.glob(os.path.join(self.kept, f"{role}*.packed")))

    def ask(self, *flags):
        """The recorded case, which any way of loading must answer with the same bits."""
        done = programs.run(programs.MOEBIUS, "generate", *flags, *programs.flags_of_case(self.case))
        self.assertEqual(done.code, 0, str(done))
        self.assertEqual(done.json()["logits_hash"], self.case["logits_hash"], str(done))
        return done

    def start_and_ask(self):
        """One life of a cluster: its logs by process, and the sums of what the caches counted."""
        served = serve_test.Served("--experts", "2", "--expert-replicas", "1", "--attention", "1",
                                   "--packed-cache", self.kept)
        self.addCleanup(served.close)
        ready = served.event()
        self.assertEqual(ready["event"], "ready", ready)
        self.ask("--router", ready["router"])
        counts = {}
        for process in ready["processes"]:
            _, text = programs.fetch(process["metrics"].split("//")[1].split("/")[0], "/metrics")
            for outcome, count in SERIES.findall(text):
                counts[outcome] = counts.get(outcome, 0) + int(count)
        logs = {}
        for process in ready["processes"]:
            path = os.path.join(served.folder.name, "logs", process["name"] + ".log")
            with open(path, encoding="utf-8") as file:
                logs[process["name"]] = file.read()
        self.assertEqual(served.stop(), 0)
        return logs, counts

    def test_a_cluster_keeps_and_takes_its_weights(self):
        logs, counts = self.start_and_ask()
        self.assertEqual(len(self.files("experts-")), 2)
        self.assertEqual(len(self.files("attention-")), 1)
        self.assertEqual((counts["miss"], counts["written"], counts["hit"]), (3, 3, 0), counts)
        for path in self.files():
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        for name in ("expert-0", "expert-1", "attention-0"):
            self.assertIn("huge pages: ", logs[name])
            self.assertIn("for the next start", logs[name])

        logs, counts = self.start_and_ask()
        self.assertEqual((counts["miss"], counts["written"], counts["hit"]), (0, 0, 3), counts)
        for name in ("expert-0", "expert-1", "attention-0"):
            self.assertIn("from the packed cache", logs[name])

        with open(self.files("experts-")[0], "r+b") as file:
            file.seek(-1000, os.SEEK_END)
            byte = file.read(1)[0]
            file.seek(-1000, os.SEEK_END)
            file.write(bytes([byte ^ 1]))
        logs, counts = self.start_and_ask()
        self.assertEqual((counts["invalid"], counts["written"], counts["hit"]), (1, 1, 2), counts)
        said = [log.count("is damaged") for log in logs.values()]
        self.assertEqual(sum(said), 1, logs)

    def test_one_process_may_use_it_too(self):
        self.ask("--model", programs.DEMO, "--packed-cache", self.kept)
        self.assertEqual(len(self.files()), 2)
        warm = self.ask("--model", programs.DEMO, "--packed-cache", self.kept, "--verbose")
        self.assertIn("from the packed cache; huge pages: ", warm.err)
        # Another model under the same folder is another key.
        other = os.path.join(self.folder.name, "other")
        os.mkdir(other)
        programs.copy_demo_with_flipped_bit(other)
        done = programs.run(programs.MOEBIUS, "generate", "--model", other, "--packed-cache",
                            self.kept, "--verbose", *programs.flags_of_case(self.case))
        self.assertEqual(done.code, 0, str(done))
        self.assertNotEqual(done.json()["logits_hash"], self.case["logits_hash"])
        self.assertNotIn("from the packed cache", done.err)

    def test_an_unusable_folder_is_a_warning(self):
        done = self.ask("--model", programs.DEMO, "--packed-cache", "/dev/null/x")
        self.assertIn("nothing is kept for the next start", done.err)


if __name__ == "__main__":
    unittest.main()
