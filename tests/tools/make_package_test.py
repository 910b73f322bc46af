# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/make_package.py."""
import os
import tarfile
import tempfile
import unittest

import make_package


class MakePackageTest(unittest.TestCase):
    def test_sees_the_libraries_of_a_program(self):
        libraries = make_package.libraries_of("/bin/ls")
        self.assertTrue(any(os.path.basename(path) == "libc.so.6" for path in libraries), libraries)

    def test_knows_the_package_of_a_library(self):
        path, = (p for p in make_package.libraries_of("/bin/ls") if p.endswith("/libc.so.6"))
        self.assertEqual(make_package.package_of(path), "libc6")

    def test_a_tar_is_the_same_bytes_whenever_it_is_made(self):
        with tempfile.TemporaryDirectory() as folder:
            root = os.path.join(folder, "moebius-1")
            os.makedirs(os.path.join(root, "bin"))
            with open(os.path.join(root, "bin", "moebius"), "w", encoding="utf-8") as file:
                file.write("program")
            make_package.make_tar(root, os.path.join(folder, "moebius-1.tar.gz"))
            with tarfile.open(os.path.join(folder, "moebius-1.tar.gz")) as tar:
                member, = tar.getmembers()
            self.assertEqual(member.name, "moebius-1/bin/moebius")
            self.assertEqual((member.uid, member.mtime, member.uname), (0, 0, "root"))


if __name__ == "__main__":
    unittest.main()
