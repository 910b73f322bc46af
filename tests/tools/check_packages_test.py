# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/check_packages.py."""
import os
import tempfile
import unittest

import check_packages

STATUS = """\
Package: base-files
Essential: yes
Status: install ok installed

Package: tool
Status: install ok installed
Depends: library (>= 1.0), left | right, virtual
Recommends: extra

Package: library
Status: install ok installed
Pre-Depends: base-files

Package: right
Status: install ok installed

Package: provider
Status: install ok installed
Provides: virtual (= 2)

Package: extra
Status: install ok installed

Package: removed
Status: deinstall ok config-files

"""


class DebianTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        root = self.folder.name
        with open(os.path.join(root, "status"), "w", encoding="utf-8") as file:
            file.write(STATUS)
        info = os.path.join(root, "info")
        os.makedirs(info)
        self.target = os.path.join(root, "tool-1")
        self.link = os.path.join(root, "tool")
        with open(self.target, "w", encoding="utf-8"):
            pass
        os.symlink(self.target, self.link)
        with open(os.path.join(info, "tool:amd64.list"), "w", encoding="utf-8") as file:
            file.write(f"{self.target}\n/lib/libtool.so\n")
        self.debian = check_packages.Debian(os.path.join(root, "status"), info)

    def tearDown(self):
        self.folder.cleanup()

    def test_closure_follows_depends_alternatives_and_provides(self):
        self.assertEqual(self.debian.closure(["tool"]),
                         {"base-files", "tool", "library", "right", "provider"})

    def test_closure_holds_the_base_system_and_no_recommends(self):
        self.assertEqual(self.debian.closure([]), {"base-files"})
        self.assertNotIn("extra", self.debian.closure(["tool"]))

    def test_owner_follows_links_and_merged_folders(self):
        self.assertEqual(self.debian.owner(self.link), "tool")
        self.assertEqual(self.debian.owner("/usr/lib/libtool.so"), "tool")
        self.assertIsNone(self.debian.owner("/usr/local/lib/x.so"))


class ProgramsTest(unittest.TestCase):
    def test_finds_the_first_words_of_commands(self):
        script = """
            # comment: nothing here
            set -e
            if ! alpha --x; then beta; fi
            VAR=1 gamma | delta && epsilon || zeta
            x=$(eta --list "$(theta)")
            echo "text $(iota) more"
            printf '%s' 'kappa | lambda'
            find . | xargs -P "$jobs" -n 1 mu --quiet
            while read -r line; do nu; done < <(xi)
            ./local/program
        """
        found = check_packages.shell_programs(script)
        expected = {"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota",
                    "find", "xargs", "mu", "nu", "xi"}
        self.assertEqual(expected - found, set())
        self.assertEqual({"kappa", "lambda", "comment", "echo", "text"} & found, set())

    def test_does_not_read_here_documents(self):
        self.assertEqual(check_packages.shell_programs("cat <<'END'\nfoo bar\nEND\nbaz\n"),
                         {"cat", "baz"})

    def test_finds_what_python_runs(self):
        self.assertEqual(check_packages.python_programs(
            "import subprocess\nsubprocess.run(['ldd', x])\nsubprocess.run(command)\n"), {"ldd"})


class FakeDebian:
    """Everything belongs to one package."""

    def __init__(self, owner):
        self.package = owner

    def owner(self, path):
        return self.package

    def closure(self, names):
        return set(names)


class CheckTest(unittest.TestCase):
    def check(self, owner):
        with tempfile.TemporaryDirectory() as root:
            for path, text in (("tools/packages.txt", "# list\ncoreutils build\n"),
                               ("dev", "cat x\n"), (".ci/run", "cat x\n")):
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return check_packages.check(root, [], FakeDebian(owner))[0]

    def test_accepts_what_the_list_brings(self):
        self.assertEqual(self.check("coreutils"), [])

    def test_names_the_package_that_the_list_lacks(self):
        faults = self.check("surprise")
        self.assertEqual(len(faults), 1)
        self.assertIn("program cat", faults[0])
        self.assertIn("surprise", faults[0])

    def test_refuses_a_program_of_no_package(self):
        self.assertIn("no Debian package", self.check(None)[0])


if __name__ == "__main__":
    unittest.main()
