# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/report_tests.py."""
import io
import os
import re
import tempfile
import unittest

import report_tests

GTEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="A">
{cases}
</testsuite></testsuites>
"""
PASSED = '<testcase name="{0}" status="run" result="completed" classname="A" />'
FAILED = '<testcase name="{0}" status="run" result="completed" classname="A">' \
         '<failure message="expected 1" type=""></failure></testcase>'
SKIPPED = '<testcase name="{0}" status="run" result="skipped" classname="A">' \
          '<skipped message="x_test.cc:5&#x0A;MOEBIUS_SKIP: no such CPU">' \
          '<![CDATA[x_test.cc:5\nMOEBIUS_SKIP: no such CPU]]></skipped></testcase>'
CTEST = '<testsuite>{cases}</testsuite>'


def ctest_case(name, status, output=""):
    return f'<testcase name="{name}" status="{status}"><system-out>{output}</system-out></testcase>'


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.tree = os.path.join(self.folder.name, "test")
        os.makedirs(os.path.join(self.tree, "results"))

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        with open(os.path.join(self.tree, "results", name), "w", encoding="utf-8") as file:
            file.write(text)

    def report(self, ctest, gtest=None, skips=(), phases=(), flags=frozenset()):
        self.write("ctest.xml", CTEST.format(cases="".join(ctest)))
        for name, cases in (gtest or {}).items():
            self.write(name + ".xml", GTEST.format(cases="\n".join(cases)))
        out = io.StringIO()
        skips = [(condition, re.compile(reason)) for condition, reason in skips]
        code = report_tests.report([self.tree], phases, skips, flags, out)
        return code, out.getvalue().strip().split("\n")

    def test_counts_the_cases_of_a_binary_and_scripts_as_one(self):
        code, lines = self.report(
            [ctest_case("a_test", "run"), ctest_case("script", "run")],
            {"a_test": [PASSED.format("One"), PASSED.format("Two")]})
        self.assertEqual((code, lines[-1]), (0, "3 passed, 0 failed, 0 skipped"))

    def test_names_a_failed_case_and_its_message(self):
        code, lines = self.report([ctest_case("a_test", "fail")],
                                  {"a_test": [PASSED.format("One"), FAILED.format("Two")]})
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))
        self.assertTrue(any("A.Two" in line for line in lines))
        self.assertTrue(any("expected 1" in line for line in lines))

    def test_a_crash_is_a_failure_with_the_end_of_the_output(self):
        code, lines = self.report([ctest_case("a_test", "fail", "AddressSanitizer: heap")])
        self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))
        self.assertTrue(any("AddressSanitizer" in line for line in lines))

    def test_a_failing_exit_after_passing_cases_is_a_failure(self):
        code, lines = self.report([ctest_case("a_test", "fail")],
                                  {"a_test": [PASSED.format("One")]})
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_a_suite_that_passes_again_is_passed_and_named_as_unsteady(self):
        os.makedirs(os.path.join(self.tree, "results", "first"))
        self.write("first/a_test.xml", GTEST.format(cases=FAILED.format("One")))
        self.write("again.xml", CTEST.format(cases=ctest_case("a_test", "run")))
        code, lines = self.report([ctest_case("a_test", "fail"), ctest_case("b_test", "run")],
                                  {"a_test": [PASSED.format("One")], "b_test": [PASSED.format("Two")]})
        self.assertEqual((code, lines[-1]), (0, "2 passed, 0 failed, 0 skipped"))
        self.assertTrue(any(line.startswith("UNSTEADY") and "a_test" in line for line in lines))
        self.assertTrue(any("expected 1" in line for line in lines))

    def test_a_suite_that_fails_again_has_failed(self):
        self.write("again.xml", CTEST.format(cases=ctest_case("a_test", "fail", "worse")))
        code, lines = self.report([ctest_case("a_test", "fail")])
        self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))
        self.assertFalse(any(line.startswith("UNSTEADY") for line in lines))

    def test_an_expected_skip_is_listed_with_its_reason(self):
        code, lines = self.report(
            [ctest_case("a_test", "run")],
            {"a_test": [PASSED.format("One"), SKIPPED.format("Two")]},
            skips=[("no-cpu:amx_bf16", "no such CPU")])
        self.assertEqual((code, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"))
        self.assertEqual(lines[0], "skipped    1: no such CPU")

    def test_a_skip_without_its_line_fails(self):
        code, lines = self.report([ctest_case("a_test", "run")],
                                  {"a_test": [PASSED.format("One"), SKIPPED.format("Two")]})
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_a_skip_on_a_host_that_could_run_it_fails(self):
        code, _ = self.report(
            [ctest_case("a_test", "run")],
            {"a_test": [PASSED.format("One"), SKIPPED.format("Two")]},
            skips=[("no-cpu:amx_bf16", "no such CPU")], flags={"amx_bf16"})
        self.assertEqual(code, 1)

    def test_a_script_skips_with_a_reason_too(self):
        code, lines = self.report(
            [ctest_case("script", "notrun", "MOEBIUS_SKIP: no qemu\n"), ctest_case("other", "run")],
            skips=[("no-program:surely-not-there", "no qemu")])
        self.assertEqual((code, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"))

    def test_phases_count(self):
        code, lines = self.report([ctest_case("script", "run")],
                                  phases=[("format", "passed"), ("tsan", "failed")])
        self.assertEqual((code, lines[-1]), (1, "2 passed, 1 failed, 0 skipped"))

    def test_a_tree_that_did_not_run_is_a_failure(self):
        out = io.StringIO()
        self.assertEqual(report_tests.report([self.tree], [], [], set(), out), 1)

    def test_nothing_at_all_is_a_failure(self):
        code, lines = self.report([])
        self.assertEqual((code, lines[-1]), (1, "0 passed, 0 failed, 0 skipped"))


class ExpectedSkipsTest(unittest.TestCase):
    def test_the_projects_list_is_well_formed(self):
        path = os.path.join(os.environ["MOEBIUS_SOURCE_DIR"], "tools", "expected_skips.txt")
        for condition, _ in report_tests.load_expected_skips(path):
            report_tests.condition_holds(condition, "nowhere/release", set())

    def test_an_ipv6_address_is_known_by_its_first_digits(self):
        with tempfile.NamedTemporaryFile("w", suffix=".if_inet6") as file:
            file.write("fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n")
            file.flush()
            self.assertTrue(report_tests.has_ipv6_address("fe8", file.name))
            self.assertFalse(report_tests.has_ipv6_address("fd", file.name))
        self.assertFalse(report_tests.has_ipv6_address("fe8", "/nonexistent"))

    def test_a_missing_package_index_is_what_the_trees_own_pip_says(self):
        tree = self.enterContext(tempfile.TemporaryDirectory())
        python = os.path.join(tree, report_tests.PYTHON_CLIENT_FOLDER, "bin", "python")

        def holds():
            return report_tests.condition_holds("no-package-index", tree, frozenset())

        self.assertFalse(holds())
        os.makedirs(os.path.dirname(python))
        for code, is_missing in ((0, False), (1, True)):
            with open(python, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\nexit {code}\n")
            os.chmod(python, 0o755)
            self.assertEqual(holds(), is_missing)

    def test_an_unknown_condition_is_refused(self):
        with self.assertRaises(ValueError):
            report_tests.condition_holds("always", "build/release", set())


if __name__ == "__main__":
    unittest.main()
