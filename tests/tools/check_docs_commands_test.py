# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/check_docs_commands.py."""
import os
import tempfile
import unittest

import check_docs_commands as docs


def run(text):
    return [fault for block in docs.read_blocks(text) for fault in docs.run_block(block, "/")]


def compare(text, command, path):
    return [fault for block in docs.read_blocks(text)
            for fault in docs.compare_block(block, command, path)]


class ReadBlocksTest(unittest.TestCase):
    def test_pairs_a_command_with_the_text_block_behind_it(self):
        blocks = docs.read_blocks("a\n```bash\necho x\n```\n\n```text\nx\n```\n```text\ny\n```\n")
        self.assertEqual([(b.lines, b.output) for b in blocks], [(["echo x"], "x")])

    def test_prose_between_them_parts_them(self):
        block, = docs.read_blocks("```bash\necho x\n```\nA sentence.\n```text\ny\n```\n")
        self.assertIsNone(block.output)

    def test_leaves_other_languages_alone(self):
        self.assertEqual(docs.read_blocks("```cpp\nint x;\n```\n```\nplain\n```\n"), [])

    def test_a_block_without_end_is_a_fault(self):
        with self.assertRaises(ValueError):
            docs.read_blocks("```bash\necho x\n")


class RunBlockTest(unittest.TestCase):
    def test_compares_output(self):
        self.assertEqual(run("```bash\necho one; echo two >&2\n```\n```text\none\ntwo\n```\n"), [])
        self.assertEqual(len(run("```bash\necho one\n```\n```text\ntwo\n```\n")), 1)

    def test_without_a_text_block_only_the_exit_code_counts(self):
        self.assertEqual(run("```bash\necho anything\n```\n"), [])
        self.assertEqual(len(run("```bash\nfalse\n```\n")), 1)

    def test_stops_at_the_first_failure_of_a_block(self):
        self.assertEqual(len(run("```bash\nfalse\ntrue\n```\n")), 1)
        self.assertEqual(len(run("```bash\nfalse | true\n```\n")), 1)
        self.assertEqual(len(run("```bash\necho $unset_variable\n```\n")), 1)

    def test_a_wanted_failure_has_its_code(self):
        self.assertEqual(run("```bash exit=2\nexit 2\n```\n"), [])
        self.assertEqual(len(run("```bash exit=2\nexit 3\n```\n")), 1)

    def test_a_command_that_starts_the_check_is_left_out(self):
        self.assertEqual(run("```bash\n./dev test\n```\n```text\nx\n```\n"), [])

    def test_its_output_is_compared_by_whoever_ran_it(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "test.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write("first\n7 passed, 0 failed, 0 skipped\n")
            text = "```bash\n./dev test\n```\n```text\n…\n%s\n```\n```bash\nfalse\n```\n"
            self.assertEqual(compare(text % "… passed, 0 failed, … skipped", "./dev test", path), [])
            self.assertEqual(len(compare(text % "all well", "./dev test", path)), 1)

    def test_such_a_command_stands_alone(self):
        self.assertEqual(len(run("```bash\n./dev test\necho x\n```\n")), 1)


class OutputTest(unittest.TestCase):
    def matches(self, expected, actual):
        return docs.first_difference(expected, actual) is None

    def test_dots_stand_for_text_inside_a_line(self):
        self.assertTrue(self.matches("took … s, … rows", "took 1.25 s, 7 rows"))
        self.assertTrue(self.matches("end…", "end"))
        self.assertFalse(self.matches("took … s", "took 1.25 ms"))

    def test_a_line_of_dots_stands_for_any_number_of_lines(self):
        self.assertTrue(self.matches("a\n…\nd", "a\nb\nc\nd"))
        self.assertTrue(self.matches("a\n…\nd", "a\nd"))
        self.assertTrue(self.matches("…\nd", "d\nc\nd"))
        self.assertTrue(self.matches("a\n…", "a"))
        self.assertFalse(self.matches("a\n…\nd", "a\nb"))

    def test_figures_are_compared(self):
        self.assertFalse(self.matches("26 tokens", "27 tokens"))

    def test_names_the_line_that_is_missing(self):
        self.assertEqual(docs.first_difference("a\nb\nc", "a\nx\nc"), "b")
        self.assertEqual(docs.first_difference("a", "a\nb"), "(the end)")

    def test_reads_a_redrawn_line_as_a_person_does(self):
        self.assertTrue(self.matches("done", "10 %\r\x1b[K50 %\r\x1b[Kdone"))

    def test_special_characters_are_plain(self):
        self.assertTrue(self.matches("[x] (y)* $z", "[x] (y)* $z"))
        self.assertFalse(self.matches("a.c", "abc"))


if __name__ == "__main__":
    unittest.main()
