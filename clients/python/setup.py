# SPDX-License-Identifier: Apache-2.0
"""Compiles the API's description into the package; pyproject.toml has the rest.

A descriptor set instead of generated modules: it needs no particular protobuf at run time, no
folder `proto` among the user's packages, and no names in protobuf's global pool.
"""
import os
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = os.path.dirname(os.path.abspath(__file__))
PROTOS = ("proto/moebius/api/error/v1/error.proto", "proto/moebius/api/router/v1/router.proto",
          "proto/grpc/health/v1/health.proto")
DESCRIPTORS = os.path.join("moebius", "api.binpb")


def proto_root():
    """The folder above `proto`: the project's, or this one in a source distribution."""
    for root in (HERE, os.path.dirname(os.path.dirname(HERE))):
        if os.path.exists(os.path.join(root, PROTOS[0])):
            return root
    raise SystemExit("the folder proto is missing: build from a checkout of Moebius")


class BuildWithDescriptors(build_py):
    """build_py, and moebius/api.binpb."""

    def run(self):
        super().run()
        folder = HERE if self.editable_mode else self.build_lib
        target = os.path.abspath(os.path.join(folder, DESCRIPTORS))
        self.mkpath(os.path.dirname(target))
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", ".", "--include_imports",
                        f"--descriptor_set_out={target}", *PROTOS], cwd=proto_root(), check=True)


class SourceWithProtos(sdist):
    """sdist, and the protos that a build needs."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for proto in PROTOS:
            target = os.path.join(base_dir, proto)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(os.path.join(proto_root(), proto), target)


setup(cmdclass={"build_py": BuildWithDescriptors, "sdist": SourceWithProtos})
