# SPDX-License-Identifier: Apache-2.0
"""The messages and methods of the router's API, from the descriptors that the build made."""
from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ROUTER = "moebius.api.router.v1.Router"
HEALTH = "grpc.health.v1.Health"
ERROR_DETAIL = "moebius.api.error.v1.ErrorDetail"


def _load_pool() -> descriptor_pool.DescriptorPool:
    data = importlib.resources.files("moebius").joinpath("api.binpb").read_bytes()
    # A pool of our own: other packages may know other files of the same names.
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _load_pool()


def message_class(full_name: str) -> Any:
    """The class of a message, by its full name."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(full_name))


@dataclass(frozen=True)
class Method:
    """One RPC: its path, and the classes of its messages."""

    path: str
    request: Any
    response: Any
    is_stream: bool  # of responses


def methods(service: str) -> dict[str, Method]:
    """All RPCs of a service, by name."""
    descriptor = _POOL.FindServiceByName(service)
    return {
        method.name: Method(path=f"/{service}/{method.name}",
                            request=message_factory.GetMessageClass(method.input_type),
                            response=message_factory.GetMessageClass(method.output_type),
                            is_stream=method.server_streaming)
        for method in descriptor.methods
    }
