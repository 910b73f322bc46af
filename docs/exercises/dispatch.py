#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exercise 1: eight tokens, four experts, top-2. Who sends how many rows to whom?"""

# The two experts of each token, first choice first.
CHOICES = [(0, 1), (0, 2), (2, 0), (0, 3), (2, 1), (0, 2), (1, 0), (2, 3)]
SERVICE_OF_EXPERT = [0, 0, 1, 1]  # two services with two experts each

load = [sum(expert in choices for choices in CHOICES) for expert in range(4)]
mean = sum(load) / len(load)
print("load        ", " ".join(f"e{expert} {count}" for expert, count in enumerate(load)))
print(f"imbalance    max/mean {max(load) / mean:.2f}")

print("\n          service-0  service-1")
rows_sent = [0, 0]
for token, choices in enumerate(CHOICES):
    services = {SERVICE_OF_EXPERT[expert] for expert in choices}
    cells = ["   row   " if service in services else "    .    " for service in (0, 1)]
    print(f"  token {token} ", "  ".join(cells), "  experts", *choices)
    for service in services:
        rows_sent[service] += 1
print("  rows    ", "  ".join(f"{rows:^9}" for rows in rows_sent).rstrip())

assignments = sum(load)
print(f"\n{sum(rows_sent)} rows go out: a row goes to a service once, however many of its experts are")
print(f"there. One message per assignment would be {assignments}.")

capacity = -(-assignments // 4)  # factor 1: ceil(8 * 2 / 4)
dropped = [max(0, count - capacity) for count in load]
print(f"\ncapacity factor 1 gives {capacity} rows per expert: e0 drops {dropped[0]}, "
      f"e2 drops {dropped[2]}, {sum(load) - sum(dropped)} of {assignments} are served.")
