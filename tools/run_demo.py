#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lets a program answer a case of a model's expected.json and compares the bits.

Usage: run_demo.py MOEBIUS MODEL_FOLDER [--case NAME]. Prints the text, the figures, and
`same bits ✓`; exit code 1 when ids or logits differ or the program fails. With --describe it only
says what the model is.
"""
import argparse
import json
import os
import subprocess
import sys
import textwrap

WIDTH = 92
TIMEOUT_SECONDS = 300


def load_case(folder, name):
    """The case of that name, or the first greedy one, else the first."""
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as file:
        cases = json.load(file)["cases"]
    if name:
        found = [case for case in cases if case["name"] == name]
    else:
        found = [case for case in cases if not case.get("temperature")] + cases
    if not found:
        raise SystemExit(f"expected.json has no case '{name}'; it has: "
                         + ", ".join(case["name"] for case in cases))
    return found[0]


def command_line(program, folder, case):
    """`moebius generate` for a case, every sampling field said aloud."""
    line = [program, "generate", "--model", folder, "--json", "--max-tokens",
            str(case["max_tokens"]), "--temperature", str(case["temperature"]), "--seed",
            str(case["seed"])]
    if case.get("top_p") is not None:
        line += ["--top-p", str(case["top_p"])]
    if "prompt_file" in case:
        line += ["--prompt-file", os.path.join(folder, case["prompt_file"])]
    else:
        line += ["--prompt", case["prompt"]]
    return line


def compare(case, answer):
    """Sentences that say where the answer differs from the case; none when the bits are the same."""
    faults = []
    expected, actual = case["token_ids"], answer.get("token_ids", [])
    if expected != actual:
        index = next((i for i, (a, b) in enumerate(zip(expected, actual)) if a != b),
                     min(len(expected), len(actual)))
        faults.append(f"token {index} differs: {actual[index:index + 1] or 'none'} instead of "
                      f"{expected[index:index + 1] or 'none'}")
    if case["logits_hash"] != answer.get("logits_hash"):
        faults.append(f"logits {answer.get('logits_hash')} instead of {case['logits_hash']}")
    if not answer.get("exactness", {}).get("exact", False):
        faults.append("the answer does not say that it is exact")
    return faults


def describe_model(folder):
    """One line from config.json and the size of the weights."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    experts = (config.get("n_routed_experts") or config.get("num_local_experts")
               or config.get("num_experts"))
    groups = config.get("n_group") or 1
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)
               if name.endswith(".safetensors"))
    line = f"{folder}: {config['model_type']}, {config['num_hidden_layers']} layers, " \
           f"{experts} experts top-{config['num_experts_per_tok']}"
    if groups > 1:
        line += f" in {groups} groups"
    return f"{line}, {size / 1e6:.0f} MB"


def rate(tokens, seconds):
    return f"{tokens / seconds:,.0f} tok/s" if seconds else "–"


def describe_answer(answer):
    """Tokens and speed; figures that the program does not give are absent."""
    timing = answer.get("timing", {})
    parts = [f"{answer['prompt_tokens']} + {answer['completion_tokens']} tokens"]
    if "prefill_seconds" in timing:
        parts.append("prefill " + rate(answer["prompt_tokens"], timing["prefill_seconds"]))
    if "decode_seconds" in timing:
        # The first generated token comes out of the prefill.
        parts.append("decode " + rate(answer["completion_tokens"] - 1, timing["decode_seconds"]))
    tier = timing.get("tier") or answer.get("tier")
    threads = timing.get("threads") or answer.get("threads")
    host = [tier] if tier else []
    host += [f"{threads} threads"] if threads else []
    parts.append(", ".join(host + [f"seed {answer['seed']}"]))
    return "   ".join(parts)


def run_case(program, folder, case):
    """The program's JSON object, or None after its error was shown."""
    try:
        done = subprocess.run(command_line(program, folder, case), capture_output=True,
                              timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"       {program}: {error}")
        return None
    if done.returncode != 0:
        print(f"       {program} ended with exit code {done.returncode}:")
        print(textwrap.indent(done.stderr.decode("utf-8", "replace").strip()[-2000:], "       "))
        return None
    return json.loads(done.stdout.decode("utf-8"))


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--case")
    parser.add_argument("--describe", action="store_true")
    options = parser.parse_args(arguments)
    if options.describe:
        print(describe_model(options.model))
        return 0
    case = load_case(options.model, options.case)
    answer = run_case(options.program, options.model, case)
    if answer is None:
        return 1
    text = " ".join((case.get("prompt", "") + answer["text"]).split())
    print(textwrap.fill(text, WIDTH, initial_indent=" " * 7, subsequent_indent=" " * 7))
    print(" " * 7 + describe_answer(answer))
    bits = f"tokens {answer['tokens_hash']}  logits {answer['logits_hash']}"
    faults = compare(case, answer)
    if faults:
        for fault in faults:
            print(" " * 7 + fault)
        print(f"       {bits:<93} other bits ✗")
        return 1
    same = f"{bits}  = {os.path.join(options.model, 'expected.json')}"
    print(f"       {same:<93} same bits ✓")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
