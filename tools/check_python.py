#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that what a Python file takes from another file of the project is there.

A function that moves leaves callers behind that only fail when they run, and some run in one suite
of a long list. Usage: check_python.py [ROOT].
"""
import ast
import os
import sys

import check_paths


def defined_names(tree):
    """What a module offers: names that its top level binds, also inside if, try, with and for."""
    names = set()
    statements = list(tree.body)
    while statements:
        node = statements.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)  # what is inside it is its own
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        names.update(part.id for part in ast.walk(node)
                     if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
        for field in ("body", "orelse", "finalbody"):
            statements += getattr(node, field, [])
        for handler in getattr(node, "handlers", []):
            statements += handler.body
    return names


def bound_names(tree):
    """Names that the file binds anywhere by other means than import: they may hide a module."""
    names = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names.update(node.id for node in ast.walk(tree)
                 if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
    return names


def check_text(text, modules):
    """Faults of one file as (line number, sentence); modules: name to the names it defines."""
    tree = ast.parse(text)
    hidden = bound_names(tree)
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in modules:
                    imported[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module in modules:
            for alias in node.names:
                if alias.name not in modules[node.module]:
                    yield node.lineno, f"{node.module} has no {alias.name}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        name = node.value.id
        if name in imported and name not in hidden:
            module = imported[name]
            if node.attr not in modules[module] and not node.attr.startswith("__"):
                yield node.lineno, f"{module} has no {node.attr}"


def check_tree(root):
    paths = [path for path in check_paths.project_files(root)
             if path.endswith(".py") and os.path.exists(os.path.join(root, path))]
    texts = {}
    for path in paths:
        with open(os.path.join(root, path), encoding="utf-8") as file:
            texts[path] = file.read()
    modules, faults = {}, []
    for path, text in texts.items():
        try:
            names = defined_names(ast.parse(text))
        except SyntaxError as error:
            faults.append(f"{path}:{error.lineno}: {error.msg}")
            continue
        # Two files of one name: either may be meant.
        modules.setdefault(os.path.basename(path)[:-3], set()).update(names)
    if faults:
        return faults, len(paths)
    for path, text in texts.items():
        faults += [f"{path}:{line}: {what}" for line, what in check_text(text, modules)]
    return sorted(faults), len(paths)


def main(arguments):
    root = arguments[0] if arguments else os.path.join(os.path.dirname(__file__), "..")
    faults, count = check_tree(root)
    for fault in faults:
        print(fault)
    print(f"check_python: {count} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
