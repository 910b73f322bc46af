#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every file keeps to its room: includes, guests, size, licence line, pragma once.

The table ROOMS is the one place that says who may include whom; docs/architecture.md explains it.
Usage: check_layers.py [ROOT]. Prints each fault as file:line: sentence, and exits 1 if there is one.
"""
import os
import re
import sys

MAX_LINES = 800

ABSL = ("absl/",)
XXHASH = ("xxhash.h", "xxh_x86dispatch.h")
JSON = ("nlohmann/",)
CLI11 = ("CLI/",)
PROMETHEUS = ("prometheus/",)
GRPC = ("grpc/", "grpcpp/")
PROTOBUF = ("google/protobuf/", "google/rpc/", "proto/")
OPENSSL = ("openssl/",)
GTEST = ("gtest/", "gmock/")
BENCHMARK = ("benchmark/",)
CUDA = ("cuda", "cublas", "cooperative_groups")
NCCL = ("nccl.h",)
ONEDNN = ("oneapi/dnnl/",)
SANITIZER = ("sanitizer/",)  # of the compiler, in trees that it watches
# Every guest with a name; anything else in <> or "" from outside is refused by name.
GUESTS = (ABSL + XXHASH + JSON + CLI11 + PROMETHEUS + GRPC + PROTOBUF + OPENSSL + GTEST + BENCHMARK
          + CUDA + NCCL + ONEDNN + SANITIZER)

MOEBIUS = ("moebius/",)
SERVICES = ("router_service", "expert_service", "attention_service")
PURE = ("moebius/base", "moebius/tensor", "moebius/kernels")


class Room:
    """A folder: the rooms that its files may include, and the guests that they may use."""

    def __init__(self, rooms, guests=(), inside=None):
        self.rooms = tuple(rooms)
        self.guests = ABSL + tuple(guests)
        # Guests of a folder inside the room only: {"cuda": CUDA}.
        self.inside = inside or {}


ROOMS = {
    "moebius/base": Room((), XXHASH + SANITIZER, inside={"pem": OPENSSL}),
    "moebius/api": Room(("moebius/base",)),
    "moebius/telemetry": Room(("moebius/base",), PROMETHEUS),
    "moebius/tensor": Room(("moebius/base",), inside={"cuda": CUDA}),
    "moebius/kernels": Room(("moebius/base", "moebius/tensor"), inside={"cuda": CUDA}),
    "moebius/model": Room(("moebius/base", "moebius/tensor"), JSON),
    "moebius/placement": Room(("moebius/base",)),
    "moebius/routing": Room(PURE + ("moebius/placement",)),
    "moebius/attention": Room(PURE),
    "moebius/transport": Room(("moebius/base", "moebius/telemetry", "moebius/tensor"),
                              inside={"grpc": GRPC + PROTOBUF + OPENSSL, "nccl": NCCL + CUDA}),
    "moebius/wire": Room(("moebius/base", "moebius/tensor", "moebius/placement", "moebius/routing",
                          "moebius/attention", "moebius/transport/frame", "moebius/api"),
                         PROTOBUF, inside={"grpc": GRPC}),
    "moebius/rpc": Room(("moebius/base", "moebius/api", "moebius/wire", "moebius/transport",
                         "moebius/telemetry"), GRPC + PROTOBUF + OPENSSL),
    "moebius/service": Room(PURE + ("moebius/model", "moebius/placement", "moebius/transport",
                                    "moebius/wire", "moebius/telemetry", "moebius/rpc"), GRPC),
    "moebius/client": Room(("moebius/base", "moebius/api", "moebius/wire"), GRPC + PROTOBUF),
    "router_service": Room(MOEBIUS, GRPC + JSON),
    "expert_service": Room(MOEBIUS, GRPC + JSON),
    "attention_service": Room(MOEBIUS, GRPC + JSON),
    "node": Room(MOEBIUS + SERVICES, GRPC + PROTOBUF + OPENSSL + JSON),
    "cli": Room(MOEBIUS + SERVICES + ("node",), CLI11 + JSON + GRPC + PROTOBUF),
    "bench": Room(MOEBIUS + SERVICES + ("node", "cli"),
                  BENCHMARK + JSON + CLI11 + GTEST + GRPC + PROTOBUF + ONEDNN),
    "tests": Room(MOEBIUS + SERVICES + ("node", "cli", "tools"), GUESTS),
    "tools": Room(MOEBIUS + SERVICES + ("node",), JSON + CLI11),
    "clients": Room(MOEBIUS, GRPC + PROTOBUF),
}
# Of a service's files, the thin main reads flags, and only those named *rpc* know wire types.
MAIN_GUESTS = CLI11
RPC_GUESTS = PROTOBUF

SOURCE = (".h", ".cc", ".cu", ".cuh")
LICENSED = SOURCE + (".py", ".sh", ".cmake", ".proto", ".yaml", ".yml")
LICENSED_NAMES = ("CMakeLists.txt", "dev", "run")
SKIPPED_FOLDERS = {".git", "build", "shared", "__pycache__", "data", "corpus"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def is_within(path, folder):
    """True when path is folder or lies in it; a folder that ends in / stands for all below."""
    return path.startswith(folder) if folder.endswith("/") else (
        path == folder or path.startswith(folder + "/"))


def room_of(path):
    """The room that a file or an include path belongs to, or None."""
    for name in ROOMS:
        if is_within(path, name):
            return name
    return None


def is_guest(include):
    return include.startswith(GUESTS) and not include.startswith(("cuda/",))


def allowed_guests(path, name):
    room = ROOMS[name]
    guests = room.guests
    folder = path[len(name) + 1:].split("/")[0]
    guests += room.inside.get(folder, ())
    if name in SERVICES and os.path.basename(path) in ("main.cc", "config.cc"):
        guests += MAIN_GUESTS
    if name in SERVICES and "rpc" in os.path.basename(path):
        guests += RPC_GUESTS
    return guests


def check_include(path, name, quote, include):
    """The sentence of a fault, or None."""
    target = room_of(include)
    if target is not None:
        if target == name or any(is_within(include, room) for room in ROOMS[name].rooms):
            return None
        return f"{name} may not include {include}: {target} is not one of its doors"
    if is_guest(include):
        if include.startswith(allowed_guests(path, name)):
            return None
        return f"{include} is no guest of {name}"
    if quote == '"':
        return f'"{include}" is no path from the root of the project'
    if "/" in include and not include.startswith(("sys/", "netinet/", "arpa/", "linux/", "asm/",
                                                  "net/", "bits/")):
        return f"<{include}> is a guest that no room has"
    return None


def check_source(path, lines):
    """Faults of a C++ file as (line number, sentence)."""
    name = room_of(path)
    if name is None:
        yield 1, "this file is in no room of tools/check_layers.py"
        return
    if len(lines) > MAX_LINES:
        yield MAX_LINES + 1, f"{len(lines)} lines; a file has at most {MAX_LINES}: split it by noun"
    if path.endswith((".h", ".cuh")) and "#pragma once" not in lines:
        yield 1, "the header has no #pragma once"
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match:
            fault = check_include(path, name, match.group(1), match.group(2))
            if fault:
                yield number, fault


def check_file(path, text):
    lines = text.split("\n")
    if path.endswith(LICENSED) or os.path.basename(path) in LICENSED_NAMES:
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
            yield 1, "no line SPDX-License-Identifier: Apache-2.0 at the top"
    if path.endswith(SOURCE):
        yield from check_source(path, lines[:-1] if lines[-1] == "" else lines)


def project_files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS)
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), root)


def check_tree(root):
    """All faults as sentences, and the number of files read."""
    faults, count = [], 0
    for path in project_files(root):
        if not (path.endswith(LICENSED) or os.path.basename(path) in LICENSED_NAMES):
            continue
        count += 1
        with open(os.path.join(root, path), encoding="utf-8") as file:
            for number, fault in check_file(path, file.read()):
                faults.append(f"{path}:{number}: {fault}")
    return faults, count


def main(arguments):
    root = arguments[0] if arguments else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    faults, count = check_tree(root)
    for fault in faults:
        print(fault)
    print(f"check_layers: {count} files, {len(faults)} faults")
    return 1 if faults or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
