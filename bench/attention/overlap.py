#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of the ring's transfers computing hides, on links that are slow on purpose.

Usage, as root: bench/attention/overlap.py [--tokens N] [--share X] [--layers N] [--repetitions N]. Needs ip
and tc (package iproute2) and the release programs (./dev build). Two attention ranks in network namespaces
of their own, a cable between them; a prompt of one step first at full speed, then with both ends of
the cable limited by tbf so that a round's transfer takes `--share` of computing it. Prints the wait
that was not hidden beside the transfer time, and what the first round is of it: nothing can hide
before the first keys are there but the rank's own spans.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = os.path.join(ROOT, "build", "bin")
NAMES = ("moebius-overlap-0", "moebius-overlap-1")
ADDRESSES = ("10.213.7.1", "10.213.7.2")
FETCH = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"
READY_SECONDS = 120
ANSWER_SECONDS = 600


def run(*words, check=True):
    return subprocess.run(words, check=check, capture_output=True, text=True)


class Cable:
    """Two namespaces and a pair of veth between them."""

    def __enter__(self):
        self.remove()
        for name in NAMES:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", "overlap0", "netns", NAMES[0], "type", "veth", "peer", "name",
            "overlap1", "netns", NAMES[1])
        for index, name in enumerate(NAMES):
            inside = ("ip", "-n", name)
            run(*inside, "address", "add", ADDRESSES[index] + "/24", "dev", f"overlap{index}")
            run(*inside, "link", "set", f"overlap{index}", "up")
            run(*inside, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        self.remove()

    @staticmethod
    def remove():
        for name in NAMES:
            run("ip", "netns", "delete", name, check=False)

    @staticmethod
    def limit(bytes_per_second):
        for index, name in enumerate(NAMES):
            run("tc", "-n", name, "qdisc", "replace", "dev", f"overlap{index}", "root", "tbf", "rate",
                f"{int(bytes_per_second * 8)}bit", "burst", "256kb", "latency", "200ms")


class Cluster:
    """A router, an expert service and two ranks; the second rank is at the cable's other end."""

    def __init__(self, model, folder, tokens):
        self.model, self.folder, self.children = model, folder, []
        try:
            self.join_all(tokens)
        except BaseException:
            self.stop()
            raise

    def join_all(self, tokens):
        self.start("router", 0, "--experts", "1", "--attention", "2", "--attention-method",
                   "ring-pass-kv", "--row-budget", str(tokens), "--chunk", str(tokens), "--listen",
                   ADDRESSES[0] + ":0", "--grpc-listen", ADDRESSES[0] + ":0", "--admin-listen=",
                   "--http-listen=")
        join = self.address("router", "data")
        self.start("expert", 0, "--join", join, "--http-listen=", "--admin-listen=")
        for rank in range(2):
            self.start("attention", rank, "--join", join, "--threads", "1", "--listen",
                       ADDRESSES[rank] + ":0", "--http-listen", ADDRESSES[rank] + ":0",
                       "--admin-listen=", name=f"attention-{rank}")
        self.grpc = self.address("router", "grpc")
        inside(0, os.path.join(PROGRAMS, "moebius"), "wait", "--router", self.grpc)

    def start(self, role, where, *flags, name=None):
        name = name or role
        with open(os.path.join(self.folder, name + ".out"), "w", encoding="utf-8") as out, \
                open(os.path.join(self.folder, name + ".log"), "w", encoding="utf-8") as log:
            self.children.append(subprocess.Popen(
                ["ip", "netns", "exec", NAMES[where], os.path.join(PROGRAMS, "moebius-" + role),
                 "--model", self.model, "--transport", "grpc", "--insecure", *flags],
                stdout=out, stderr=log))

    def address(self, name, port):
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            with open(os.path.join(self.folder, name + ".out"), encoding="utf-8") as out:
                found = re.search(rf"^listening.* {port}=(\S+)", out.read(), re.M)
            if found:
                return found[1]
            if any(child.poll() is not None for child in self.children):
                break
            time.sleep(0.1)
        with open(os.path.join(self.folder, name + ".log"), encoding="utf-8") as log:
            raise SystemExit(f"{name} did not start: {log.read()[-2000:]}")

    def counters(self, rank):
        page = inside(rank, sys.executable, "-c", FETCH,
                      f"http://{self.address(f'attention-{rank}', 'http')}/metrics")
        names = {"wait": "moebius_attention_exposed_wait_seconds_total",
                 "rounds": "moebius_attention_rounds_total",
                 "ring": "moebius_attention_ring_step_seconds_total"}
        return {key: sum(float(value) for value in
                         re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.M))
                for key, name in names.items()}

    def ask(self, ids):
        before = [self.counters(rank) for rank in range(2)]
        inside(0, os.path.join(PROGRAMS, "moebius"), "generate", "--router", self.grpc,
               "--prompt-ids", ids, "--max-tokens", "1", "--temperature", "0", "--json")
        after = [self.counters(rank) for rank in range(2)]
        return [{key: late[key] - early[key] for key in late} for early, late in zip(before, after)]

    def stop(self):
        for child in reversed(self.children):
            child.terminate()
        for child in self.children:
            child.wait()


def inside(where, *words):
    done = subprocess.run(["ip", "netns", "exec", NAMES[where], *words], capture_output=True,
                          text=True, timeout=ANSWER_SECONDS, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words[:2])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--share", type=float, default=0.5, help="transfer over computing")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root")
    kv_heads, head_dim = 4, 128
    with tempfile.TemporaryDirectory() as folder, Cable() as cable:
        model = os.path.join(folder, "model")
        run(os.path.join(PROGRAMS, "moebius"), "model", "make", "--family", "qwen3_moe", "--out",
            model, "--layers", str(options.layers), "--hidden", "64", "--heads", "16", "--kv-heads",
            str(kv_heads), "--head-dim", str(head_dim), "--experts", "2", "--top-k", "1",
            "--intermediate", "32", "--positions", str(options.tokens + 64))
        cluster = Cluster(model, folder, options.tokens)
        try:
            ids = ",".join(str(i * 37 % 250) for i in range(options.tokens))
            cluster.ask(ids)  # takes memory
            free = cluster.ask(ids)
            computing = statistics.mean(rank["ring"] - rank["wait"] for rank in free)
            # Half of the keys are the other rank's; each is fetched once a layer.
            moved = options.layers * options.tokens // 2 * kv_heads * 2 * head_dim * 2
            transfer = computing * options.share
            cable.limit(moved / transfer)
            rows = [cluster.ask(ids) for _ in range(options.repetitions)]
        finally:
            cluster.stop()
        report(options, free, computing, moved, transfer, rows)
    return 0


def report(options, free, computing, moved, transfer, rows):
    rounds = free[0]["rounds"]
    print(f"{options.tokens} tokens, 2 ranks, {rounds:.0f} rounds a rank; computing them "
          f"{computing:.2f} s a rank, {moved / 1e6:.1f} MB come over a link of "
          f"{moved / transfer / 1e6:.1f} MB/s: {transfer:.2f} s")
    waits = [rank["wait"] for row in rows for rank in row]
    exposed = statistics.median(waits) / transfer
    first = options.layers / rounds  # what of the transfer nothing but own spans can hide
    print(f"not hidden: {', '.join(f'{wait:.3f}' for wait in waits)} s; median {exposed:.1%} of the "
          f"transfer time, {max(0.0, exposed - first):.1%} beyond the first round's {first:.1%}; "
          f"without a limit {statistics.mean(rank['wait'] for rank in free):.3f} s")
    print(json.dumps({"tokens": options.tokens, "rounds": rounds, "computing_seconds": computing,
                      "transfer_seconds": transfer, "bytes": moved, "waits": waits}))


if __name__ == "__main__":
    sys.exit(main())
