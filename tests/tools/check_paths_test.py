# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/check_paths.py. Forbidden strings are put together here, so that the project's own
check does not find them."""
import os
import tempfile
import unittest

import check_paths


def faults(text):
    return list(check_paths.check_text("x", text))


class CheckTextTest(unittest.TestCase):
    def test_names_what_lies_outside_of_the_checkout(self):
        for text in ("see .." + "/shared/x", "cd /wo" + "rk/main", "/ho" + "me/anna/moebius",
                     "as DESIGN" + ".md says", "http://deb.debian" + ".org/debian"):
            self.assertEqual(len(faults(text)), 1, text)

    def test_leaves_other_words_alone(self):
        for text in ("docs/architecture.md", "127.0.0.1:8080", "a/work/b", "network/home",
                     "10.0.0.1:80", "0.0.0.0", "/usr/share/doc", "framework/x"):
            self.assertEqual(faults(text), [], text)

    def test_says_the_line(self):
        self.assertEqual(faults("a\nb /ro" + "ot/x\n")[0][0], 2)


class CheckTreeTest(unittest.TestCase):
    def test_reads_text_without_git_and_leaves_binaries_and_build_out(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "build"))
            bad = ("x .." + "/shared").encode()
            for path, data in (("a.txt", bad), ("b.bin", b"\0" + bad), ("build/c.txt", bad)):
                with open(os.path.join(root, path), "wb") as file:
                    file.write(data)
            found, count = check_paths.check_tree(root)
            self.assertEqual(count, 1)
            self.assertEqual(len(found), 1)
            self.assertTrue(found[0].startswith("a.txt:1:"), found)


if __name__ == "__main__":
    unittest.main()
