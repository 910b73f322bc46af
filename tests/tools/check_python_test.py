# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/check_python.py."""
import contextlib
import io
import os
import tempfile
import unittest

import check_python

MODULES = {"programs": {"run", "Service"}, "os_like": {"x"}}


def faults(text):
    return [fault for _, fault in check_python.check_text(text, MODULES)]


class CheckTextTest(unittest.TestCase):
    def test_names_what_is_not_there(self):
        self.assertEqual(faults("import programs\nprograms.walk()\n"), ["programs has no walk"])
        self.assertEqual(faults("import programs as p\nprint(p.walk)\n"), ["programs has no walk"])
        self.assertEqual(faults("from programs import run, walk\n"), ["programs has no walk"])
        self.assertEqual(faults("def f():\n    import programs\n    programs.walk()\n"),
                         ["programs has no walk"])

    def test_says_the_line(self):
        text = "import programs\n\nprograms.run()\nprograms.walk()\n"
        self.assertEqual(list(check_python.check_text(text, MODULES)),
                         [(4, "programs has no walk")])

    def test_leaves_what_is_there_and_what_is_from_elsewhere(self):
        for text in ("import programs\nprograms.run(programs.Service)\n",
                     "import os\nos.walk_it()\n", "from os import walk_it\n",
                     "import programs\nprint(programs.__file__)\n",
                     "import programs\ndef f(programs):\n    return programs.walk()\n",
                     "from . import programs\n"):
            self.assertEqual(faults(text), [], text)


class DefinedNamesTest(unittest.TestCase):
    def test_finds_what_the_top_level_binds(self):
        import ast
        text = ("import a.b\nfrom c import d as e\nX, (Y, Z) = 1, (2, 3)\n"
                "def f():\n    inside = 1\nclass C:\n    field = 1\n"
                "try:\n    import g\nexcept ImportError:\n    h = 1\n"
                "with open('x') as w:\n    v = 1\n"
                "for i in ():\n    pass\nif X:\n    def j(): pass\nelse:\n    k: int = 1\n")
        self.assertEqual(check_python.defined_names(ast.parse(text)),
                         set("a e X Y Z f C g h w v i j k".split()))


class CheckTreeTest(unittest.TestCase):
    def test_checks_files_against_each_other(self):
        with tempfile.TemporaryDirectory() as root:
            files = {"one.py": "def here(): pass\n", "two.py": "import one\none.gone()\n"}
            for name, text in files.items():
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(text)
            found, count = check_python.check_tree(root)
            self.assertEqual((found, count), (["two.py:2: one has no gone"], 2))
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(check_python.main([root]), 1)

    def test_a_file_that_is_not_python_is_a_fault(self):
        with tempfile.TemporaryDirectory() as root:
            with open(os.path.join(root, "bad.py"), "w", encoding="utf-8") as file:
                file.write("def (:\n")
            found, _ = check_python.check_tree(root)
            self.assertEqual(len(found), 1)
            self.assertTrue(found[0].startswith("bad.py:1: "), found)


if __name__ == "__main__":
    unittest.main()
