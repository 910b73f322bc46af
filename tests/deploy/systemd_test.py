# SPDX-License-Identifier: Apache-2.0
"""The systemd units, read by systemd."""
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

UNITS = os.path.join(os.environ["MOEBIUS_SOURCE_DIR"], "deploy", "systemd")
PROGRAMS = os.environ["MOEBIUS_PROGRAM_DIR"]


def complaints(texts):
    """What systemd-analyze says about units, {file name: text}: its lines that name them."""
    with tempfile.TemporaryDirectory(prefix="moebius") as folder:
        paths = [os.path.join(folder, name) for name in texts]
        for path, text in zip(paths, texts.values()):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", *paths],
                              capture_output=True, text=True, timeout=120, check=False)
    # Of other units of this machine, which it reads as well, nothing is said here.
    return [line for line in (done.stdout + done.stderr).splitlines() if "moebius" in line]


class SystemdTest(unittest.TestCase):
    def units(self):
        """The units with the programs of this tree; a template as its instance."""
        texts = {}
        for path in sorted(glob.glob(os.path.join(UNITS, "*.service"))):
            with open(path, encoding="utf-8") as file:
                texts[os.path.basename(path).replace("@.", "@30.")] = file.read().replace(
                    "/usr/local/bin", PROGRAMS)
        return texts

    def test_systemd_understands_every_line(self):
        self.assertEqual(len(self.units()), 3)
        self.assertEqual(complaints(self.units()), [])

    def test_a_misspelled_line_is_found(self):
        texts = {name: text.replace("KillMode=mixed", "KillMode=mixd")
                 for name, text in self.units().items()}
        self.assertEqual(len(complaints(texts)), 3)


if __name__ == "__main__":
    if shutil.which("systemd-analyze") is None:
        print("MOEBIUS_SKIP: systemd-analyze is not on this machine")
        sys.exit(77)
    unittest.main()
