# SPDX-License-Identifier: Apache-2.0
"""A peer of `moebius bench experts` that knows what bench/README.md says, and nothing of speed.
Usage: bench_peer.py [nonsense|dies]."""
import os
import sys

print(f"peer of {os.environ['MOEBIUS_BENCH_TIER']}", flush=True)
manner = sys.argv[1] if len(sys.argv) > 1 else ""
for line in sys.stdin:
    words = line.split()
    if manner == "dies":
        sys.exit(1)
    if manner == "nonsense":
        print("fast", flush=True)
    elif words[0] == "gemm":
        print("0.5", flush=True)
    elif words[0] == "expert_ffn" and int(words[2]) == 1:
        print("0.25", flush=True)
    else:
        print("unsupported", flush=True)
