# SPDX-License-Identifier: Apache-2.0
"""An answer while it comes."""
from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import grpc

from moebius.answers import Answer, FinishReason, GenerateChunk, PositionLogprobs
from moebius.errors import bad_response, from_rpc
from moebius.reading import read_chunk


class GenerateStream(Iterator[GenerateChunk]):
    """The chunks of one request, in order; the last one has a `finish_reason`.

    Leaving a `with` block, `cancel`, or dropping the stream ends the request at the router. Used by
    one thread, except `cancel`. A failure raises MoebiusError from `next`.
    """

    def __init__(self, call: Any, target: str) -> None:
        self._call = call
        self._target = target
        self._token_ids: list[int] = []
        self._logprobs: list[PositionLogprobs] = []
        self._last: GenerateChunk | None = None
        self._begun = False

    def __next__(self) -> GenerateChunk:
        try:
            message = next(self._call)
        except grpc.RpcError as failure:
            raise from_rpc(failure, self._target, begun=self._begun) from None
        except StopIteration:
            if self._last is None:
                raise bad_response("the stream ended without a finish_reason") from None
            raise
        self._begun = True
        chunk = read_chunk(message)
        self._token_ids += chunk.token_ids
        self._logprobs += chunk.logprobs
        if chunk.finish_reason is not FinishReason.NONE:
            self._last = chunk
        return chunk

    def answer(self) -> Answer:
        """Reads what is still to come, and returns the whole answer."""
        for _ in self:
            pass
        last = self._last
        assert last is not None  # else the loop has raised
        if last.exactness is None or last.timing is None:
            raise bad_response("the last chunk has no exactness or timing")
        values = {field.name: getattr(last, field.name) for field in dataclasses.fields(Answer)}
        values.update(token_ids=tuple(self._token_ids), logprobs=tuple(self._logprobs))
        return Answer(**values)

    def cancel(self) -> None:
        """Ends the request; `next` then raises CancelledError. From any thread, at any time."""
        self._call.cancel()

    def __enter__(self) -> GenerateStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.cancel()
