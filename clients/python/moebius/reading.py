# SPDX-License-Identifier: Apache-2.0
"""Messages to the dataclasses of answers.py: fields of one name are one thing."""
from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from moebius.answers import ExpertLoad, ForwardAnswer, GenerateChunk, RouteAnswer
from moebius.errors import ErrorDetail, bad_response, detail_from

T = TypeVar("T")
_Reader = Callable[[Any, str], Any]  # message, name of the field ▸ value


def _enum_value(kind: type[Enum], message: Any, name: str) -> Enum:
    """The member whose name ends the proto's; the first value of an enum is an error to receive."""
    enum = message.DESCRIPTOR.fields_by_name[name].enum_type
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    value = enum.values_by_number.get(getattr(message, name))
    member = None if value is None else kind.__members__.get(value.name.removeprefix(prefix))
    if member is None:
        raise bad_response(f"{name} is {getattr(message, name)}")
    return member


def _read_one(kind: Any, value: Any) -> Any:
    if kind is ErrorDetail:
        return detail_from(value)
    return read(kind, value) if hasattr(kind, "__dataclass_fields__") else value


def _reader_of(hint: Any) -> _Reader:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return lambda message, name: tuple(
            _read_one(arguments[0], value) for value in getattr(message, name))
    if origin is types.UnionType:
        inner = _reader_of(arguments[0])
        return lambda message, name: inner(message, name) if message.HasField(name) else None
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda message, name: _enum_value(hint, message, name)
    return lambda message, name: _read_one(hint, getattr(message, name))


@functools.cache
def _readers(kind: Any) -> dict[str, _Reader]:
    hints = typing.get_type_hints(kind)
    return {field.name: _reader_of(hints[field.name]) for field in dataclasses.fields(kind)}


def read(kind: type[T], message: Any, **made: Any) -> T:
    """The dataclass of a message; `made` are values that need more than their field.

    InternalError for an enumerator that there is not.
    """
    readers: dict[str, _Reader] = _readers(typing.cast(Any, kind))
    return kind(**{name: made[name] if name in made else reader(message, name)
                   for name, reader in readers.items()})


def _array(message: Any, name: str, dtype: Any, *shape: int) -> npt.NDArray[Any]:
    values = np.array(getattr(message, name), dtype=dtype)
    if values.size != np.prod(shape, dtype=np.int64) or min(shape) < 0:
        raise bad_response(f"{name} has {values.size} values, not {' x '.join(map(str, shape))}")
    return values.reshape(shape)


def read_chunk(message: Any) -> GenerateChunk:
    """A chunk; its logarithms stand beside its tokens."""
    chunk = read(GenerateChunk, message)
    if chunk.logprobs and len(chunk.logprobs) != len(chunk.token_ids):
        raise bad_response(f"{len(chunk.logprobs)} logprobs for {len(chunk.token_ids)} tokens")
    return chunk


def read_forward(message: Any, num_rows: int, hidden_size: int) -> ForwardAnswer:
    """The answer to [num_rows, hidden_size] rows."""
    if (message.num_rows, message.hidden_size) != (num_rows, hidden_size):
        raise bad_response(f"{message.num_rows} rows of {message.hidden_size} for {num_rows} of "
                           f"{hidden_size}")
    if len(message.rows) != 2 * num_rows * hidden_size:
        raise bad_response(f"rows has {len(message.rows)} bytes")
    rows = np.frombuffer(message.rows, dtype="<u2").astype(np.uint16)
    return read(ForwardAnswer, message, rows=rows.reshape(num_rows, hidden_size))


def read_route(message: Any) -> RouteAnswer:
    """The plan of a prompt, as arrays."""
    num_tokens, top_k, num_experts = len(message.token_ids), message.top_k, message.num_experts
    return read(
        RouteAnswer, message,
        token_ids=_array(message, "token_ids", np.int64, num_tokens),
        expert_ids=_array(message, "expert_ids", np.int32, num_tokens, top_k),
        weights=_array(message, "weights", np.float32, num_tokens, top_k),
        load=_array(message, "load", np.int64, num_experts),
        dropped=_array(message, "dropped", np.int64, num_experts),
        rerouted=_array(message, "rerouted", np.int64, num_experts))


def read_expert_load(message: Any) -> ExpertLoad:
    """The table of all layers, as arrays."""
    shape = len(message.layer_ids), message.num_experts
    return read(ExpertLoad, message,
                demand=_array(message, "demand", np.int64, *shape),
                dropped=_array(message, "dropped", np.int64, *shape))
