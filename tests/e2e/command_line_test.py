# SPDX-License-Identifier: Apache-2.0
"""The command line as a person meets it: help, typing errors, exit codes, its own path."""
import os
import re
import stat
import tempfile
import unittest

import programs


def commands_in_help(text):
    """First words of the indented lines below a heading of subcommands."""
    section = re.search(r"(?mis)^(?:sub)?commands:?\s*\n(.*?)(?=^\S|\Z)", text)
    return re.findall(r"(?m)^\s{1,4}([a-z][a-z-]*)\s", section.group(1)) if section else []


class CommandLineTest(unittest.TestCase):
    def test_every_command_has_help(self):
        done = programs.run(programs.MOEBIUS, "--help")
        self.assertEqual(done.code, 0, str(done))
        commands = commands_in_help(done.out)
        self.assertIn("generate", commands, str(done))
        for command in commands:
            done = programs.run(programs.MOEBIUS, command, "--help")
            self.assertEqual(done.code, 0, f"{command}: {done}")
            self.assertGreater(len(done.out), 0, command)

    def test_an_unknown_command_names_the_nearest_and_starts_nothing(self):
        done = programs.run(programs.MOEBIUS, "genrate")
        self.assertEqual(done.code, 2, str(done))
        self.assertIn("genrate", done.err)
        self.assertIn("generate", done.err)
        self.assertEqual(done.out, "")

    def test_an_unknown_flag_names_the_nearest(self):
        done = programs.run(programs.MOEBIUS, "generate", "--modle", programs.DEMO)
        self.assertEqual(done.code, 2, str(done))
        self.assertIn("--model", done.err)

    def test_a_flag_without_its_value_and_help_name_the_command(self):
        done = programs.run(programs.MOEBIUS, "generate", "--model")
        self.assertEqual(done.code, 2, str(done))
        self.assertEqual(done.err, "error: flag '--model' needs a value\n"
                                   "hint: see: moebius generate --help\n")
        done = programs.run(programs.MOEBIUS, "model", "inspect")
        self.assertEqual(done.code, 2, str(done))
        self.assertIn("see: moebius model inspect --help", done.err)
        helped = programs.run(programs.MOEBIUS, "help", "model", "inspect")
        self.assertEqual(helped.code, 0, str(helped))
        self.assertEqual(helped.out,
                         programs.run(programs.MOEBIUS, "model", "inspect", "--help").out)
        self.assertNotIn("TEXT", helped.out)

    def test_a_flag_that_is_given_again_overrides_itself(self):
        done = programs.run(programs.MOEBIUS, "model", "inspect", "--model", "/nonexistent",
                            "--json", "--json", "--model", programs.DEMO)
        self.assertEqual(done.code, 0, str(done))

    def test_a_folder_that_is_no_model_is_a_model_error(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in (folder, os.path.join(folder, "absent")):
                done = programs.run(programs.MOEBIUS, "generate", "--model", path, "--prompt", "x")
                self.assertEqual(done.code, 4, str(done))
                self.assertIn(path, done.err)

    def test_version_says_which_program_this_is(self):
        # A file of the same name stands first in PATH, as after a pip install of something else.
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, "moebius")
            with open(other, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho something else\n")
            os.chmod(other, os.stat(other).st_mode | stat.S_IXUSR)
            environment = dict(os.environ, PATH=folder + ":" + os.environ["PATH"])
            done = programs.run(programs.MOEBIUS, "version", environment=environment)
            self.assertEqual(done.code, 0, str(done))
            self.assertIn(os.path.realpath(programs.MOEBIUS), done.out)


if __name__ == "__main__":
    unittest.main()
