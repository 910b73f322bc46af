#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exercise 2: softmax over three blocks, merged as they come, equals softmax over the whole."""
import math

SCORES = [1.0, 3.0, 2.0, -1.0, 0.5, 4.0, 2.5, 0.0, 1.5]
VALUES = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0]


def whole():
    """The definition: weights exp(s - max) over their sum."""
    top = max(SCORES)
    weights = [math.exp(score - top) for score in SCORES]
    return sum(w * v for w, v in zip(weights, VALUES)) / sum(weights)


def merge(state, other):
    """Two partial results (m, l, acc): the larger maximum is the new one, the other is scaled."""
    (m1, l1, a1), (m2, l2, a2) = state, other
    m = max(m1, m2)
    s1, s2 = math.exp(m1 - m), math.exp(m2 - m)
    return m, l1 * s1 + l2 * s2, a1 * s1 + a2 * s2


def block(begin, end):
    """One block by itself: its maximum, its sum, its weighted values."""
    m = max(SCORES[begin:end])
    weights = [math.exp(score - m) for score in SCORES[begin:end]]
    return m, sum(weights), sum(w * v for w, v in zip(weights, VALUES[begin:end]))


state = (-math.inf, 0.0, 0.0)  # nothing yet
for begin in (0, 3, 6):
    part = block(begin, begin + 3)
    state = part if state[0] == -math.inf else merge(state, part)
    print(f"after keys {begin} to {begin + 2}: m {state[0]:.1f}  l {state[1]:.6f}  "
          f"acc/l {state[2] / state[1]:.6f}")
print(f"all at once:       {whole():.6f}")
print("equal" if abs(state[2] / state[1] - whole()) < 1e-12 else "DIFFERENT")
