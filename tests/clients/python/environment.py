# SPDX-License-Identifier: Apache-2.0
"""The Python client as a user installs it, in a virtual environment of the build tree.

A test calls `enter()` before it imports gRPC, NumPy or the client: the script then goes on in the
environment, which is made again when something in it is older than its source.
"""
import os
import shutil

import report_tests
import virtual_environment

SOURCE = os.environ["MOEBIUS_SOURCE_DIR"]
CLIENT = os.path.join(SOURCE, "clients", "python")
# What the client needs to be built and to run, and what judges its types.
PACKAGES = ("grpcio>=1.60", "grpcio-tools>=1.60", "numpy>=1.24", "protobuf>=4.25", "setuptools>=77",
            "mypy>=1.8", "types-grpcio", "types-protobuf")
ENVIRONMENT = virtual_environment.VirtualEnvironment(report_tests.PYTHON_CLIENT_FOLDER, PACKAGES)
FOLDER = ENVIRONMENT.folder
PYTHON = ENVIRONMENT.python


def source_files():
    """The client's files and the protos, as paths in the project."""
    paths = []
    for top in ("clients/python", "proto"):
        for folder, folders, names in os.walk(os.path.join(SOURCE, top)):
            folders[:] = sorted(f for f in folders if f not in ("build", "__pycache__")
                                and not f.endswith(".egg-info"))
            paths += [os.path.relpath(os.path.join(folder, name), SOURCE) for name in sorted(names)]
    return paths


def source_digest():
    pieces = []
    for path in source_files():
        with open(os.path.join(SOURCE, path), "rb") as file:
            pieces += [path.encode(), file.read()]
    return virtual_environment.digest_of(pieces)


def make():
    """Makes what is missing or older than its source."""
    ENVIRONMENT.make_packages()
    client = source_digest()
    if ENVIRONMENT.is_made("client", client):
        return
    # A copy, since setuptools leaves its own files beside what it builds.
    copy = os.path.join(FOLDER, "source")
    shutil.rmtree(copy, ignore_errors=True)
    for path in source_files():
        os.makedirs(os.path.join(copy, os.path.dirname(path)), exist_ok=True)
        shutil.copyfile(os.path.join(SOURCE, path), os.path.join(copy, path))
    ENVIRONMENT.install("--no-deps", "--no-build-isolation", "--force-reinstall",
                        os.path.join(copy, "clients", "python"))
    ENVIRONMENT.stamp("client", client)


def enter():
    """Goes on in the environment; returns at once when the script runs there."""
    if ENVIRONMENT.is_entered():
        return
    with ENVIRONMENT.locked():
        make()
    ENVIRONMENT.restart_script()
