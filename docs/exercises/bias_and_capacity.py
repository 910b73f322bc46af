#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exercise 3: why a bias cannot bound an expert's load, and what a capacity adds."""

# Two tokens with the same scores for four experts; each takes the best one.
SCORES = [[0.9, 0.7, 0.5, 0.5], [0.9, 0.7, 0.5, 0.5]]


def choose(scores, bias):
    """The best expert by score + bias; equal ones go to the lowest id."""
    return max(range(4), key=lambda expert: (scores[expert] + bias[expert], -expert))


loads = {}
for step in range(-100, 101):
    bias = [step / 100, 0, 0, 0]
    chosen = [choose(scores, bias) for scores in SCORES]
    loads.setdefault(chosen.count(0), []).append(step / 100)
for load in sorted(loads, reverse=True):
    print(f"expert 0 gets {load} of 2 tokens for biases {min(loads[load]):+.2f} to "
          f"{max(loads[load]):+.2f}")
print("No bias gives it exactly one: equal tokens move together.\n")

# One total order over (weight, token): the first C stay.
CAPACITY = 1
wanting = sorted(range(2), key=lambda token: (-SCORES[token][0], token))
for place, token in enumerate(wanting):
    fate = "stays" if place < CAPACITY else "is dropped, and counted"
    print(f"capacity {CAPACITY}: token {token} {fate}")
