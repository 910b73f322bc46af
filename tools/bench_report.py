#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the reports of a run of ./dev bench together: FOLDER/report.json has them all, and the
results that have a target are printed, those that miss it last.

Usage: bench_report.py FOLDER [--update README]. Between the markers of README is one table for each
kind of machine, told apart by the best kernel tier; with --update the one of this machine is
replaced and comes first. No missed target is a failure.
"""
import argparse
import glob
import json
import os
import re

BEGIN = "<!-- written by ./dev bench --update: begin -->"
END = "<!-- written by ./dev bench --update: end -->"
HEADING = re.compile(r"^### .*, (\w+), \d{4}-\d\d-\d\d$", re.M)  # its tier


def read_reports(folder):
    """{name: report}, by file, without what an earlier call has written."""
    reports = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        name = os.path.splitext(os.path.basename(path))[0]
        if name == "report":
            continue
        with open(path, encoding="utf-8") as file:
            reports[name] = json.load(file)
    return reports


def merge(reports):
    """One report; a cluster's results are told apart by the model that they are of."""
    merged = {"results": []}
    for name, report in reports.items():
        for key, value in report.items():
            if key != "results":
                merged.setdefault(key, value)
        prefix = f"{name}." if name.startswith("olmoe") else ""
        for result in report["results"]:
            merged["results"].append({**result, "name": prefix + result["name"]})
    return merged


def format_value(value, unit):
    """A value in the unit that people use."""
    if unit == "B/s":
        return f"{value / 1e9:.3g} GB/s"
    if unit == "s":
        for scale, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if value >= scale:
                return f"{value / scale:.3g} {name}"
        return f"{value / 1e-9:.3g} ns"
    return f"{value:.4g} {unit}"


def table(report):
    """Lines of a Markdown table of what is compared with anything."""
    lines = ["| result | value | spread | ratio | target | against |",
             "| --- | --- | --- | --- | --- | --- |"]
    for result in report["results"]:
        if result["ratio"] is None:
            continue
        target = "" if result["target"] is None else f"{result['target']:.3g}"
        if result["target"] is not None and result["ratio"] < result["target"]:
            target += ", **missed**"
        lines.append(f"| `{result['name']}` | {format_value(result['value'], result['unit'])} | "
                     f"{100 * result['spread']:.0f} % | {result['ratio']:.2f} | {target} | "
                     f"{result['baseline']}, "
                     f"{format_value(result['baseline_value'], result['unit'])} |")
    return lines


def sections(text):
    """{tier: heading and table} of what stands between the markers."""
    starts = list(HEADING.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return {start[1]: text[start.start():end].strip() for start, end in zip(starts, ends)}


def update(readme, report):
    """Replaces the table of this kind of machine."""
    with open(readme, encoding="utf-8") as file:
        text = file.read()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{readme}: has no place for the table")
    before, rest = text.split(BEGIN)
    kept, after = rest.split(END)
    heading = (f"### {report['cpu']}, {report['threads']} threads, {report['tier']}, "
               f"{report['date'][:10]}")
    others = [section for tier, section in sections(kept).items() if tier != report["tier"]]
    own = "\n".join([heading, "", *table(report)])
    body = "\n\n".join([BEGIN, own, *others, END])
    with open(readme, "w", encoding="utf-8") as file:
        file.write(before + body + after)


def print_summary(report):
    """Counts, and one line for each target that is missed."""
    judged = [result for result in report["results"] if result["target"] is not None]
    missed = [result for result in judged if result["ratio"] < result["target"]]
    print(f"{len(judged) - len(missed)} of {len(judged)} targets are met, "
          f"{len(report['results'])} results")
    for result in missed:
        print(f"  missed: {result['name']}: {result['ratio']:.2f} of {result['target']:.2f} "
              f"({format_value(result['value'], result['unit'])}; {result['baseline']})")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--update", metavar="README")
    arguments = parser.parse_args()
    report = merge(read_reports(arguments.folder))
    if not report["results"]:
        raise SystemExit(f"{arguments.folder}: has no reports")
    path = os.path.join(arguments.folder, "report.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1, ensure_ascii=False)
        file.write("\n")
    print_summary(report)
    print(f"Report: {path}")
    if arguments.update:
        update(arguments.update, report)
        print(f"Table:  {arguments.update}")


if __name__ == "__main__":
    main()
