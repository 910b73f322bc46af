# SPDX-License-Identifier: Apache-2.0
"""Numbers mean the same under a locale with a decimal comma."""
import os
import shutil
import subprocess
import tempfile
import unittest

import programs

LOCALE = "de_DE.UTF-8"
FLAGS = ("--prompt", "And the king said", "--max-tokens", "8", "--top-p", "0.85", "--seed", "11")


class LocaleTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8",
                        os.path.join(self.folder.name, LOCALE)], check=True, capture_output=True)
        self.environment = dict(os.environ, LOCPATH=self.folder.name, LC_ALL=LOCALE)

    def tearDown(self):
        self.folder.cleanup()

    def test_the_locale_has_a_decimal_comma(self):
        done = programs.run("bash", "-c", "printf '%.2f' 1,25", environment=self.environment)
        self.assertEqual(done.out, "1,25", "the other tests of this file would test nothing")

    def test_an_answer_has_the_same_bits_and_the_same_text(self):
        plain = programs.generate(*FLAGS, temperature="0.75",
                                  environment=dict(os.environ, LC_ALL="C"))
        german = programs.generate(*FLAGS, temperature="0.75", environment=self.environment)
        for field in ("token_ids", "text", "logits_hash", "tokens_hash", "config_hash"):
            self.assertEqual(german[field], plain[field], field)


if __name__ == "__main__":
    if shutil.which("localedef") is None or not os.path.exists("/usr/share/i18n/locales/de_DE"):
        programs.skip("the sources of locales are not installed")
    unittest.main()
