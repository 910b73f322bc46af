# SPDX-License-Identifier: Apache-2.0
"""The package runs where it is unpacked, with the libraries that it brings."""
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest

import make_package
import programs


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        output = os.path.join(cls.folder.name, "made")
        subprocess.run([sys.executable, os.path.join(programs.SOURCE, "tools/make_package.py"),
                        programs.BINARIES, output], check=True, capture_output=True)
        path, = (os.path.join(output, name) for name in os.listdir(output)
                 if name.endswith(".tar.gz"))
        with tarfile.open(path) as tar:
            tar.extractall(os.path.join(cls.folder.name, "elsewhere"))
        cls.root = os.path.join(cls.folder.name, "elsewhere",
                                os.path.basename(path)[:-len(".tar.gz")])

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_holds_every_program_stripped(self):
        folder = os.path.join(self.root, "bin")
        self.assertEqual(sorted(os.listdir(folder)), programs.program_names())
        for name in os.listdir(folder):
            done = programs.run("nm", os.path.join(folder, name))
            self.assertIn("no symbols", done.out + done.err, name)

    def test_takes_its_libraries_from_beside_itself(self):
        for name in programs.program_names():
            for path in make_package.libraries_of(os.path.join(self.root, "bin", name)):
                brought = os.path.realpath(path).startswith(os.path.realpath(self.root))
                base = make_package.package_of(path) in make_package.BASE_PACKAGES \
                    if not brought else False
                self.assertTrue(brought or base, f"{name} takes {path} from the machine")

    def test_brings_licence_documents_and_the_demo(self):
        for path in ("share/doc/moebius/LICENSE", "share/doc/moebius/README.md",
                     "share/moebius/models/demo/config.json"):
            self.assertTrue(os.path.exists(os.path.join(self.root, path)), path)
        brought = os.listdir(os.path.join(self.root, "lib"))
        self.assertEqual(bool(brought), len(os.listdir(os.path.join(self.root, "share/doc"))) > 1)

    def test_has_everything_that_the_images_copy(self):
        with open(os.path.join(programs.SOURCE, "deploy", "images", "Dockerfile"),
                  encoding="utf-8") as file:
            copied = re.findall(r"^COPY --from=programs /package/(\S+) ", file.read(), re.MULTILINE)
        self.assertGreater(len(copied), 5)
        for path in copied:
            self.assertTrue(os.path.exists(os.path.join(self.root, path)), path)

    def test_answers_with_the_bits_of_the_checkout(self):
        flags = ("--prompt", "And the king said", "--max-tokens", "4")
        here = programs.generate(*flags)
        there = programs.run(
            os.path.join(self.root, "bin", "moebius"), "generate", "--model",
            os.path.join(self.root, "share/moebius/models/demo"), "--json", "--temperature", "0",
            *flags, environment={"PATH": "/usr/bin:/bin"}, folder="/")
        self.assertEqual(there.code, 0, str(there))
        self.assertEqual(there.json()["logits_hash"], here["logits_hash"])


if __name__ == "__main__":
    unittest.main()
