# SPDX-License-Identifier: Apache-2.0
"""`moebius completion`: what a real bash completes with its script."""
import os
import re
import subprocess
import tempfile
import unittest

import programs


def script(shell):
    done = programs.run(programs.MOEBIUS, "completion", shell)
    if done.code != 0:
        raise AssertionError(str(done))
    return done.out


def complete(*words, folder=None):
    """What bash offers for the last of these words behind `moebius`."""
    program = (script("bash") + """
COMP_WORDS=(moebius "$@"); COMP_CWORD=$#; _moebius; printf '%s\\n' "${COMPREPLY[@]}"
""")
    done = subprocess.run(["bash", "--norc", "-u", "-c", program, "bash", *words], text=True,
                          capture_output=True, cwd=folder, check=False, timeout=60)
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"{words}: {done.returncode}\n{done.stderr}")
    return done.stdout.split()


class CompletionTest(unittest.TestCase):
    def test_commands_of_every_depth(self):
        self.assertEqual(complete("gen"), ["generate"])
        self.assertEqual(complete("model", "ins"), ["inspect"])
        self.assertEqual(sorted(complete("certs", "")), ["--help", "init", "show"])
        self.assertEqual(sorted(complete("keys", "")),
                         ["--help", "add", "list", "remove", "retire"])

    def test_flags_of_the_command_that_was_typed(self):
        self.assertEqual(complete("generate", "--max"), ["--max-tokens"])
        self.assertEqual(complete("generate", "--max-tokens", "3", "--se"), ["--seed"])
        self.assertEqual(complete("model", "inspect", "--max"), [])
        self.assertIn("--call-timeout", complete("status", "--"))

    def test_files_where_a_file_is_wanted_and_nothing_where_a_word_is(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "models"))
            with open(os.path.join(folder, "prompt.txt"), "w", encoding="utf-8"):
                pass
            self.assertEqual(complete("generate", "--prompt-file", "p", folder=folder),
                             ["prompt.txt"])
            self.assertEqual(complete("generate", "--model", "", folder=folder), ["models"])
            self.assertEqual(complete("generate", "--seed", "", folder=folder), [])
            self.assertEqual(complete("certs", "show", "p", folder=folder), ["prompt.txt"])

    def test_every_command_and_flag_of_the_help_is_there(self):
        """The script is made from the definitions: nothing can be forgotten."""
        listed = re.findall(r"^  ([a-z]+) {2,}", programs.run(programs.MOEBIUS, "--help").out,
                            re.MULTILINE)
        self.assertGreater(len(listed), 10)
        self.assertLessEqual(set(listed), set(complete("")))
        for command in listed:
            flags = re.findall(r"^ +(--[a-z-]+)",
                               programs.run(programs.MOEBIUS, command, "--help").out, re.MULTILINE)
            self.assertLessEqual(set(flags), set(complete(command, "--")), command)

    def test_bash_loads_it_as_printed(self):
        done = subprocess.run(
            ["bash", "--norc", "-c", f'source <({programs.MOEBIUS} completion bash) && complete -p moebius'],
            text=True, capture_output=True, check=False, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("-F _moebius moebius", done.stdout)

    def test_zsh_gets_the_same_behind_its_bridge(self):
        self.assertTrue(script("zsh").endswith(script("bash")))
        self.assertIn("bashcompinit", script("zsh"))

    def test_fish_gets_a_line_for_every_flag(self):
        lines = script("fish").splitlines()
        self.assertIn("complete -c moebius -n '__moebius_path ' -a generate", lines)
        (line,) = [line for line in lines if "'__moebius_path generate' -l prompt-file" in line]
        self.assertIn(" -r -F ", line)
        (line,) = [line for line in lines if "'__moebius_path generate' -l seed" in line]
        self.assertIn(" -x ", line)

    def test_another_shell_is_a_usage_error(self):
        self.assertEqual(programs.run(programs.MOEBIUS, "completion", "csh").code, 2)
        self.assertEqual(programs.run(programs.MOEBIUS, "completion").code, 2)


if __name__ == "__main__":
    unittest.main()
