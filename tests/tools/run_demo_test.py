# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/run_demo.py with a program that answers what a test wants."""
import contextlib
import io
import json
import os
import stat
import tempfile
import unittest

import run_demo

CASE = {"name": "greedy", "prompt": "And", "max_tokens": 2, "temperature": 0, "top_p": 1.0,
        "seed": 7, "token_ids": [5, 9], "logits_hash": "00000000000000ab"}
ANSWER = {"text": " so", "token_ids": [5, 9], "prompt_tokens": 4, "completion_tokens": 2, "seed": 7,
          "logits_hash": "00000000000000ab", "tokens_hash": "000000cd",
          "exactness": {"exact": True}, "timing": {"prefill_seconds": 0.5, "decode_seconds": 0.25}}


class RunDemoTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.write("expected.json", json.dumps({"config_hash": "1", "cases": [CASE]}))

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def run_with(self, answer, code=0):
        program = self.write("program", "#!/bin/sh\nprintf '%s ' \"$@\" >\"$(dirname \"$0\")/args\"\n"
                             f"cat \"$(dirname \"$0\")/answer\"\necho a sentence >&2\nexit {code}\n")
        os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)
        self.write("answer", json.dumps(answer))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            result = run_demo.main([program, self.folder.name])
        return result, out.getvalue()

    def test_says_same_bits(self):
        result, out = self.run_with(ANSWER)
        self.assertEqual(result, 0)
        self.assertIn("same bits ✓", out)
        self.assertIn("4 + 2 tokens   prefill 8 tok/s   decode 4 tok/s", out)

    def test_passes_every_sampling_field(self):
        self.run_with(ANSWER)
        with open(os.path.join(self.folder.name, "args"), encoding="utf-8") as file:
            self.assertEqual(file.read().strip(), f"generate --model {self.folder.name} --json "
                             "--max-tokens 2 --temperature 0 --seed 7 --top-p 1.0 --prompt And")

    def test_another_token_is_named(self):
        result, out = self.run_with({**ANSWER, "token_ids": [5, 8]})
        self.assertEqual(result, 1)
        self.assertIn("token 1 differs: [8] instead of [9]", out)
        self.assertNotIn("same bits", out)

    def test_another_logits_hash_is_a_failure_though_the_tokens_agree(self):
        result, out = self.run_with({**ANSWER, "logits_hash": "00000000000000ac"})
        self.assertEqual(result, 1)
        self.assertIn("00000000000000ac instead of 00000000000000ab", out)

    def test_an_answer_that_is_not_exact_is_a_failure(self):
        self.assertEqual(self.run_with({**ANSWER, "exactness": {"exact": False}})[0], 1)

    def test_a_program_that_fails_is_shown(self):
        result, out = self.run_with(ANSWER, code=4)
        self.assertEqual(result, 1)
        self.assertIn("exit code 4", out)
        self.assertIn("a sentence", out)

    def test_an_unknown_case_names_the_known_ones(self):
        with self.assertRaisesRegex(SystemExit, "greedy"):
            run_demo.load_case(self.folder.name, "other")


if __name__ == "__main__":
    unittest.main()
