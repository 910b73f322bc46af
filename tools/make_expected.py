#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers the questions of a model's expected.json again and writes the file.

The questions are the file's own: name, prompt or prompt_file, max_tokens, temperature, top_p, seed.
A changed answer is a changed model or a broken promise: review it, never trust it.

Usage: make_expected.py MOEBIUS MODEL_FOLDER [--check]. With --check nothing is written and the exit
code is 1 when an answer differs.
"""
import argparse
import json
import os
import subprocess
import sys

import run_demo

QUESTION = ("name", "prompt", "prompt_file", "max_tokens", "temperature", "top_p", "seed")


def answer(program, folder, case):
    """The case with token ids and logits hash as the program gives them, and the config hash."""
    done = subprocess.run(run_demo.command_line(program, folder, case), check=True,
                          stdout=subprocess.PIPE)
    got = json.loads(done.stdout)
    answered = {key: case[key] for key in QUESTION if key in case}
    answered["token_ids"] = got["token_ids"]
    answered["logits_hash"] = got["logits_hash"]
    return answered, got["config_hash"]


def format_cases(config_hash, cases):
    """One line for each field of a case: a changed id shows as one changed line."""
    lines = ['{', f'  "config_hash": {json.dumps(config_hash)},', '  "cases": [']
    for index, case in enumerate(cases):
        fields = [f'      {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}'
                  for key, value in case.items()]
        lines.append("    {")
        lines.append(",\n".join(fields))
        lines.append("    }" + ("," if index + 1 < len(cases) else ""))
    return "\n".join(lines + ["  ]", "}"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    path = os.path.join(arguments.folder, "expected.json")
    with open(path, encoding="utf-8") as file:
        before = file.read()
    answered = [answer(arguments.program, arguments.folder, case)
                for case in json.loads(before)["cases"]]
    if len({config_hash for _, config_hash in answered}) != 1:
        raise SystemExit("the cases do not share one config hash")
    after = format_cases(answered[0][1], [case for case, _ in answered])
    if arguments.check:
        print("same" if after == before else "different")
        return 0 if after == before else 1
    with open(path, "w", encoding="utf-8") as file:
        file.write(after)
    print(f"{path}: {len(answered)} cases, " + ("unchanged" if after == before else "changed"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
