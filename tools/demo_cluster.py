#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks a cluster of real processes what one process has answered, and compares the bits.

Usage: demo_cluster.py MOEBIUS MODEL_FOLDER [--experts N] [--attention N] [--logs DIR]. Starts
`moebius serve`, asks over gRPC, kills an expert service in the middle of an answer, shows where the
time and the rows went, and stops everything. Exit code 1 when a bit differs, an assignment is lost,
a process fails or does not end.
"""
import argparse
import json
import os
import queue
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import run_demo

READY_SECONDS = 60
ANSWER_SECONDS = 120
STOP_SECONDS = 15
INDENT = " " * 7
BAR = " ▏▎▍▌▋▊▉█"
VERDICT_COLUMN = 93


class DemoError(Exception):
    """What went wrong, in a sentence."""


def say(line):
    print(INDENT + line, flush=True)


def verdict(line, faults):
    """The line with its verdict, and the faults above it."""
    for fault in faults:
        say(fault)
    say(f"{line:<{VERDICT_COLUMN}} " + ("other bits ✗" if faults else "same bits ✓"))


class Cluster:
    """`moebius serve` as a child, and the lines that it writes."""

    def __init__(self, program, folder, options):
        os.makedirs(options.logs, exist_ok=True)
        self.log = open(os.path.join(options.logs, "serve.log"), "w", encoding="utf-8")
        self.process = subprocess.Popen(
            [program, "serve", "--model", folder, "--experts", str(options.experts), "--attention",
             str(options.attention), "--log-dir", options.logs, "--json"],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.events = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.events.put((time.monotonic(), json.loads(line)))
        self.events.put((time.monotonic(), None))

    def wait_for(self, event, seconds, name=None):
        """(when, the event) of that kind, about that process."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                when, found = self.events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise DemoError(f"moebius serve said no '{event}' within {seconds} s; "
                                f"see {self.log.name}") from None
            if found is None:
                raise DemoError(f"moebius serve ended with exit code {self.process.wait()}; "
                                f"see {self.log.name}")
            if found["event"] == event and (name is None or found.get("name") == name):
                return when, found

    def stop(self):
        """Stops everything; the exit code of the supervisor."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise DemoError(f"moebius serve did not stop within {STOP_SECONDS} s") from None
        finally:
            self.log.close()
            self.reader.join(STOP_SECONDS)
            self.process.stdout.close()


def run_json(line):
    """The JSON object that a command prints."""
    done = subprocess.run(line, capture_output=True, timeout=ANSWER_SECONDS, check=False)
    if done.returncode != 0:
        raise DemoError(f"{' '.join(line[:3])} ended with exit code {done.returncode}: "
                        + done.stderr.decode("utf-8", "replace").strip()[-2000:])
    return json.loads(done.stdout.decode("utf-8"))


def ask_line(program, router, folder, case):
    """`moebius generate` of a case, asked of a router."""
    line = run_demo.command_line(program, folder, case)
    where = line.index("--model")
    line[where:where + 2] = ["--router", router]
    return line


def bits_of(answer):
    return f"tokens {answer['tokens_hash']}  logits {answer['logits_hash']}"


class KilledAnswer:
    """An answer in the middle of which one process is killed with -9."""

    def __init__(self, victim, after_bytes):
        self.victim = victim
        self.after_bytes = after_bytes
        self.killed_at = 0.0
        self.num_bytes = 0  # of text when the process was killed
        self.pause = 0.0    # the longest wait for more text after that, in seconds
        self.token_hash = self.logits_hash = None

    def run(self, line):
        """Runs `moebius generate` and watches its text come."""
        closing = []
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            reader = threading.Thread(target=lambda: closing.append(process.stderr.read()),
                                      daemon=True)
            reader.start()
            self._follow(process.stdout)
            reader.join(ANSWER_SECONDS)
            code = process.wait(timeout=ANSWER_SECONDS)
        closing = closing[0].decode("utf-8", "replace") if closing else ""
        if code != 0:
            raise DemoError("the answer failed when a process was killed: " + closing[-2000:])
        if not self.killed_at:
            raise DemoError("the answer had ended before a process could be killed")
        found = re.search(r"tokens ([0-9a-f]{8})  logits ([0-9a-f]{16})", closing)
        if not found:
            raise DemoError("the answer has no hashes: " + closing[-2000:])
        self.token_hash, self.logits_hash = found.groups()

    def _follow(self, text):
        received = 0
        last = time.monotonic()
        while chunk := text.read1(1 << 16):
            received += len(chunk)
            now = time.monotonic()
            if self.killed_at:
                self.pause = max(self.pause, now - max(last, self.killed_at))
            elif received >= self.after_bytes:
                os.kill(self.victim["pid"], signal.SIGKILL)
                self.killed_at = time.monotonic()
                self.num_bytes = received
            last = now


def describe_time(answer):
    """Where a generated token's time went, from the phases that the program timed."""
    timing = answer["timing"]
    total = timing["prefill_seconds"] + timing["decode_seconds"]
    steps = timing["prefill_steps"] + timing["decode_steps"]
    phases = [("attention", timing["attention_seconds"]), ("experts", timing["expert_seconds"]),
              ("gate+combine", timing["gate_seconds"] + timing["combine_seconds"]),
              ("head", timing["head_seconds"])]
    phases.append(("rest", max(0.0, total - sum(seconds for _, seconds in phases))))
    cells = []
    for name, seconds in phases:
        eighths = round(64 * seconds / total) if total else 0
        bar = BAR[8] * (eighths // 8) + (BAR[eighths % 8] if eighths % 8 else "")
        cells.append(f"{name} {bar} {1e3 * seconds / steps:.2f}")
    say(f"Where a step's {1e3 * total / steps:.2f} ms went   " + "   ".join(cells))


def describe_traffic(answer):
    """What crossed the network, beside a protocol that asks each expert by itself."""
    timing = answer["timing"]
    ports = [timing["attention_traffic"], timing["expert_traffic"]]
    messages, out, back = (sum(port[key] for port in ports)
                           for key in ("messages", "bytes_out", "bytes_back"))
    tokens = answer["prompt_tokens"] + answer["completion_tokens"] - 1
    say(f"for each of {tokens} tokens {messages / tokens:.1f} messages, {out / tokens / 1e3:.1f} KB "
        f"out, {back / tokens / 1e3:.1f} KB back; of these to experts "
        f"{ports[1]['messages'] / tokens:.1f}, {ports[1]['bytes_out'] / tokens / 1e3:.1f} and "
        f"{ports[1]['bytes_back'] / tokens / 1e3:.1f} KB (one message per expert: "
        f"{timing['naive_messages'] / tokens:.1f}, {timing['naive_bytes'] / tokens / 1e3:.1f} KB "
        "each way)")


def conservation_fault(answer, config):
    """Why an assignment of the answer is unaccounted for, or None."""
    moe_layers = config["num_hidden_layers"] - config.get("first_k_dense_replace", 0)
    rows = answer["prompt_tokens"] + answer["completion_tokens"] - 1
    expected = rows * moe_layers * config["num_experts_per_tok"]
    timing = answer["timing"]
    if timing["assignments"] == expected and timing["dropped"] == answer["exactness"]["dropped"]:
        return None
    return f"{timing['assignments']:,} assignments are accounted for, {expected:,} were demanded"


def show_load(program, router, layer, prompt):
    """The heat map of what was served, and one layer's dispatch."""
    for line in ([program, "experts", "--router", router],
                 [program, "route", "--router", router, "--layer", str(layer), "--prompt", prompt]):
        done = subprocess.run(line, capture_output=True, timeout=ANSWER_SECONDS, check=False)
        if done.returncode != 0:
            raise DemoError(f"{' '.join(line[:3])} failed: "
                            + done.stderr.decode("utf-8", "replace").strip()[-2000:])
        print(textwrap.indent(done.stdout.decode("utf-8").rstrip(), INDENT), flush=True)


def run_cluster(program, folder, options):
    """Every step of the demo; the number of faults."""
    case = run_demo.load_case(folder, options.case)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    failed = 0
    started = time.monotonic()
    cluster = Cluster(program, folder, options)
    try:
        _, ready = cluster.wait_for("ready", READY_SECONDS)
        router = ready["router"]
        status = f"   status {ready['status']}" if ready.get("status") else ""
        say(f"ready in {time.monotonic() - started:.1f} s: a canary row went round   "
            f"grpc {router}{status}")

        answer = run_json(ask_line(program, router, folder, case))
        faults = run_demo.compare(case, answer)
        verdict(bits_of(answer), faults)
        failed += len(faults)
        say(run_demo.describe_answer(answer))

        failed += show_kill(program, router, folder, case, cluster, ready)

        fault = conservation_fault(answer, config)
        timing = answer["timing"]
        say(f"exact: {'yes' if answer['exactness']['exact'] else 'no'}   "
            f"{timing['assignments']:,} assignments routed = "
            f"{timing['assignments'] - timing['dropped']:,} combined + {timing['dropped']:,} dropped"
            " (dropless: no capacity set)")
        if fault:
            say(fault)
            failed += 1
        describe_time(answer)
        describe_traffic(answer)
        show_load(program, router, options.layer, case["prompt"])
    finally:
        code = cluster.stop()
    say(f"All stopped, exit code {code}; logs in {options.logs}")
    return failed + (code != 0)


def show_kill(program, router, folder, case, cluster, ready):
    """The same answer while an expert service dies; the number of faults."""
    experts = [process for process in ready["processes"] if process["role"] == "expert"]
    victim = experts[len(experts) // 2]
    request_id = "demo-kill"
    line = [word for word in ask_line(program, router, folder, case) if word != "--json"]
    killed = KilledAnswer(victim, after_bytes=case["max_tokens"] // 2)
    killed.run(line + ["--request-id", request_id])
    ended_at, ended = cluster.wait_for("ended", 5, victim["name"])
    told = run_json([program, "explain", request_id, "--router", router, "--json"])
    resent = told["timing"]["resent_rows"]
    faults = []
    if killed.logits_hash != case["logits_hash"]:
        faults.append(f"logits {killed.logits_hash} instead of {case['logits_hash']}")
    if not told["exactness"]["exact"]:
        faults.append("the answer does not say that it is exact")
    verdict(f"kill -9 {victim['name']} at token {killed.num_bytes}: noticed after "
            f"{1e3 * max(0.0, ended_at - killed.killed_at):.0f} ms, "
            f"{resent} row{'' if resent == 1 else 's'} resent, pause {1e3 * killed.pause:.0f} ms",
            faults)
    if ended.get("signal") != 9:
        say(f"{victim['name']} ended by signal {ended.get('signal')}, not by 9")
        return len(faults) + 1
    return len(faults)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--case")
    parser.add_argument("--experts", type=int, default=4)
    parser.add_argument("--attention", type=int, default=2)
    parser.add_argument("--layer", type=int, default=3)
    parser.add_argument("--logs", default="build/demo/logs")
    options = parser.parse_args(arguments)
    try:
        return 1 if run_cluster(options.program, options.model, options) else 0
    except (DemoError, OSError, subprocess.TimeoutExpired) as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
