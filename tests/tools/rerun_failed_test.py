# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/rerun_failed.py: a real ctest tree whose suites fail at first, or in other ways."""
import os
import subprocess
import sys
import tempfile
import unittest

import rerun_failed

GTEST_END = "[  FAILED  ] A.One\n\n 1 FAILED TEST\n"
FAILS_FIRST = """
import os, sys
if not os.path.exists(sys.argv[1]):
    open(sys.argv[1], "w").close()
    print("[  FAILED  ] A.One\\n\\n 1 FAILED TEST")
    sys.exit(1)
"""


class MayRunAgainTest(unittest.TestCase):
    def test_only_what_ended_by_itself(self):
        self.assertTrue(rerun_failed.may_run_again(GTEST_END))
        self.assertTrue(rerun_failed.may_run_again("Ran 3 tests in 1 s\n\nFAILED (failures=1)\n"))
        self.assertTrue(rerun_failed.may_run_again("check_docs_commands: 80 blocks, 1 faults\n"))
        self.assertFalse(rerun_failed.may_run_again("[ RUN      ] A.One\n"))

    def test_no_sanitizers_report_and_no_crash(self):
        for text in ("WARNING: ThreadSanitizer: data race", "ERROR: AddressSanitizer: heap",
                     "x.cc:3:1: runtime error: signed integer overflow", "a.cc:3: check failed: a == b",
                     "Segmentation fault", "terminate called after throwing"):
            self.assertFalse(rerun_failed.may_run_again(f"{text}\n{GTEST_END}"), text)


class RerunTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.tree = self.folder.name
        os.makedirs(os.path.join(self.tree, "results"))
        script = os.path.join(self.tree, "fails_first.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(FAILS_FIRST)
        self.script = script

    def tearDown(self):
        self.folder.cleanup()

    def run_tree(self, names):
        with open(os.path.join(self.tree, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
            for name in names:
                mark = os.path.join(self.tree, name + ".mark")
                file.write(f'add_test({name} "{sys.executable}" "{self.script}" "{mark}")\n')
        subprocess.run(["ctest", "--test-dir", self.tree, "--output-junit", "results/ctest.xml"],
                       check=False, capture_output=True)
        subprocess.run([sys.executable, rerun_failed.__file__, self.tree], check=True,
                       capture_output=True)
        again = os.path.join(self.tree, "results", "again.xml")
        if not os.path.exists(again):
            return None
        return {case.get("name"): case.get("status")
                for case in rerun_failed.ElementTree.parse(again).getroot().iter("testcase")}

    def test_failed_suites_run_again_and_no_others(self):
        open(os.path.join(self.tree, "b_test.mark"), "w", encoding="utf-8").close()
        self.assertEqual(self.run_tree(["a_test", "b_test"]), {"a_test": "run"})

    def test_many_failures_are_no_accident(self):
        self.assertIsNone(self.run_tree(["a_test", "b_test", "c_test", "d_test"]))

    def test_nothing_runs_where_nothing_failed(self):
        open(os.path.join(self.tree, "a_test.mark"), "w", encoding="utf-8").close()
        self.assertIsNone(self.run_tree(["a_test"]))


if __name__ == "__main__":
    unittest.main()
